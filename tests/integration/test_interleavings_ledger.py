"""What must hold whoever moves a part in between: clients, workers, operators and outages against real Postgres."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import Client, Job, ReadDocument
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Document
from pecia_schemas.states import JobState, Stage
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Finished, NewPart, Outcome
from tests.shared.fixture_types import Picture
from tests.shared.house import House, claimed
from tests.shared.limits import until
from tests.shared.samples import page

pytestmark = pytest.mark.gate

R = TypeVar("R")


Submit = Callable[..., Job[Document]]


@pytest.fixture
def submit(client: Client, picture: Picture) -> Submit:
    def run(**options: Any) -> Job[Document]:
        return client.submit(ReadDocument(picture()), **options)

    return run


def read(text: str = "text") -> Done:
    return Done(page(text=text))


async def commit(ledger: Ledger, claim: ClaimedPart, outcome: Outcome) -> bool:
    return await ledger.commit(Finished(part=claim, outcome=outcome)) is not None


def test_a_task_of_a_newer_version_does_not_hold_up_its_neighbours(submit: Submit, house: House) -> None:
    parts = [house.part_of(submit()) for _ in range(3)]
    house.rows(
        "UPDATE jobs SET kind = 'audio.transcribe' WHERE id = (SELECT job_id FROM parts WHERE id = %s)",
        parts[1],
    )

    claims = house.play(lambda one: asyncio.gather(*[claimed(one, part) for part in parts]))

    assert [claim.id for claim in claims] == parts
    assert claims[0].task.kind == "document.read"
    with pytest.raises(KeyError):
        _ = claims[1].task


def test_a_result_that_cannot_be_written_fails_alone(submit: Submit, house: House) -> None:
    jobs = [submit() for _ in range(3)]

    async def story(one: Ledger) -> list[bool]:
        claims = [await claimed(one, house.part_of(job)) for job in jobs]
        same_page_twice = Cut(Stage.READ, [NewPart(ordinal=0, cost=1)] * 2)
        outcomes: list[Outcome] = [read(), same_page_twice, read()]
        return await asyncio.gather(*[commit(one, *pair) for pair in zip(claims, outcomes, strict=True)])

    assert house.play(story) == [True, True, True]
    assert [job.refresh().state for job in jobs] == ["succeeded", "failed", "succeeded"]
    assert jobs[1].failure is not None
    assert jobs[1].failure.code is FailureCode.INTERNAL


def test_finished_work_outlasts_a_pool_without_a_free_connection(submit: Submit, house: House) -> None:
    job = submit()

    async def story(one: Ledger) -> bool:
        claim = await claimed(one, house.part_of(job))
        one._database.sync_engine.pool._timeout = 0.1  # type: ignore[attr-defined]
        async with every_connection_taken(one._database):
            committing = asyncio.create_task(commit(one, claim, read()))
            await asyncio.sleep(0.5)
        return await committing

    assert house.play(story)
    assert job.refresh().state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "overtaken", [read("stale"), Failed(Failure.of(FailureCode.DAMAGED))], ids=["read", "failed"]
)
def test_a_part_that_the_same_worker_reads_again_while_its_first_commit_waits_counts_once(
    overtaken: Outcome, submit: Submit, house: House
) -> None:
    """Its lease was lost meanwhile. Both attempts are committed in one group: only the later one counts."""
    job, other = submit(), submit()
    waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def story(one: Ledger) -> list[bool]:
        first, neighbour = await claimed(one, house.part_of(job)), await claimed(one, house.part_of(other))
        async with locked(one._database, other.id):
            committing = [asyncio.create_task(commit(one, neighbour, read()))]
            await until(lambda: house.rows(waits))  # for the lock, and the next group for it
            committing.append(asyncio.create_task(commit(one, first, overtaken)))
            await asyncio.sleep(0)
            await one.requeue([first.id])
            second = await claimed(one, first.id)
            committing.append(asyncio.create_task(commit(one, second, read("fresh"))))
            await asyncio.sleep(0)
        return await asyncio.gather(*committing)

    assert house.play(story) == [True, False, True]
    assert house.rows("SELECT done, failed, total FROM jobs WHERE id = %s", job.id) == [
        {"done": 1, "failed": 0, "total": 1}
    ]
    assert job.refresh().state is JobState.SUCCEEDED
    assert job.result().text == "fresh"


@asynccontextmanager
async def locked(database: AsyncEngine, job_id: UUID) -> AsyncIterator[None]:
    """Hold a job, so that whoever commits to it waits."""
    async with database.begin() as connection:
        await connection.execute(text("SELECT FROM jobs WHERE id = :id FOR UPDATE"), {"id": job_id})
        yield


@asynccontextmanager
async def every_connection_taken(database: AsyncEngine) -> AsyncIterator[None]:
    taken = []
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            for _ in range(database.sync_engine.pool.size()):  # type: ignore[attr-defined]
                taken.append(await database.connect())  # noqa: PERF401
    yield
    for connection in taken:
        await connection.close()


def test_a_stray_message_does_not_cut_short_the_wait_before_a_retry(submit: Submit, house: House) -> None:
    part = house.part_of(submit())
    failed = Failed(Failure.of(FailureCode.ENGINE_ERROR), timedelta(minutes=1))

    async def story(one: Ledger) -> ClaimedPart | None:
        await commit(one, await claimed(one, part), failed)
        return await one.claim(part)

    assert house.play(story) is None
    assert house.rows("SELECT state FROM parts") == [{"state": "queued"}]


def test_a_job_whose_ingest_an_operator_revoked_is_cancelled_not_failed(client: Client, house: House) -> None:
    job = client.submit(ReadDocument(b"%PDF-1.4"), webhook="https://hook.example/")

    async def story(one: Ledger) -> None:
        claim = await claimed(one, house.part_of(job))
        await one.revoke(claim.id)

    house.play(story)

    assert job.refresh().state is JobState.CANCELLED
    assert house.rows("SELECT type FROM deliveries") == [{"type": "job.cancelled"}]
    assert job.retry().progress.total is None


def test_a_job_locked_when_its_part_began_has_begun_by_its_end(submit: Submit, house: House) -> None:
    job = submit()

    async def story(one: Ledger) -> bool:
        with psycopg.connect(house.database_url) as locking:
            locking.execute("SELECT FROM jobs FOR NO KEY UPDATE")
            claim = await claimed(one, house.part_of(job))
        return await commit(one, claim, read())

    assert house.play(story)
    told = house.rows("SELECT state FROM job_events WHERE part_id IS NULL ORDER BY sequence")
    assert [row["state"] for row in told] == ["queued", "running", "succeeded"]
    assert house.rows("SELECT started_at IS NOT NULL AS begun FROM jobs") == [{"begun": True}]


def test_an_error_of_the_database_does_not_quote_what_was_to_be_written(house: House) -> None:
    async def story(one: Ledger) -> str:
        async with one._database.connect() as connection:
            with pytest.raises(DBAPIError) as raised:
                await connection.execute(text("SELECT CAST(:content AS nothing)"), {"content": "Jane Doe"})
        return str(raised.value)

    assert "Jane Doe" not in house.play(story)


async def test_a_heartbeat_survives_any_error(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        identity = WorkerIdentity.new("engine")
        async with Heartbeat(house.database_url, identity, lease=timedelta(milliseconds=80)):
            await until(lambda: house.rows("SELECT 1 FROM workers"))
            house.rows("ALTER TABLE workers RENAME TO hidden")
            await asyncio.sleep(0.2)
            house.rows("ALTER TABLE hidden RENAME TO workers")
            house.rows("DELETE FROM workers")
            await until(lambda: house.rows("SELECT 1 FROM workers"))
