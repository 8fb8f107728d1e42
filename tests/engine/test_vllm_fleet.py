"""A whole fleet reads with vLLM, and what becomes of the pages when the engine dies under them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest

from fleets import READY_S
from offline import MOST_TOKENS, PAGES, png
from pecia import Client, GenerationOptions, ReadDocument
from pecia.job import JobGroup
from pecia_schemas.blocks import text_of
from pecia_schemas.results import Document
from pecia_schemas.states import JobState
from pecia_schemas.tasks import DocumentType
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.reading.markup import blocks_of

pytestmark = pytest.mark.xdist_group("fleet")

LONG = 800
"""Tokens of an answer that is not over before its engine is killed."""


def engine_of(fleet: LocalFleet) -> int:
    (pid,) = [service.pid for service in fleet.services() if service.name == "engine"]
    assert pid is not None
    return pid


def submit(client: Client, count: int, tokens: int) -> JobGroup[Document]:
    return client.submit_many(
        ReadDocument(
            png(number),
            document_type=DocumentType.PRESCRIPTION,
            options=GenerationOptions(max_output_tokens=tokens),
        )
        for number in range(count)
    )


def running(fleet: LocalFleet, attempt: int) -> list[UUID]:
    """Return the jobs whose page is read, for the first or the second time."""
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        query = "SELECT job_id FROM parts WHERE stage = 'read' AND state = 'running' AND attempt = %s"
        return [job for (job,) in connection.execute(query, (attempt,)).fetchall()]


def test_a_fleet_says_what_the_offline_api_says(
    fleet: tuple[LocalFleet, Client],
    endless_checkpoint: Path,
    answers_offline: Callable[[Path, str], list[dict[str, Any]]],
) -> None:
    documents = submit(fleet[1], PAGES, MOST_TOKENS).results(timeout=READY_S)
    pages = [document.pages[0] for document in documents]
    offline = answers_offline(endless_checkpoint, "float32")
    assert [page.text for page in pages] == [text_of(blocks_of(told["text"])) for told in offline]
    assert [page.usage.prompt for page in pages] == [told["prompt"] for told in offline]
    assert {page.engine for page in pages} == {"vllm"}


def test_pages_whose_engine_dies_are_read_by_the_next_and_one_under_which_two_die_is_kept_for_inspection(
    fleet: tuple[LocalFleet, Client],
    engine_processes: Callable[..., list[psutil.Process]],
    eventually: Callable[..., Any],
) -> None:
    local, client = fleet
    former = engine_of(local)
    (core,) = [one for one in engine_processes(former) if "EngineCore" in " ".join(one.cmdline())]
    jobs = submit(client, 3, LONG)
    eventually(lambda: len(running(local, attempt=1)) == 3)
    core.kill()

    (unlucky,) = eventually(lambda: running(local, attempt=2), timeout=READY_S)
    assert engine_of(local) != former
    psutil.Process(engine_of(local)).kill()
    jobs.wait(timeout=READY_S)

    states = {job.id: job.state for job in jobs}
    assert states.pop(unlucky) is JobState.FAILED
    assert set(states.values()) == {JobState.SUCCEEDED}
    (failure,) = [job.failure for job in jobs if job.failure]
    assert failure.code == "poisoned"


def test_a_fleet_that_stops_leaves_no_process_of_the_engine(
    fleet: tuple[LocalFleet, Client], engine_processes: Callable[..., list[psutil.Process]]
) -> None:
    local, _ = fleet
    processes = engine_processes(engine_of(local))
    assert processes
    local.stop()
    assert not any(process.is_running() for process in processes)
