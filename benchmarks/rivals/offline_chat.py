"""`python offline_chat.py JOB ANSWER`: pages through vLLM's offline `LLM.chat`, from files to texts in memory.

It knows all requests beforehand and keeps nothing: no queue, no database, no result outlives the process.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from PIL import Image
from vllm import LLM, SamplingParams

from vllm_job import Answer, Job


def _messages(page: str, instruction: str) -> list[dict[str, Any]]:
    picture = {"type": "image_pil", "image_pil": Image.open(page).convert("RGB")}
    return [{"role": "user", "content": [picture, {"type": "text", "text": instruction}]}]


def main() -> None:
    """Read the pages."""
    job, answer = Job.of_command_line()
    llm = LLM(**job.engine)
    params = SamplingParams(temperature=0, max_tokens=job.most_tokens)

    def read(pages: list[str]) -> Any:
        return llm.chat([_messages(page, job.instruction) for page in pages], params, use_tqdm=False)

    read(job.warm_up)
    started = perf_counter()
    outputs = read(job.pages)
    seconds = perf_counter() - started
    Answer(
        seconds=seconds,
        prompt_tokens=[len(output.prompt_token_ids) for output in outputs],
        output_tokens=[len(output.outputs[0].token_ids) for output in outputs],
    ).write(answer)


if __name__ == "__main__":
    main()
