"""Whole jobs in the ledger: what their parts took, summaries that wait for segments, parts given up and tried again."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import Retry
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, FailureCode, Job, JobState, ReadDocument
from pecia.errors import InvalidOptionError
from pecia.job import AnyJob
from pecia_schemas.results import Document, Timings, TokenUsage
from pecia_schemas.states import Stage
from pecia_workers.ledger.commit import COLUMNS
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import find_orphaned, requeue_orphaned
from pecia_workers.protocol.base import EngineError
from pecia_workers.protocol.parts import ClaimedPart, Done, Spent
from pecia_workers.upkeep.loop import relay_due
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Picture
from tests.shared.house import House, claimed
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded, note
from tests.shared.relaying import RelayingBus

ONE_PAGE = TokenUsage(prompt=100, image=80, cached=16, output=30, wasted=0)
ITS_TIME = Timings(queued=1.5, decode=0.25, engine=2.0, first_token=0.5)


def row_of(house: House, job: Job[Any]) -> dict[str, Any]:
    """Return the accounts in the row of a job's only part."""
    (row,) = house.rows("SELECT * FROM parts WHERE job_id = %s", job.id)
    return {name: row[name] for name in (column.split()[0] for column in COLUMNS.split(", "))}


def test_a_page_says_what_it_took_in_row(client: Client, scribe: Any, picture: Picture, house: House) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id, engine="vllm", usage=ONE_PAGE, timings=ITS_TIME)
    assert row_of(house, job) == {
        "engine": "vllm",
        "prompt_tokens": 100,
        "image_tokens": 80,
        "cached_tokens": 16,
        "output_tokens": 30,
        "wasted_tokens": 0,
        "queued_s": 1.5,
        "decode_s": 0.25,
        "engine_s": 2.0,
        "first_token_s": 0.5,
        "saved_tokens": None,
    }


def test_a_failed_attempt_is_wasted_too(client: Client, scribe: Any, picture: Picture, house: House) -> None:
    job = client.submit(ReadDocument(picture()))
    spent = Spent(
        engine="vllm", usage=TokenUsage(prompt=100, output=7), timings=Timings(queued=1, engine=3.0)
    )
    scribe.fail(job.id, retry_in=timedelta())  # the file could not be fetched: no engine saw it
    assert set(row_of(house, job).values()) == {None}
    scribe.fail(job.id, spent=spent, retry_in=timedelta())
    scribe.read(job.id, engine="rapidocr", usage=ONE_PAGE, timings=ITS_TIME)

    row = row_of(house, job)
    tokens = {"prompt_tokens": 200, "output_tokens": 37, "wasted_tokens": 107}
    assert tokens.items() <= row.items()
    assert (row["engine"], row["queued_s"], row["engine_s"]) == ("rapidocr", 2.5, 5.0)
    assert row["first_token_s"] == 0.5


@pytest.mark.usefixtures("shared_template")
async def test_what_was_written_before_a_part_failed_is_wasted(client: Client, house: House) -> None:
    job = client.submit(ReadDocument(encoded(note(1, 200, 200), "PNG")))
    part = house.part_of(job)

    async with house.working({Stage.READ}, engine="simulated") as runtime:
        read = runtime._stages.handlers[Stage.READ]

        async def read_and_fail(part: ClaimedPart) -> Done:
            await read(part)
            raise EngineError

        runtime._stages.handlers[Stage.READ] = read_and_fail
        with pytest.raises(Retry):
            await runtime.run(part, deaths=0)
        assert runtime._stages.meter.spent(part, 0) is None
    row = row_of(house, job)
    assert (row["engine"], row["image_tokens"]) == ("simulated", 49)
    assert row["wasted_tokens"] == row["prompt_tokens"] + row["output_tokens"]
    assert min(row["output_tokens"], row["engine_s"], row["first_token_s"]) > 0


@pytest.fixture
def film(client: Client, scribe: Any) -> AnyJob:
    film = client.submit(CaptionVideo(b"\0\0\0\x18ftypmp42"))
    scribe.cut_video(film.id, 3)
    return film.refresh()


@pytest.fixture
def due(house: House) -> Callable[[], set[Stage]]:
    """The stages of the parts that the relay would publish now; it does."""

    async def relayed(database: AsyncEngine) -> set[Stage]:
        stages: set[Stage] = set()

        async def publish(messages: Any) -> None:
            stages.update(message.stage for message in messages)

        bus = RelayingBus(house.redis_url, publish)
        await relay_due(database, bus, limit=100)
        await bus.close()
        return stages

    return lambda: house.ask(relayed)


def test_the_summary_comes_after_the_last_segment_even_if_one_failed(
    film: AnyJob, scribe: Any, due: Callable[[], set[Stage]]
) -> None:
    assert film.progress.total == 4
    assert due() == {Stage.CAPTION}
    scribe.caption(film.id, 2)
    scribe.fail(film.id, 0, stage=Stage.CAPTION)
    assert due() == set()

    scribe.caption(film.id, 1)

    assert due() == {Stage.SUMMARIZE}
    assert film.refresh().state is JobState.RUNNING
    scribe.summarize(film.id, 3)
    assert film.refresh().state is JobState.PARTIAL
    assert (film.progress.done, film.progress.failed) == (3, 1)


