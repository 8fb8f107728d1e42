"""`python offline_chat.py JOB ANSWER`: pages through vLLM's offline `LLM.chat`, from files to texts in memory.

It knows all requests beforehand and keeps nothing: no queue, no database, no result outlives the process.
"""

from __future__ import annotations

from time import time
from typing import Any

from PIL import Image
from psutil import Process
from vllm import LLM, SamplingParams

from vllm_job import Answer, Job, timed


def _messages(page: str, instruction: str) -> list[dict[str, Any]]:
    picture = {"type": "image_pil", "image_pil": Image.open(page).convert("RGB")}
    return [{"role": "user", "content": [picture, {"type": "text", "text": instruction}]}]


def main() -> None:
    """Read the pages."""
    job, answer = Job.of_command_line()
    llm = LLM(**job.engine_arguments)
    ready = time() - Process().create_time()
    logged = 0 if job.log_probabilities else None
    params = SamplingParams(temperature=job.temperature, max_tokens=job.most_tokens, logprobs=logged)

    def read(pages: list[str]) -> Any:
        return llm.chat([_messages(page, job.instruction) for page in pages], params, use_tqdm=False)

    read(job.warm_up)
    with timed() as clock:
        outputs = read(job.pages)
    Answer(
        seconds=clock.seconds,
        cpu_seconds=clock.cpu_seconds,
        ready_seconds=ready,
        prompt_tokens=[len(output.prompt_token_ids) for output in outputs],
        output_tokens=[len(output.outputs[0].token_ids) for output in outputs],
    ).write(answer)


if __name__ == "__main__":
    main()
