"""`python pecia_fleet.py JOB ANSWER`: pages through a whole fleet, from the first submit to the last committed row."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from pecia import Client, Document, GenerationOptions, ReadDocument
from pecia.job import JobGroup
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.local.fleet import LocalFleet
from vllm_job import Answer, Job

READY_S = 300
DONE_S = 900


def _settings(job: Job) -> WorkerSettings:
    return WorkerSettings(
        engine="vllm",
        model=job.model,
        max_model_len=job.max_model_len,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        kv_cache_bytes=job.kv_cache_bytes,
        max_output_tokens=job.most_tokens,
        enforce_eager=True,
        engine_options={"load_format": job.load_format, "limit_mm_per_prompt": {"image": 1, "video": 0}},
        max_readings=1,  # the others do not read a cut page again either
        flower_port=0,
        log_format="json",
    )


def _submit(client: Client, pages: list[str]) -> JobGroup[Document]:
    greedy = GenerationOptions(temperature=0)
    return client.submit_many(
        ReadDocument(Path(page), document_type=DocumentType.PRESCRIPTION, options=greedy) for page in pages
    )


def _run(job: Job, home: Path) -> Answer:
    with ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(home, settings=_settings(job), announce=False))
        fleet.wait_ready(READY_S)
        urls = fleet.settings
        client = stack.enter_context(
            Client(urls.database_url.get_secret_value(), urls.redis_url.get_secret_value(), urls.payload_url)
        )
        _submit(client, job.warm_up).wait(timeout=DONE_S)
        started = perf_counter()
        jobs = _submit(client, job.pages)
        jobs.wait(timeout=DONE_S)
        seconds = perf_counter() - started
        pages = [document.pages[0] for document in jobs.results()]
    use = _use(home)
    return Answer(
        seconds=seconds,
        prompt_tokens=[page.usage.prompt for page in pages],
        output_tokens=[page.usage.output for page in pages],
        packing=use["packing"],
        preemptions=use["preemptions"],
        drifted=use["drifted"],
    )


def _use(home: Path) -> dict[str, Any]:
    """Return what the engine worker said of itself when it stopped."""
    for line in (home / "logs" / "engine.log").read_text().splitlines():
        if '"engine_use"' in line:
            use: dict[str, Any] = json.loads(line)
            return use
    message = "the engine worker did not say how it was used"
    raise RuntimeError(message)


def main() -> None:
    """Read the pages."""
    job, answer = Job.of_command_line()
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as home:
        _run(job, Path(home)).write(answer)


if __name__ == "__main__":
    main()
