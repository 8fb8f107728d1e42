"""Claim, commit and give-back against real Postgres: who owns a part, and what a commit may change."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from house import House, claimed
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.events import JobNotice
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import PayloadRef
from pecia_schemas.results import Page
from pecia_schemas.states import JobState, Lane, PartState, Stage, new_id
from pecia_schemas.tables import DeliveryRow, JobEventRow, JobRow, PartRow, ResultRow
from pecia_schemas.tasks import DocumentType, ReadDocument, task_to_json
from pecia_workers.ledger.commit import (
    ClaimedPart,
    Cut,
    Done,
    Failed,
    Finished,
    NewPart,
    Outcome,
)
from pecia_workers.ledger.ledger import Ledger
from samples import page

R = TypeVar("R")
REFERENCE = PayloadRef(sha256="ab" * 32, size=1, media_type=None)
DAMAGED = Failure.of(FailureCode.DAMAGED)


@dataclass
class Database:
    """What the test sees of the tables."""

    engine: Engine

    def add_job(self, *, parts: int = 1, stage: Stage = Stage.READ, webhook: bool = False) -> list[UUID]:
        task = ReadDocument(REFERENCE, document_type=DocumentType.MIXED)
        with Session(self.engine) as session, session.begin():
            job = JobRow(
                id=new_id(),
                kind=task.kind,
                lane=Lane.NORMAL,
                task=task_to_json(task),
                task_digest="",
                payload=REFERENCE.sha256,
                idempotency_key=str(new_id()),
                client="test",
                total=parts if stage is Stage.READ else None,
                webhook={"url": "http://127.0.0.1/", "events": ["job.succeeded", "job.partial"]}
                if webhook
                else None,
            )
            rows = [
                PartRow(id=new_id(), job_id=job.id, stage=stage, ordinal=ordinal, lane=Lane.NORMAL, cost=1)
                for ordinal in range(parts)
            ]
            session.add(job)
            session.flush()
            session.add_all(rows)
            return [row.id for row in rows]

    def part(self, part: UUID) -> PartRow:
        with Session(self.engine) as session:
            return session.get_one(PartRow, part)

    def job_of(self, part: UUID) -> JobRow:
        with Session(self.engine) as session:
            return session.get_one(JobRow, session.get_one(PartRow, part).job_id)

    def all(self, table: type[R]) -> list[R]:
        with Session(self.engine) as session:
            return list(session.scalars(select(table)))

    def set_part(self, part: UUID, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(PartRow).where(PartRow.id == part).values(**values))


@dataclass
class Fleet:
    """Ledgers of several workers on one loop."""

    house: House
    told: list[dict[UUID, JobState]] = field(default_factory=list)

    def run(self, story: Callable[..., Awaitable[R]], *workers: str) -> R:
        return self.house.play(story, *workers, announce=self._hear)

    async def _hear(self, jobs: Any) -> None:
        self.told.append(dict(jobs))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    engine = create_engine(sqlalchemy_url(database_url))
    yield Database(engine)
    engine.dispose()


@pytest.fixture
def fleet(house: House) -> Fleet:
    return Fleet(house)


async def claim_and_commit(ledger: Ledger, part: UUID, outcome: Outcome) -> bool:
    return await committed(ledger, await claimed(ledger, part), outcome)


async def committed(ledger: Ledger, claim: ClaimedPart, outcome: Outcome) -> bool:
    return await ledger.commit(Finished(part=claim, outcome=outcome)) is not None


def test_a_claim_counts_the_attempt_and_hands_out_the_task(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()
    claim = fleet.run(lambda one: claimed(one, part), "one")
    assert (claim.attempt, claim.stage, claim.task.kind) == (1, Stage.READ, "document.read")
    row = database.part(part)
    assert (row.state, row.worker, row.attempt) == (PartState.RUNNING, "one", 1)
    assert database.job_of(part).state == JobState.RUNNING


def test_a_running_part_is_not_handed_out_again(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart | None:
        await claimed(one, part)
        return await two.claim(part)

    assert fleet.run(story, "one", "two") is None


def test_a_part_on_which_a_worker_died_runs_only_as_a_suspect(database: Database, fleet: Fleet) -> None:
    """A message of it may have gone back to its lane."""
    (part,) = database.add_job()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart:
        await claimed(one, part)
        assert await two.claim(part, deaths=1) is None, "it runs"
        await one.give_back([part], died_on=[part])
        assert await two.claim(part) is None
        return await claimed(two, part, deaths=1)

    claim = fleet.run(story, "one", "two")
    assert (claim.attempt, claim.deaths) == (2, 1)


def test_without_messages_the_first_lane_and_the_oldest_begin(database: Database, fleet: Fleet) -> None:
    later, normal, urgent, suspect, other_stage, not_due = (database.add_job()[0] for _ in range(6))
    now = datetime.now(UTC)
    database.set_part(later, run_at=now - timedelta(seconds=1))
    database.set_part(normal, run_at=now - timedelta(seconds=2))
    database.set_part(urgent, lane=Lane.URGENT)
    database.set_part(suspect, deaths=1, lane=Lane.URGENT)
    database.set_part(other_stage, stage=Stage.INGEST, lane=Lane.URGENT)
    database.set_part(not_due, run_at=now + timedelta(hours=1))

    async def story(one: Ledger) -> list[list[UUID]]:
        return [[part.id for part in await one.claim_waiting([Stage.READ], 2)] for _ in range(3)]

    assert fleet.run(story, "one") == [[urgent, normal], [later], []]
    assert database.part(urgent).worker == "one"


def test_the_commit_of_a_worker_that_was_overtaken_changes_nothing(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()

    async def story(one: Ledger, two: Ledger) -> list[bool]:
        stale = await claimed(one, part)
        await one.give_back([part])
        fresh = await claimed(two, part)
        return [
            await committed(one, stale, Done(page(text="stale"))),
            await committed(two, fresh, Done(page(text="fresh"))),
            await committed(one, stale, Done(page(text="stale"))),
        ]

    assert fleet.run(story, "one", "two") == [False, True, False]
    (result,) = database.all(ResultRow)
    assert Page.model_validate(result.content).text == "fresh"
    assert database.job_of(part).done == 1


def test_a_claim_whose_answer_was_lost_can_be_repeated(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()

    async def story(one: Ledger) -> ClaimedPart:
        await claimed(one, part)
        return await claimed(one, part)

    claim = fleet.run(story, "one")
    assert (claim.attempt, claim.deaths) == (2, 0)


def test_the_last_part_ends_the_job_and_promises_its_callback(database: Database, fleet: Fleet) -> None:
    parts = database.add_job(parts=3, webhook=True)

    begun = []

    async def story(one: Ledger) -> None:
        for number, part in enumerate(parts, 1):
            claim = await claimed(one, part)
            job = database.job_of(part)
            assert job.finished_at is None
            begun.append(job.started_at)
            await one.commit(Finished(part=claim, outcome=Done(page(number))))

    fleet.run(story, "one")

    job = database.job_of(parts[0])
    assert (job.state, job.total, job.done, job.failed) == (JobState.SUCCEEDED, 3, 3, 0)
    assert {*begun, job.started_at} == {begun[0]}
    (delivery,) = database.all(DeliveryRow)
    notice = JobNotice.model_validate(delivery.body)
    assert (notice.type, notice.data.job_id, notice.data.progress.done) == ("job.succeeded", job.id, 3)
    assert fleet.told[-1] == {job.id: JobState.SUCCEEDED}


def test_a_part_to_be_retried_waits_in_postgres_with_a_strike(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()
    failure = Failure.of(FailureCode.ENGINE_ERROR)
    fleet.run(lambda one: claim_and_commit(one, part, Failed(failure, timedelta(seconds=60))), "one")

    row = database.part(part)
    assert row.failure == failure.model_dump(mode="json")
    assert (row.state, row.strikes, row.published_at) == (PartState.QUEUED, 1, None)
    assert row.started_at is not None
    assert row.run_at - row.started_at > timedelta(seconds=59)
    assert database.job_of(part).state == JobState.RUNNING

    database.set_part(part, run_at=row.started_at)
    fleet.run(lambda one: claimed(one, part), "one")
    assert database.part(part).failure is None


def test_ingest_adds_the_parts_it_found_and_sets_the_total(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job(stage=Stage.INGEST)
    cut = Cut(Stage.READ, [NewPart(ordinal=0, cost=5, width=1, height=2), NewPart(ordinal=1, cost=6)])
    fleet.run(lambda one: claim_and_commit(one, part, cut), "one")

    found = {row.ordinal: row for row in database.all(PartRow) if row.stage == Stage.READ}
    assert {ordinal: (row.cost, row.width, row.state) for ordinal, row in found.items()} == {
        0: (5, 1, PartState.QUEUED),
        1: (6, None, PartState.QUEUED),
    }
    job = database.job_of(part)
    assert (job.total, job.done, job.state) == (2, 0, JobState.RUNNING)


def test_a_requeued_part_has_no_strike_and_no_death(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart:
        await claimed(one, part)
        await one.give_back([part])
        await one.give_back([part])
        return await claimed(two, part)

    claim = fleet.run(story, "one", "two")
    assert (claim.attempt, claim.strikes, claim.deaths) == (2, 0, 0)


def test_a_part_on_which_the_engine_died_counts_a_death(database: Database, fleet: Fleet) -> None:
    fatal, bystander = database.add_job(parts=2)

    async def story(one: Ledger, two: Ledger) -> list[ClaimedPart]:
        await claimed(one, fatal)
        await claimed(one, bystander)
        await one.give_back([fatal, bystander], died_on=[fatal])
        return [await claimed(two, fatal, deaths=1), await claimed(two, bystander)]

    claims = fleet.run(story, "one", "two")
    assert [(claim.strikes, claim.deaths) for claim in claims] == [(0, 1), (0, 0)]


def test_nobody_gives_back_what_another_worker_runs(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()

    async def story(one: Ledger, two: Ledger) -> None:
        await claimed(two, part)
        await one.give_back([part])

    fleet.run(story, "one", "two")
    assert (database.part(part).state, database.part(part).worker) == (PartState.RUNNING, "two")


def test_a_revoked_part_is_cancelled_and_may_end_its_job(database: Database, fleet: Fleet) -> None:
    done, revoked = database.add_job(parts=2)

    async def story(one: Ledger) -> bool:
        await claim_and_commit(one, done, Done(page()))
        claim = await claimed(one, revoked)
        await one.revoke(revoked)
        return await committed(one, claim, Done(page(2)))

    assert fleet.run(story, "one") is False
    job = database.job_of(done)
    assert (job.state, job.done, job.cancelled) == (JobState.PARTIAL, 1, 1)


def test_only_parts_that_were_cancelled_or_erased_are_withdrawn(database: Database, fleet: Fleet) -> None:
    running, cancelled = database.add_job(parts=2)

    async def story(one: Ledger) -> list[bool]:
        await claimed(one, running)
        await one.revoke(cancelled)
        return await asyncio.gather(*map(one.withdrawn, (running, cancelled, uuid4())))

    assert fleet.run(story, "one") == [False, True, True]


def test_every_transition_is_an_event(database: Database, fleet: Fleet) -> None:
    (part,) = database.add_job()
    fleet.run(lambda one: claim_and_commit(one, part, Failed(DAMAGED)), "one")
    events = sorted(database.all(JobEventRow), key=lambda event: event.sequence)
    assert [(event.part_id, event.state, event.actor, event.attempt, event.reason) for event in events] == [
        (None, "running", "one", None, None),
        (part, "running", "one", 1, None),
        (part, "failed", "one", 1, "damaged"),
        (None, "failed", "one", None, None),
    ]


def test_many_workers_that_commit_to_the_same_jobs_lose_no_count(database: Database, fleet: Fleet) -> None:
    parts = [part for _ in range(5) for part in database.add_job(parts=40)]

    async def story(*ledgers: Ledger) -> None:
        await asyncio.gather(
            *[
                claim_and_commit(ledgers[index % len(ledgers)], part, Done(page()))
                for index, part in enumerate(sorted(parts, key=str))
            ]
        )

    fleet.run(story, "one", "two", "three")
    jobs = database.all(JobRow)
    assert [(job.state, job.done) for job in jobs] == [(JobState.SUCCEEDED, 40)] * 5
    assert len(database.all(ResultRow)) == len(parts)
