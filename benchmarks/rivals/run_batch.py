"""`python run_batch.py JOB ANSWER`: pages through `vllm run-batch`, from a file of requests to a file of responses.

Its own functions, one after the other: the command loads the model anew for every file, which the clock leaves out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.run_batch import parse_args, run_batch
from vllm.usage.usage_lib import UsageContext

from vllm_job import Answer, Job, data_url, timed


def _requests(pages: list[str], job: Job) -> str:
    return "\n".join(json.dumps(_request(number, page, job)) for number, page in enumerate(pages))


def _request(number: int, page: str, job: Job) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": data_url(page)}}
    content = [picture, {"type": "text", "text": job.instruction}]
    body = {
        "model": job.worker["model"],
        "messages": [{"role": "user", "content": content}],
        "temperature": job.temperature,
        "max_tokens": job.most_tokens,
        "logprobs": job.log_probabilities,
    }
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


def _flags(job: Job) -> list[str]:
    flags = []
    for name, value in job.engine_arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        else:
            flags += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


async def _run(job: Job, directory: Path) -> Answer:
    requests, responses = directory / "requests.jsonl", directory / "responses.jsonl"
    sys.argv = ["run-batch", "-i", str(requests), "-o", str(responses), *_flags(job)]
    arguments = parse_args()
    async with build_async_engine_client(arguments, usage_context=UsageContext.OPENAI_BATCH_RUNNER) as engine:
        requests.write_text(_requests(job.warm_up, job))
        await run_batch(engine, arguments)
        requests.write_text(_requests(job.pages, job))
        with timed() as clock:
            await run_batch(engine, arguments)
    usages = [json.loads(line)["response"]["body"]["usage"] for line in responses.read_text().splitlines()]
    return Answer(
        seconds=clock.seconds,
        cpu_seconds=clock.cpu_seconds,
        prompt_tokens=[usage["prompt_tokens"] for usage in usages],
        output_tokens=[usage["completion_tokens"] for usage in usages],
    )


def main() -> None:
    """Read the pages."""
    job, answer = Job.of_command_line()
    asyncio.run(_run(job, answer.parent)).write(answer)


if __name__ == "__main__":
    main()
