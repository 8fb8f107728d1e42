"""`python pecia_fleet.py JOB ANSWER`: pages through a whole fleet, from the first submit to the last committed row."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pecia import Client, Document, GenerationOptions, ReadDocument
from pecia.job import JobGroup
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.local.fleet import LocalFleet
from vllm_job import Answer, Job, timed

READY_S = 900
DONE_S = 900


@contextmanager
def fleet_of(job: Job, home: Path) -> Iterator[tuple[LocalFleet, Client]]:
    """Run a fleet with the job's engine worker, ready, and a client of it."""
    with ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(home, settings=job.settings, announce=False))
        fleet.wait_ready(READY_S)
        urls = fleet.settings
        client = stack.enter_context(
            Client(urls.database_url.get_secret_value(), urls.redis_url.get_secret_value(), urls.payload_url)
        )
        yield fleet, client


def submit(client: Client, job: Job, pages: Sequence[str], lane: Lane = Lane.NORMAL) -> JobGroup[Document]:
    """Hand pages over."""
    options = GenerationOptions(temperature=job.temperature)
    return client.submit_many(
        (
            ReadDocument(Path(page), document_type=DocumentType.PRESCRIPTION, options=options)
            for page in pages
        ),
        priority=lane,
    )


def read(client: Client, job: Job) -> Answer:
    """Read the job's pages after those to warm up with."""
    submit(client, job, job.warm_up).wait(timeout=DONE_S)
    with timed() as clock:
        jobs = submit(client, job, job.pages)
        jobs.wait(timeout=DONE_S)
    usages = [document.pages[0].usage for document in jobs.results()]
    return Answer(
        seconds=clock.seconds,
        cpu_seconds=clock.cpu_seconds,
        prompt_tokens=[usage.prompt for usage in usages],
        output_tokens=[usage.output for usage in usages],
    )


def _run(job: Job, home: Path) -> Answer:
    with fleet_of(job, home) as (_, client):
        answer = read(client, job)
    use = _use(home)
    return replace(
        answer,
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
