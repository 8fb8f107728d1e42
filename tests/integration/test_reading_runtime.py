"""A worker reads a page with a language model that is not always good at it, and a client gets what came of it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chat_server import Behaviour, ChatServerDouble, serving
from pecia import Client, Job, Page, ReadDocument, Verdict
from pecia_schemas import Document, DocumentType, Stage
from pecia_schemas.results import Change
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import create_engine
from pecia_workers.engines.reading_order import mean_confidence
from pecia_workers.local.accuracy import accuracy
from pecia_workers.local.sample_documents import sample_document
from pecia_workers.runtime import Runtime

SAMPLE = sample_document(DocumentType.PRESCRIPTION)
Work = Callable[..., Job[Document]]


@pytest.fixture
def scan() -> bytes:
    file = io.BytesIO()
    SAMPLE.pages[0].image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def server() -> Iterator[ChatServerDouble]:
    with serving(Behaviour()) as server:
        yield server


@pytest.fixture
def work(server: ChatServerDouble, client: Client, stores: dict[str, str], tmp_path: Path) -> Work:
    """Submits a task and runs its page on a worker whose engine asks the server."""
    urls = {name.removeprefix("PECIA_").lower(): url for name, url in stores.items()}
    engine = {"engine": "openai", "engine_url": server.url, "decode_processes": 1, "spool_dir": str(tmp_path)}

    def run(task: ReadDocument, **settings: Any) -> Job[Document]:
        job = client.submit(task)
        with psycopg.connect(urls["database_url"]) as connection:
            row = connection.execute("SELECT id FROM parts WHERE job_id = %s", (job.id,)).fetchone()
        assert row is not None

        async def story() -> None:
            runtime = Runtime(WorkerSettings.model_validate({**urls, **engine, **settings}), {Stage.READ})
            try:
                await runtime.start()
                await runtime.run(row[0], redelivered=False)
            finally:
                await runtime.stop()

        asyncio.run(story())
        return job

    return run


def only_page(job: Job[Document]) -> Page:
    (page,) = job.result(timeout=0).pages
    return page


def test_a_page_that_stays_bad_is_the_best_of_its_readings_and_tells_of_all(
    server: ChatServerDouble, work: Work, scan: bytes
) -> None:
    server.behaviour.finish_reason = "repetition"

    page = only_page(work(ReadDocument(scan), max_readings=3))

    assert (page.verdict, page.text, page.change) == (Verdict.REPETITION, "Amoxicillin 500 mg", None)
    assert [(one.change, one.verdict) for one in page.attempts] == [
        (Change.TEMPERATURE, Verdict.REPETITION),
        (Change.PENALTY, Verdict.REPETITION),
    ]
    assert page.usage.output == 9
    assert page.usage.wasted == sum(one.usage.prompt + one.usage.output for one in page.attempts)
    assert [body.get("temperature") for body in server.pages] == [0, 0.4, 0]


def test_the_cpu_engine_reads_what_the_model_could_not(
    server: ChatServerDouble, work: Work, scan: bytes
) -> None:
    server.behaviour.finish_reason = "length"
    settings = {"max_readings": 1, "fallback_engine": "rapidocr"}

    page = only_page(work(ReadDocument(scan, language="en"), **settings))

    assert (page.engine, page.change, page.verdict) == ("rapidocr", Change.FALLBACK, Verdict.OK)
    assert accuracy(page.text, "\n".join(SAMPLE.pages[0].lines)) >= 0.99
    assert page.confidence == pytest.approx(mean_confidence(page.lines))
    (attempt,) = page.attempts
    assert (attempt.engine, attempt.verdict, attempt.change) == ("openai", Verdict.TRUNCATED, None)
    assert page.usage.wasted == attempt.usage.prompt + attempt.usage.output


def test_a_worker_whose_own_engine_is_the_fallback_starts_it_once(
    work: Work, scan: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def counted(settings: WorkerSettings) -> Any:
        started.append(settings.engine)
        return create_engine(settings)

    monkeypatch.setattr("pecia_workers.runtime.create_engine", counted)
    page = only_page(
        work(ReadDocument(scan), engine="rapidocr", fallback_engine="rapidocr", engine_processes=1)
    )

    assert started == ["rapidocr"]
    assert page.attempts == ()
