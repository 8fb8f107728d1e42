"""Claim, commit and give-back against real Postgres: who owns a part, and what a commit may change."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from pecia.client import Client
from pecia_schemas.events import JobNotice
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Page
from pecia_schemas.states import JobState, PartState, Stage
from pecia_schemas.tasks import ReadDocument
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Finished, NewPart, Outcome, Postponed
from tests.shared.fixture_types import Picture
from tests.shared.house import House, claimed
from tests.shared.samples import page
from tests.shared.tables import Tables

Add = Callable[..., list[UUID]]
Run = Callable[..., Any]


@pytest.fixture
def announced() -> list[dict[UUID, JobState]]:
    """The ends of jobs that ledgers announced."""
    return []


@pytest.fixture
def run(house: House, announced: list[dict[UUID, JobState]]) -> Run:
    """Runs a story with the ledgers of as many workers as it names."""

    async def hear(jobs: Any) -> None:
        announced.append(dict(jobs))

    return partial(house.play, announce=hear)


@pytest.fixture
def add(tables: Tables) -> Add:
    """Adds a job, and returns its parts."""
    return lambda **about: [part["id"] for part in tables.parts(tables.add_job(**about))]


async def claim_and_commit(ledger: Ledger, part: UUID, outcome: Outcome) -> bool:
    return await committed(ledger, await claimed(ledger, part), outcome)


async def committed(ledger: Ledger, claim: ClaimedPart, outcome: Outcome) -> bool:
    return await ledger.commit(Finished(part=claim, outcome=outcome)) is not None


def test_a_claim_counts_the_attempt_and_hands_out_the_task(
    client: Client, picture: Picture, house: House, tables: Tables, run: Run
) -> None:
    part = house.part_of(client.submit(ReadDocument(picture())))
    claim = run(lambda one: claimed(one, part), "one")
    assert (claim.attempt, claim.stage, claim.task.kind) == (1, Stage.READ, "document.read")
    row = tables.part(part)
    assert (row["state"], row["worker"], row["attempt"]) == (PartState.RUNNING, "one", 1)
    assert tables.job(row["job_id"])["state"] == JobState.RUNNING


def test_what_one_worker_runs_no_other_is_handed_or_gives_back(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart | None:
        await claimed(one, part)
        await two.requeue([part])
        return await two.claim(part)

    assert run(story, "one", "two") is None
    assert (tables.part(part)["state"], tables.part(part)["worker"]) == (PartState.RUNNING, "one")


def test_a_part_on_which_a_worker_died_runs_only_as_a_suspect(add: Add, run: Run) -> None:
    """A message of it may have gone back to its lane."""
    (part,) = add()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart:
        await claimed(one, part)
        assert await two.claim(part, deaths=1) is None, "it runs"
        await one.requeue([part], died_on=[part])
        assert await two.claim(part) is None
        return await claimed(two, part, deaths=1)

    claim = run(story, "one", "two")
    assert (claim.attempt, claim.deaths) == (2, 1)


def test_without_messages_the_first_lane_and_the_oldest_begin(tables: Tables, add: Add, run: Run) -> None:
    later, normal, urgent, suspect, other_stage, not_due = (add()[0] for _ in range(6))
    tables.query("UPDATE parts SET run_at = now() - interval '1 second' WHERE id = %s", later)
    tables.query("UPDATE parts SET run_at = now() - interval '2 seconds' WHERE id = %s", normal)
    tables.query("UPDATE parts SET lane = 'urgent' WHERE id = ANY(%s)", [urgent, suspect, other_stage])
    tables.query("UPDATE parts SET deaths = 1 WHERE id = %s", suspect)
    tables.query("UPDATE parts SET stage = 'ingest' WHERE id = %s", other_stage)
    tables.query("UPDATE parts SET run_at = now() + interval '1 hour' WHERE id = %s", not_due)

    async def story(one: Ledger) -> list[list[UUID]]:
        return [[part.id for part in await one.claim_waiting([Stage.READ], 2)] for _ in range(3)]

    assert run(story, "one") == [[urgent, normal], [later], []]
    assert tables.part(urgent)["worker"] == "one"


def test_the_commit_of_an_overtaken_worker_changes_nothing(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add()

    async def story(one: Ledger, two: Ledger) -> list[bool]:
        stale = await claimed(one, part)
        await one.requeue([part])
        fresh = await claimed(two, part)
        return [
            await committed(one, stale, Done(page(text="stale"))),
            await committed(two, fresh, Done(page(text="fresh"))),
            await committed(one, stale, Done(page(text="stale"))),
        ]

    assert run(story, "one", "two") == [False, True, False]
    (result,) = tables.query("SELECT content FROM results")
    assert Page.model_validate(result["content"]).text == "fresh"
    assert tables.job(tables.part(part)["job_id"])["done"] == 1


def test_a_claim_whose_answer_was_lost_can_be_repeated(add: Add, run: Run) -> None:
    (part,) = add()

    async def story(one: Ledger) -> ClaimedPart:
        await claimed(one, part)
        return await claimed(one, part)

    claim = run(story, "one")
    assert (claim.attempt, claim.deaths) == (2, 0)


def test_the_last_part_ends_the_job_and_promises_its_callback(
    tables: Tables, add: Add, run: Run, announced: list[dict[UUID, JobState]]
) -> None:
    parts = add(parts=3, webhook=True)

    begun = []

    async def story(one: Ledger) -> None:
        for number, part in enumerate(parts, 1):
            claim = await claimed(one, part)
            job = tables.job(tables.part(part)["job_id"])
            assert job["finished_at"] is None
            begun.append(job["started_at"])
            await one.commit(Finished(part=claim, outcome=Done(page(number))))

    run(story, "one")

    job = tables.job(tables.part(parts[0])["job_id"])
    assert (job["state"], job["total"], job["done"], job["failed"]) == (JobState.SUCCEEDED, 3, 3, 0)
    assert {*begun, job["started_at"]} == {begun[0]}
    (delivery,) = tables.query("SELECT body FROM deliveries")
    notice = JobNotice.model_validate(delivery["body"])
    assert (notice.type, notice.data.job_id, notice.data.progress.done) == ("job.succeeded", job["id"], 3)
    assert announced[-1] == {job["id"]: JobState.SUCCEEDED}


def test_a_part_to_be_retried_waits_in_postgres_with_a_strike(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add()
    failure = Failure.of(FailureCode.ENGINE_ERROR)
    run(lambda one: claim_and_commit(one, part, Failed(failure, timedelta(seconds=60))), "one")

    row = tables.part(part)
    assert row["failure"] == failure.model_dump(mode="json")
    assert (row["state"], row["strikes"], row["published_at"]) == (PartState.QUEUED, 1, None)
    assert row["started_at"] is not None
    assert row["run_at"] - row["started_at"] > timedelta(seconds=59)
    assert tables.job(tables.part(part)["job_id"])["state"] == JobState.RUNNING

    tables.query("UPDATE parts SET run_at = started_at")
    run(lambda one: claimed(one, part), "one")
    assert tables.part(part)["failure"] is None


def test_ingest_adds_the_parts_it_found_and_sets_the_total(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add(stage="ingest")
    cut = Cut(Stage.READ, [NewPart(ordinal=0, cost=5, width=1, height=2), NewPart(ordinal=1, cost=6)])
    run(lambda one: claim_and_commit(one, part, cut), "one")

    rows = tables.query("SELECT ordinal, cost, width, state FROM parts WHERE stage = 'read' ORDER BY ordinal")
    assert [tuple(row.values()) for row in rows] == [(0, 5, 1, "queued"), (1, 6, None, "queued")]
    job = tables.job(tables.part(part)["job_id"])
    assert (job["total"], job["done"], job["state"]) == (2, 0, JobState.RUNNING)


def test_a_requeued_part_has_no_strike_and_no_death(add: Add, run: Run) -> None:
    (part,) = add()

    async def story(one: Ledger, two: Ledger) -> ClaimedPart:
        await claimed(one, part)
        await one.requeue([part])
        await one.requeue([part])
        return await claimed(two, part)

    claim = run(story, "one", "two")
    assert (claim.attempt, claim.strikes, claim.deaths) == (2, 0, 0)


def test_a_part_on_which_the_engine_died_counts_a_death(add: Add, run: Run) -> None:
    fatal, bystander = add(parts=2)

    async def story(one: Ledger, two: Ledger) -> list[ClaimedPart]:
        await claimed(one, fatal)
        await claimed(one, bystander)
        await one.requeue([fatal, bystander], died_on=[fatal])
        return [await claimed(two, fatal, deaths=1), await claimed(two, bystander)]

    claims = run(story, "one", "two")
    assert [(claim.strikes, claim.deaths) for claim in claims] == [(0, 1), (0, 0)]


def test_a_revoked_part_is_cancelled_and_may_end_its_job(tables: Tables, add: Add, run: Run) -> None:
    done, revoked = add(parts=2)

    async def story(one: Ledger) -> bool:
        await claim_and_commit(one, done, Done(page()))
        claim = await claimed(one, revoked)
        await one.revoke(revoked)
        return await committed(one, claim, Done(page(2)))

    assert run(story, "one") is False
    job = tables.job(tables.part(done)["job_id"])
    assert (job["state"], job["done"], job["cancelled"]) == (JobState.PARTIAL, 1, 1)


def test_only_parts_that_were_cancelled_or_erased_are_withdrawn(add: Add, run: Run) -> None:
    running, cancelled = add(parts=2)

    async def story(one: Ledger) -> list[bool]:
        await claimed(one, running)
        await one.revoke(cancelled)
        return await asyncio.gather(*map(one.withdrawn, (running, cancelled, uuid4())))

    assert run(story, "one") == [False, True, True]


def test_every_transition_is_an_event(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add()
    run(lambda one: claim_and_commit(one, part, Failed(Failure.of(FailureCode.DAMAGED))), "one")
    events = tables.query("SELECT part_id, state, actor, attempt, reason FROM job_events ORDER BY sequence")
    assert [tuple(event.values()) for event in events] == [
        (None, "running", "one", None, None),
        (part, "running", "one", 1, None),
        (part, "failed", "one", 1, "damaged"),
        (None, "failed", "one", None, None),
    ]


def test_many_workers_that_commit_to_the_same_jobs_lose_no_count(tables: Tables, add: Add, run: Run) -> None:
    parts = [part for _ in range(5) for part in add(parts=40)]

    async def story(*ledgers: Ledger) -> None:
        await asyncio.gather(
            *[
                claim_and_commit(ledgers[index % len(ledgers)], part, Done(page()))
                for index, part in enumerate(sorted(parts, key=str))
            ]
        )

    run(story, "one", "two", "three")
    assert tables.query("SELECT state, done FROM jobs") == [{"state": "succeeded", "done": 40}] * 5
    assert len(tables.query("SELECT part_id FROM results")) == len(parts)


def test_a_postponed_part_comes_back_later_without_a_strike(tables: Tables, add: Add, run: Run) -> None:
    (part,) = add()
    assert run(lambda one: claim_and_commit(one, part, Postponed(timedelta(hours=1))), "one")
    row = tables.part(part)
    assert (row["state"], row["strikes"], row["failure"], row["published_at"]) == ("queued", 0, None, None)
    assert run(lambda one: one.claim(part), "one") is None
    events = tables.query("SELECT reason FROM job_events WHERE part_id = %s ORDER BY sequence", part)
    assert events[-1]["reason"] == "postponed"


def test_a_document_whose_parts_time_out_in_the_decoder_is_given_up_on_every_worker(
    tables: Tables, add: Add, run: Run, announced: list[dict[UUID, JobState]]
) -> None:
    late = Failed(Failure.of(FailureCode.DECODE_TIMEOUT, "Decoding did not end within 60 s."))
    parts, (other,) = add(parts=6), add()
    job = tables.part(parts[0])["job_id"]

    async def story(one: Ledger, two: Ledger) -> bool:
        await claim_and_commit(two, parts[0], Done(page()))
        running = await claimed(two, parts[4])
        for part in parts[1:3]:
            await claim_and_commit(one, part, late)
            assert tables.part(parts[5])["state"] == PartState.QUEUED
        await claim_and_commit(two, parts[3], late)
        return await committed(two, running, Done(page()))

    assert not run(story, "one", "two")
    ended = [tables.part(part) for part in parts]
    assert [row["state"] for row in ended] == ["done", *["failed"] * 5]
    assert {row["failure"]["code"] for row in ended[1:]} == {"decode_timeout"}
    assert ended[5]["failure"]["message"].startswith("Three parts of this document did not decode in time.")
    assert (ended[4]["failure"]["attempt"], ended[5]["failure"]["attempt"]) == (1, 0)
    assert (tables.job(job)["state"], tables.job(job)["failed"]) == (JobState.PARTIAL, 5)
    assert {job: JobState.PARTIAL} in announced
    assert tables.part(other)["state"] == PartState.QUEUED