@pytest.mark.parametrize("end", ["revoked", "poisoned"])
def test_the_summary_comes_too_if_the_last_segment_ends_in_another_way(
    film: AnyJob, scribe: Any, house: House, due: Callable[[], set[Stage]], end: str
) -> None:
    scribe.caption(film.id, 0)
    scribe.caption(film.id, 1)
    due()
    ((last,),) = house.query("SELECT id FROM parts WHERE stage = 'caption' AND ordinal = 2")

    async def lose(ledger: Ledger) -> None:
        await claimed(ledger, last)
        if end == "revoked":
            await ledger.revoke(last)
        else:
            orphaned = await find_orphaned(ledger._database, limit=10)
            await requeue_orphaned(ledger._database, orphaned, max_deaths=1)

    house.play(lose)

    assert due() == {Stage.SUMMARIZE}


def test_a_summary_that_failed_alone_is_retried_at_once(film: AnyJob, scribe: Any) -> None:
    for ordinal in range(3):
        scribe.caption(film.id, ordinal)
    scribe.fail(film.id, 3, stage=Stage.SUMMARIZE)
    assert film.refresh().state is JobState.PARTIAL
    film.retry()
    scribe.summarize(film.id, 3)
    assert film.refresh().state is JobState.SUCCEEDED


def test_a_cancelled_video_goes_on_by_retry(film: AnyJob, scribe: Any, due: Callable[[], set[Stage]]) -> None:
    scribe.caption(film.id, 0)
    film.cancel()
    assert (film.state, film.progress.cancelled) == (JobState.CANCELLED, 3)
    film.retry()
    scribe.caption(film.id, 1)
    assert due() == set()
    scribe.caption(film.id, 2)
    assert due() == {Stage.SUMMARIZE}


PDF = b"%PDF-1.4"
HOOK = "https://hook.example/"


@pytest.fixture
def job(client: Client, scribe: Any) -> Job[Document]:
    """A document of four pages: read, damaged, poisonous, and failed in every attempt."""
    job = client.submit(ReadDocument(PDF), webhook=HOOK)
    scribe.cut(job.id, 4)
    scribe.read(job.id, 0, "kept")
    scribe.fail(job.id, 1, FailureCode.DAMAGED)
    scribe.fail(job.id, 2, FailureCode.POISONED)
    scribe.fail(job.id, 3, FailureCode.TIMEOUT, retry_in=timedelta())
    scribe.fail(job.id, 3, FailureCode.TIMEOUT)
    return job.refresh()


def test_a_retry_runs_them_alone_again(client: Client, scribe: Any, job: Job[Document], house: House) -> None:
    dead = client.dead_parts()
    assert [(part.attempts, part.strikes, part.worker) for part in dead] == [
        (2, 1, "scribe"),
        (1, 0, "scribe"),
    ]
    with pytest.raises(InvalidOptionError, match="does not exist"):
        client.retry_dead([dead[0].id, uuid4()])

    (reopened,) = client.retry_dead(dead)

    assert (reopened.id, reopened.state) == (job.id, JobState.QUEUED)
    assert (reopened.progress.done, reopened.progress.failed, reopened.progress.total) == (1, 1, 4)
    rows = house.query("SELECT state, strikes, deaths FROM parts WHERE stage = 'read' ORDER BY ordinal")
    assert rows == [("done", 0, 0), ("failed", 0, 0), ("queued", 0, 0), ("queued", 0, 0)]
    assert client.dead_parts() == []

    scribe.read(job.id, 2, "third")
    scribe.read(job.id, 3, "fourth")
    document = job.result(timeout=WAIT_S)
    assert [page.text for page in document.pages] == ["kept", "third", "fourth"]
    assert [missing.failure.code for missing in document.failed] == [FailureCode.DAMAGED]


def test_they_are_listed_shown_and_tried_again_on_the_command_line(
    client: Client, scribe: Any, job: Job[Document], stores: dict[str, str]
) -> None:
    def dead(*words: str) -> str:
        return run_pecia("dead", *words, env=stores).stdout

    timeout, poisoned = client.dead_parts()

    listed = [json.loads(line) for line in dead("list", "--json").splitlines()]
    assert [part["id"] for part in listed] == [str(timeout.id), str(poisoned.id)]
    assert str(poisoned.id) in dead("list", "--code", "poisoned")
    assert json.loads(dead("show", str(timeout.id), "--json"))["events"][-1]["reason"] == "timeout"
    assert "poisoned: The part killed its worker" in dead("show", str(poisoned.id))

    assert dead("retry", str(timeout.id)) == f"{job.id} queued 1/4\n"
    assert [part.id for part in client.dead_parts()] == [poisoned.id]
    scribe.read(job.id, 3)
    assert dead("retry", "--all", "--since", "1h") == f"{job.id} queued 2/4\n"
    assert dead("retry", "--all") == ""
    assert run_pecia("dead", "retry", env=stores).returncode == 2
