"""A whole fleet reads with vLLM, and what becomes of the pages when the engine dies under them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from PIL import Image

from fleets import READY_S, fleet_of
from offline import MOST_TOKENS, PAGES, picture
from pecia import Client, ReadDocument
from pecia.job import JobGroup
from pecia_schemas import Document, DocumentType, JobState
from pecia_workers.local.fleet import LocalFleet


def engine_of(fleet: LocalFleet) -> int:
    (pid,) = [service.pid for service in fleet.services() if service.name == "engine"]
    assert pid is not None
    return pid


def submit(client: Client, count: int) -> JobGroup[Document]:
    return client.submit_many(
        ReadDocument(png(number), document_type=DocumentType.PRESCRIPTION) for number in range(count)
    )


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(number)).save(buffer, "PNG")
    return buffer.getvalue()


def most_attempts(fleet: LocalFleet, jobs: JobGroup[Document]) -> int:
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        query = "SELECT max(attempt) FROM parts WHERE job_id = ANY(%s)"
        row = connection.execute(query, ([job.id for job in jobs],)).fetchone()
    assert row is not None
    most: int = row[0]
    return most


@pytest.mark.parametrize(("kind", "dtype"), [("checkpoint", "float32"), ("awq_checkpoint", "float16")])
def test_a_fleet_says_what_the_offline_api_says(
    *,
    kind: str,
    dtype: str,
    request: pytest.FixtureRequest,
    short_path: Path,
    answers_offline: Callable[[Path, str], list[dict[str, Any]]],
    engine_processes: Callable[..., list[psutil.Process]],
) -> None:
    checkpoint: Path = request.getfixturevalue(kind)
    settings = {
        "max_output_tokens": MOST_TOKENS,
        "max_readings": 1,  # what breaks off is read once there too
        "engine_options": {"dtype": dtype},
    }
    with fleet_of(short_path, checkpoint, **settings) as (fleet, client):
        processes = engine_processes(engine_of(fleet))
        documents = submit(client, PAGES).results(timeout=120)

    pages = [document.pages[0] for document in documents]
    offline = answers_offline(checkpoint, dtype)
    assert [page.text for page in pages] == [told["text"] for told in offline]
    assert [page.usage.prompt for page in pages] == [told["prompt"] for told in offline]
    assert {page.engine for page in pages} == {"vllm"}
    assert processes
    assert not any(process.is_running() for process in processes), "the fleet left processes behind"


@pytest.mark.parametrize("victim", ["core", "worker"])
def test_pages_whose_engine_dies_under_them_are_read_by_the_next(
    short_path: Path,
    endless_checkpoint: Path,
    engine_processes: Callable[..., list[psutil.Process]],
    eventually: Callable[..., Any],
    victim: str,
) -> None:
    with fleet_of(short_path, endless_checkpoint, max_output_tokens=1500) as (fleet, client):
        former = engine_of(fleet)
        core = next(one for one in engine_processes(former) if "EngineCore" in " ".join(one.cmdline()))
        jobs = submit(client, 6)
        eventually(lambda: all(job.refresh().state is JobState.RUNNING for job in jobs))
        (core if victim == "core" else psutil.Process(former)).kill()

        jobs.wait(timeout=READY_S)

        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        assert engine_of(fleet) != former
        assert most_attempts(fleet, jobs) == 2


def test_a_page_that_takes_engine_after_engine_down_is_kept_for_inspection(
    short_path: Path,
    endless_checkpoint: Path,
    engine_processes: Callable[..., list[psutil.Process]],
    eventually: Callable[..., Any],
) -> None:
    with fleet_of(short_path, endless_checkpoint, max_output_tokens=1500, max_deaths=1) as (fleet, client):
        (job,) = submit(client, 1)
        eventually(lambda: job.refresh().state is JobState.RUNNING)
        for process in engine_processes(engine_of(fleet)):
            process.kill()

        job.wait(timeout=READY_S)

        assert job.state is JobState.FAILED
        assert job.failure
        assert job.failure.code == "poisoned"
