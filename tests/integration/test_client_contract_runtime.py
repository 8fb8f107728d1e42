"""The worker that runs in production tells of its jobs what a fake fleet tells of them."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pypdfium2
import pytest

from limits import WAIT_S
from pecia import Client, FailureCode, Job, ReadDocument
from pecia.testing import FakeFleet
from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.errors import PartFailedError
from pecia_workers.runtime import Runtime


def pdf(pages: int) -> bytes:
    document, file = pypdfium2.PdfDocument.new(), io.BytesIO()
    for _ in range(pages):
        document.new_page(100, 72)
    document.save(file)
    document.close()
    return file.getvalue()


def told(job: Job[Any]) -> Any:
    """What can be seen of a job that is over, but for ids, times, names and text."""
    events = [
        (event.state, event.attempt, event.reason, event.part_id is None)
        for event in job.events(timeout=WAIT_S)
    ]
    pages = [page.number for page in job.pages(timeout=WAIT_S)] if job.state.has_result else []
    code = job.failure.code if job.failure else None
    return job.state, job.progress, code, pages, Counter(events), [event for event in events if event[3]]


def work_off(client: Client, stores: dict[str, str], spool: Path) -> None:
    """Run everything there is on a worker."""
    urls = {name.removeprefix("PECIA_").lower(): url for name, url in stores.items()}
    own = {"engine": "simulated:instant", "decode_processes": 1, "spool_dir": str(spool)}
    waiting = "SELECT id FROM parts WHERE state = 'queued' ORDER BY ordinal"

    async def story() -> None:
        runtime = Runtime(WorkerSettings.model_validate({**urls, **own}), {Stage.INGEST, Stage.READ})
        try:
            await runtime.start()
            with psycopg.connect(urls["database_url"], autocommit=True) as connection:
                while parts := connection.execute(waiting).fetchall():
                    for (part,) in parts:
                        with suppress(PartFailedError):
                            await runtime.run(part, deaths=0)
        finally:
            await runtime.stop()

    asyncio.run(story())
    assert all(job.done for job in client.jobs())


@pytest.mark.usefixtures("shared_template")
def test_a_real_worker_and_a_fake_fleet_tell_the_same_story(
    client: Client, stores: dict[str, str], picture: Callable[..., bytes], tmp_path: Path
) -> None:
    document, scan, sheet = pdf(3), picture(), b"name;dose"
    answers: dict[bytes, Any] = {document: ["1", "2", "3"], scan: "x", sheet: FailureCode.UNSUPPORTED_TYPE}
    tasks = [
        ReadDocument(document),
        ReadDocument(document, pages="1,3"),
        ReadDocument(document, pages="7"),
        ReadDocument(scan),
        ReadDocument(sheet),
    ]
    real = client.submit_many(tasks)
    work_off(client, stores, tmp_path)
    with FakeFleet() as fleet:
        fleet.answers(ReadDocument, lambda task: answers[task.source])
        fake = fleet.client().submit_many(tasks)
        assert [told(job) for job in fake.wait(WAIT_S)] == [told(job) for job in real.wait(WAIT_S)]
