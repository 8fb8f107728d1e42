"""Whatever order clients, workers, operators and upkeep move in, the ledger's books balance after every step."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, ReadDocument, Segment, Summary, Task
from pecia.errors import InvalidOptionError, RetryRefusedError
from pecia.job import AnyJob
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Page, Verdict
from pecia_schemas.states import JobState, PartState, Stage
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import expire_jobs, requeue_orphaned
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Finished, NewPart, Outcome
from tests.shared.fixture_types import Picture
from tests.shared.house import hear_nothing

pytestmark = pytest.mark.gate

R = TypeVar("R")
Rows = list[dict[str, Any]]

WORKERS = ("one", "two")
ENDS = ("done", "done", "failed", "given up", "retry")
PDF_TO_BE = b"%PDF-1.4"

VIDEO_TO_BE = CaptionVideo(b"\0\0\0\x18ftypmp42")

_HOW: dict[str, Any] = {"text": "", "verdict": Verdict.OK, "engine": "test"}
_CONTENTS: dict[Stage, Page | Segment | Summary] = {
    Stage.READ: Page(number=1, width=1, height=1, **_HOW),
    Stage.CAPTION: Segment(
        number=1, start=timedelta(0), end=timedelta(1), frames=1, width=1, height=1, **_HOW
    ),
    Stage.SUMMARIZE: Summary(**_HOW),
}
_OVER = {state for state in JobState if state.is_terminal}
_LEGAL: dict[str, Collection[str]] = {
    # Queued by a retry, the last part may be revoked, or poison its worker, before the job is seen to run.
    JobState.QUEUED: {JobState.RUNNING} | _OVER - {JobState.SUCCEEDED},
    JobState.RUNNING: _OVER,
    JobState.SUCCEEDED: (),
    **{state: {JobState.QUEUED} for state in _OVER - {JobState.SUCCEEDED}},
}
_LEGAL_FOR_PARTS: dict[str, Collection[str]] = {
    PartState.HELD: {PartState.QUEUED, PartState.CANCELLED},
    PartState.QUEUED: {PartState.RUNNING, PartState.CANCELLED},
    # Running again: taken over from a worker that lost its lease.
    PartState.RUNNING: set(PartState) - {PartState.HELD},
    PartState.DONE: {PartState.HELD},  # a summary, if segments it left out are tried again
    PartState.FAILED: {PartState.HELD, PartState.QUEUED},
    PartState.CANCELLED: {PartState.HELD, PartState.QUEUED},
}


class Books:
    """The rows of some jobs, and what must be true of them at any time."""

    def __init__(self, connection: psycopg.Connection[Any], job_ids: list[UUID]) -> None:
        self._connection = connection
        self._ids = job_ids

    def query(self, statement: LiteralString, *values: object) -> Rows:
        cursor = self._connection.cursor(row_factory=dict_row)
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def jobs(self) -> Rows:
        return self.query("SELECT * FROM jobs WHERE id = ANY(%s)", self._ids)

    def parts(self) -> Rows:
        return self.query("SELECT * FROM parts WHERE job_id = ANY(%s) ORDER BY id", self._ids)

    def check(self) -> None:
        with self._connection.transaction():
            self.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            parts = self.parts()
            events = self.query(
                "SELECT * FROM job_events WHERE job_id = ANY(%s) ORDER BY sequence", self._ids
            )
            for job in self.jobs():
                own = [part for part in parts if part["job_id"] == job["id"]]
                _counters_equal_their_parts(job, own)
                _job_is_over_exactly_if_its_parts_are(job, own)
                _a_summary_waits_for_its_segments(own)
                _events_lead_to(job, own, [event for event in events if event["job_id"] == job["id"]])
            erased = {job["id"] for job in self.jobs() if job["erased_at"]}
            kept = [part for part in parts if part["job_id"] not in erased]
            self._every_done_part_has_one_result_and_no_other_has_any(kept)
            self._every_end_promised_one_callback(
                [event for event in events if event["job_id"] not in erased]
            )

    def _every_done_part_has_one_result_and_no_other_has_any(self, parts: Rows) -> None:
        """None of a purged job: nothing that ends later brings one back."""
        results = self.query("SELECT part_id, attempt FROM results WHERE job_id = ANY(%s)", self._ids)
        done = [part for part in parts if part["state"] == PartState.DONE and part["stage"] != Stage.INGEST]
        assert sorted((result["part_id"], result["attempt"]) for result in results) == [
            (part["id"], part["attempt"]) for part in done
        ]

    def _every_end_promised_one_callback(self, events: Rows) -> None:
        promised = self.query("SELECT job_id, type FROM deliveries WHERE job_id = ANY(%s)", self._ids)
        assert Counter((row["job_id"], row["type"]) for row in promised) == Counter(
            (event["job_id"], f"job.{event['state']}")
            for event in events
            if event["part_id"] is None and event["state"] in _OVER
        )


def _counters_equal_their_parts(job: dict[str, Any], parts: Rows) -> None:
    pieces = [part for part in parts if part["stage"] != Stage.INGEST]
    states = Counter(part["state"] for part in pieces)
    counted = {state: job[state] for state in ("done", "failed", "cancelled")}
    assert counted == {state: states[state] for state in counted}
    assert job["total"] in ((len(pieces),) if pieces else (None, 0))


def _job_is_over_exactly_if_its_parts_are(job: dict[str, Any], parts: Rows) -> None:
    over = all(PartState(part["state"]).is_terminal for part in parts)
    assert JobState(job["state"]).is_terminal is over is (job["finished_at"] is not None)
    assert (job["state"] == JobState.FAILED) is (job["failure"] is not None)
    assert job["state"] != JobState.SUCCEEDED or job["done"] == job["total"] > 0


def _a_summary_waits_for_its_segments(parts: Rows) -> None:
    segments = [PartState(part["state"]) for part in parts if part["stage"] == Stage.CAPTION]
    for summary in (part for part in parts if part["stage"] == Stage.SUMMARIZE):
        if summary["state"] in (PartState.HELD, PartState.QUEUED, PartState.RUNNING, PartState.DONE):
            held = summary["state"] == PartState.HELD
            assert all(segment.is_terminal for segment in segments) is not held
            assert held or PartState.DONE in segments


def _events_lead_to(job: dict[str, Any], parts: Rows, events: Rows) -> None:
    told = [event["state"] for event in events if event["part_id"] is None]
    assert told[0] == JobState.QUEUED
    _check_story(told, job["state"], _LEGAL)
    for part in parts:
        told = [event["state"] for event in events if event["part_id"] == part["id"]]
        first = PartState.HELD if part["stage"] == Stage.SUMMARIZE else PartState.QUEUED
        _check_story([first, *told], part["state"], _LEGAL_FOR_PARTS)
        if part["stage"] != Stage.SUMMARIZE:
            assert PartState.DONE not in told[:-1]


def _check_story(story: list[str], state: str, legal: dict[str, Collection[str]]) -> None:
    for former, latter in pairwise(story):
        assert latter in legal[former], f"{former} -> {latter}"
    assert story[-1] == state


class OneAfterTheOther(RuleBasedStateMachine):
    """Two workers and two jobs: one of a single page, and one that has to be cut first."""

    database_url: str
    redis_url: str
    picture: bytes

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.client = Client(self.database_url, self.redis_url, self.directory.name)
        self.loop = asyncio.new_event_loop()
        self.database = open_database(self.database_url)
        self.ledgers = {name: Ledger(self.database, name, announce=hear_nothing) for name in WORKERS}
        self.claims: list[tuple[str, ClaimedPart]] = []
        self.connection = psycopg.connect(self.database_url, autocommit=True)

    def teardown(self) -> None:
        self.run(self.database.dispose())
        self.loop.close()
        self.connection.close()
        self.client.close()
        self.directory.cleanup()

    def run(self, step: Coroutine[Any, Any, R]) -> R:
        return self.loop.run_until_complete(step)

    @initialize()
    def submit(self) -> None:
        self.jobs = _submit(self.client, ReadDocument(self.picture), ReadDocument(PDF_TO_BE))
        self.books = Books(self.connection, [job.id for job in self.jobs])

    @rule(worker=st.sampled_from(WORKERS), pick=st.integers(0, 4), deaths=st.integers(0, 3))
    def claim(self, worker: str, pick: int, deaths: int) -> None:
        parts = self.books.parts()
        self._claim(worker, parts[pick % len(parts)]["id"], deaths)

    def _claim(self, worker: str, part: UUID, deaths: int = 0) -> None:
        if claim := self.run(self.ledgers[worker].claim(part, deaths)):
            self.claims.append((worker, claim))

    @rule(pick=st.integers(0, 9), end=st.sampled_from(ENDS), pages=st.integers(1, 3))
    def commit(self, pick: int, end: str, pages: int) -> None:
        """Commit a claim, perhaps one that was overtaken long ago, perhaps for the second time."""
        if not self.claims:
            return
        worker, claim = self.claims[pick % len(self.claims)]
        now = next(part for part in self.books.parts() if part["id"] == claim.id)
        is_ours = (now["state"], now["worker"], now["attempt"]) == ("running", worker, claim.attempt)
        finished = Finished(part=claim, outcome=_outcome(claim, end, pages))
        assert (self.run(self.ledgers[worker].commit(finished)) is not None) is is_ours

    @rule(worker=st.sampled_from(WORKERS), end=st.sampled_from(ENDS), pages=st.integers(1, 3))
    def commit_together(self, worker: str, end: str, pages: int) -> None:
        """Claim anew what a worker runs, then commit all that it ever claimed in one group: both attempts among it."""
        for part in self.books.parts():
            if (part["state"], part["worker"]) == ("running", worker):
                self._claim(worker, part["id"])
        claims = [claim for owner, claim in self.claims if owner == worker]
        now = {part["id"]: (part["state"], part["worker"], part["attempt"]) for part in self.books.parts()}
        ours = [now[claim.id] == ("running", worker, claim.attempt) for claim in claims]
        assert self.run(self._commit_together(self.ledgers[worker], claims, end, pages)) == ours

    async def _commit_together(
        self, ledger: Ledger, claims: list[ClaimedPart], end: str, pages: int
    ) -> list[bool]:
        group = [Finished(part=claim, outcome=_outcome(claim, end, pages)) for claim in claims]
        return [outcome is not None for outcome in await asyncio.gather(*map(ledger.commit, group))]

    @rule(worker=st.sampled_from(WORKERS), pick=st.integers(0, 9))
    def requeue(self, worker: str, pick: int) -> None:
        if self.claims:
            part = self.claims[pick % len(self.claims)][1].id
            self.run(self.ledgers[worker].requeue([part]))

    @rule(worker=st.sampled_from(WORKERS), pick=st.integers(0, 9))
    def lose_the_engine(self, worker: str, pick: int) -> None:
        if self.claims:
            part = self.claims[pick % len(self.claims)][1].id
            self.run(self.ledgers[worker].requeue([part], died_on=[part]))

    @rule(pick=st.integers(0, 4))
    def revoke(self, pick: int) -> None:
        parts = self.books.parts()
        self.run(self.ledgers["one"].revoke(parts[pick % len(parts)]["id"]))

    @rule(pick=st.integers(0, 1))
    def cancel(self, pick: int) -> None:
        self.jobs[pick % len(self.jobs)].cancel()

    @rule(pick=st.integers(0, 1))
    def retry(self, pick: int) -> None:
        with suppress(RetryRefusedError):
            self.jobs[pick % len(self.jobs)].retry()

    @rule(pick=st.integers(0, 9))
    def retry_dead(self, pick: int) -> None:
        _retry_dead(self.client, pick)

    @rule(pick=st.integers(0, 9))
    def purge(self, pick: int) -> None:
        """Seldom: nothing happens to a job after it."""
        if pick == len(self.jobs):
            self.client.purge([self.jobs[-1]])

    @rule(pick=st.integers(0, 1))
    def expire(self, pick: int) -> None:
        self.books.query(
            "UPDATE jobs SET expires_at = now() WHERE id = %s", self.jobs[pick % len(self.jobs)].id
        )
        self.run(expire_jobs(self.database, limit=100, notify=hear_nothing))

    @rule()
    def lose_the_workers(self) -> None:
        self.run(_requeue_all(self.database, self.books.parts()))

    @invariant()
    def the_books_balance(self) -> None:
        self.books.check()


class WithASummary(OneAfterTheOther):
    """Two workers and a video of two segments, which are cut and both running at the start."""

    @initialize()
    def submit(self) -> None:
        self.jobs = _submit(self.client, VIDEO_TO_BE)
        self.books = Books(self.connection, [job.id for job in self.jobs])
        self._claim_all("one")
        _, ingest = self.claims.pop()
        segments = [NewPart(ordinal=ordinal, cost=1) for ordinal in range(2)]
        cut = Cut(Stage.CAPTION, segments, (Stage.SUMMARIZE, NewPart(ordinal=2, cost=1)))
        assert self.run(self.ledgers["one"].commit(Finished(part=ingest, outcome=cut)))
        self._claim_all("two")
        assert len(self.claims) == len(segments), "the summary did not wait"

    def _claim_all(self, worker: str) -> None:
        for part in self.books.parts():
            self._claim(worker, part["id"])


@pytest.mark.parametrize("story", [OneAfterTheOther, WithASummary])
def test_the_books_balance_after_every_step(
    database_url: str, redis_url: str, picture: Picture, story: type[OneAfterTheOther]
) -> None:
    stores = {"database_url": database_url, "redis_url": redis_url, "picture": picture()}
    run_state_machine_as_test(
        type(story.__name__, (story,), stores), settings=settings(stateful_step_count=30, database=None)
    )


@dataclass
class AllAtOnce:
    """Workers, clients and upkeep that move the same few jobs at random, without regard for each other."""

    _database: AsyncEngine
    _client: Client
    _jobs: list[AnyJob]
    _parts: Callable[[], Rows]

    async def work(self, name: str, rounds: int) -> None:
        """Claim groups in a random order, then commit, give back or forget."""
        ledger, dice = Ledger(self._database, name, announce=hear_nothing), random.Random(name)  # noqa: S311
        for _ in range(rounds):
            parts = await asyncio.to_thread(self._parts)
            asked = [
                ledger.claim(part["id"], dice.randrange(4))
                for part in dice.sample(parts, k=min(8, len(parts)))
            ]
            claims = [claim for claim in await asyncio.gather(*asked) if claim]
            unfinished = [claim.id for claim in claims if dice.random() < 0.2]
            await ledger.requeue(unfinished, died_on=[part for part in unfinished if dice.random() < 0.5])
            ends = [_outcome(claim, dice.choice((*ENDS, *["retry"] * 6)), 12) for claim in claims]
            await asyncio.gather(
                *[
                    ledger.commit(Finished(part=claim, outcome=outcome))
                    for claim, outcome in zip(claims, ends, strict=True)
                    if dice.random() < 0.8
                ]
            )

    async def interfere(self, seed: str, rounds: int) -> None:
        """Cancel, retry, retry what is dead, revoke, expire, and lose the workers."""
        ledger, dice = Ledger(self._database, seed, announce=hear_nothing), random.Random(seed)  # noqa: S311
        for _ in range(rounds):
            job = dice.choice(self._jobs)
            await dice.choice(
                [
                    lambda: asyncio.to_thread(job.cancel),  # noqa: B023  runs at once
                    lambda: asyncio.to_thread(_retry, job),  # noqa: B023
                    lambda: asyncio.to_thread(_retry, job),  # noqa: B023
                    lambda: asyncio.to_thread(_retry_dead, self._client, dice.randrange(10)),
                    lambda: self._revoke(ledger, dice),
                    lambda: expire_jobs(self._database, limit=100, notify=hear_nothing),
                    self._lose_the_workers,
                ]
            )()

    async def _revoke(self, ledger: Ledger, dice: random.Random) -> None:
        parts = await asyncio.to_thread(self._parts)
        await ledger.revoke(dice.choice(parts)["id"])

    async def _lose_the_workers(self) -> None:
        await _requeue_all(self._database, await asyncio.to_thread(self._parts))


def test_the_books_balance_and_nobody_waits_in_a_circle_when_all_move_at_once(
    database_url: str, redis_url: str, payload_url: str, picture: Picture
) -> None:
    connected = partial(psycopg.connect, database_url, autocommit=True)
    with connected() as watching, Client(database_url, redis_url, payload_url) as client:
        documents = [ReadDocument(PDF_TO_BE)] * 3
        jobs = _submit(client, ReadDocument(picture()), *documents, *[VIDEO_TO_BE] * 3)
        books = Books(watching, [job.id for job in jobs])

        def parts() -> Rows:
            with connected() as connection:
                return Books(connection, [job.id for job in jobs]).parts()

        async def story() -> None:
            database = open_database(database_url, connections=8)
            crowd = AllAtOnce(database, client, jobs, parts)
            workers = [crowd.work(name, rounds=150) for name in ("one", "two", "three")]
            try:
                await asyncio.gather(
                    *workers, *[crowd.interfere(seed, rounds=300) for seed in ("a", "b", "c")]
                )
            finally:
                await database.dispose()

        asyncio.run(story())

        books.check()
        (statistics,) = books.query(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert statistics["deadlocks"] == 0


def _submit(client: Client, *tasks: Task[Any]) -> list[AnyJob]:
    return [client.submit(task, webhook="https://a.example/", expires=timedelta(hours=1)) for task in tasks]


def _retry(job: AnyJob) -> None:
    with suppress(RetryRefusedError):
        job.retry()


def _retry_dead(client: Client, pick: int) -> None:
    """Try one of the dead parts again, if there is any; another client may be faster."""
    if dead := client.dead_parts():
        with suppress(RetryRefusedError, InvalidOptionError):
            client.retry_dead([dead[pick % len(dead)]])


async def _requeue_all(database: AsyncEngine, parts: Rows) -> None:
    """Declare every part orphaned: no worker is registered here."""
    orphaned = [(part["id"], part["attempt"]) for part in parts]
    await requeue_orphaned(database, orphaned, max_deaths=2)


def _outcome(claim: ClaimedPart, end: str, pages: int) -> Outcome:
    if end == "failed":
        return Failed(Failure.of(FailureCode.DAMAGED))
    if end == "given up":
        return Failed(Failure.of(FailureCode.ENGINE_ERROR))
    if end == "retry":
        return Failed(Failure.of(FailureCode.ENGINE_ERROR), timedelta())
    if claim.stage is Stage.INGEST:
        return _cut(claim, [NewPart(ordinal=ordinal, cost=1) for ordinal in range(pages)])
    return Done(_CONTENTS[claim.stage])


def _cut(claim: ClaimedPart, parts: list[NewPart]) -> Cut:
    if claim.kind == ReadDocument.kind:
        return Cut(Stage.READ, parts)
    summary = NewPart(ordinal=len(parts), cost=1)
    return Cut(Stage.CAPTION, parts, (Stage.SUMMARIZE, summary) if len(parts) > 1 else None)
