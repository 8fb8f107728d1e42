"""Postgres fails the fleet's writes, by every class of SQLSTATE and at every place: what waits, and what fails."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, LiteralString, TypeVar
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from pecia import (
    AsyncClient,
    Client,
    ConfigurationError,
    DatabaseRefusedError,
    DatabaseUnavailableError,
    Job,
    PeciaError,
    ReadDocument,
    SubmitError,
    SubmitManyError,
)
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Document
from pecia_schemas.states import JobState
from pecia_workers.ledger import ledger
from pecia_workers.ledger.database import OUTAGE
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.protocol.parts import ClaimedPart, Done, Failed, Finished, Outcome
from tests.shared.failing_writes import PATIENT, fail_writes, let_writes_pass
from tests.shared.fixture_types import Picture
from tests.shared.house import House, claimed, hear_nothing
from tests.shared.limits import until
from tests.shared.samples import page

R = TypeVar("R")

TRANSIENT: Final = ("08006", "25006", "25P03", "40001", "53100", "55P03", "57014", "57P01", "58030")
REFUSED: Final = ("21000", "22003", "23514", "42804", "54000", "P0001", "XX000")
FAULTS: Final = ("42501", "42P01")

PLACES: Final[dict[str, tuple[LiteralString, LiteralString]]] = {
    "the part": ("UPDATE ON parts", "NEW.id"),
    "its event": ("INSERT ON job_events", "NEW.part_id"),
    "its result": ("INSERT ON results", "NEW.part_id"),
    "the cache": ("INSERT ON result_cache", "NEW.part_id"),
    "its job": ("UPDATE ON jobs", "(SELECT id FROM parts WHERE job_id = NEW.id)"),
    "its callback": ("INSERT ON deliveries", "(SELECT id FROM parts WHERE job_id = NEW.job_id)"),
}
"""Where a commit writes, and which part a row there is about."""


Submit = Callable[..., Job[Document]]


class Books(House):
    """The stores, as Postgres fails them and the test reads them."""

    def fail(
        self, place: tuple[LiteralString, LiteralString], sqlstate: str, *, times: int, part: UUID | None
    ) -> None:
        """Have what is written there about a part, or about any, fail the next times."""
        where, about = place
        row = (
            sql.SQL("true") if part is None else sql.SQL("{} = {}").format(sql.SQL(about), sql.Literal(part))
        )
        fail_writes(self.database_url, where, sqlstate, times=times, row=row)

    @property
    def failures(self) -> int:
        """How often the trigger raised, or could have."""
        ((last, called),) = self.query("SELECT last_value, is_called FROM failed")
        return int(last) if called else 0

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make the database what a demoted primary is. Sessions that are opened meanwhile stay read-only for life."""
        name = sql.Identifier(str(conninfo_to_dict(self.database_url)["dbname"]))
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
            )
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            yield
            connection.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))


@pytest.fixture
def books(house: House) -> Iterator[Books]:
    yield Books(house.database_url, house.redis_url, house.payload_url, house.spool)
    let_writes_pass(house.database_url)


@pytest.fixture
def submit(client: Client, picture: Picture) -> Submit:
    """Submits a picture whose job promises a callback."""

    def run(**options: Any) -> Job[Document]:
        return client.submit(ReadDocument(picture()), webhook="https://hook.example/", **options)

    return run


async def commit(ledger: Ledger, claim: ClaimedPart) -> Outcome | None:
    outcome = Done(page(text="hello"), cache_key=claim.id.bytes)
    return await ledger.commit(Finished(part=claim, outcome=outcome))


async def commit_together(ledger: Ledger, parts: list[UUID], arm: Callable[[], None]) -> list[Outcome | None]:
    """Commit all parts in one group, in which something fails."""
    claims = [await claimed(ledger, part) for part in parts]
    await asyncio.to_thread(arm)
    return await asyncio.gather(*[commit(ledger, claim) for claim in claims])


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
def test_finished_work_is_committed_after_what_is_transient_and_after_a_fault_that_is_mended(
    place: tuple[LiteralString, LiteralString], books: Books, submit: Submit
) -> None:
    async def story(one: Ledger) -> None:
        for sqlstate in TRANSIENT + FAULTS:
            jobs = [submit(), submit()]
            parts = [books.part_of(job) for job in jobs]

            def fail(sqlstate: str = sqlstate, part: UUID = parts[1]) -> None:
                books.fail(place, sqlstate, times=2, part=part)

            outcomes = await commit_together(one, parts, fail)
            assert [type(outcome) for outcome in outcomes] == [Done, Done], sqlstate
            assert books.failures > 2, sqlstate
            assert {job.refresh().state for job in jobs} == {JobState.SUCCEEDED}, sqlstate
            assert not OUTAGE.is_on

    books.play(story)


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
def test_what_is_refused_fails_its_part_alone_with_the_sqlstate_in_its_event(
    place: tuple[LiteralString, LiteralString], books: Books, submit: Submit
) -> None:
    async def story(one: Ledger) -> None:
        for sqlstate in REFUSED:
            jobs = [submit() for _ in range(4)]
            parts = [books.part_of(job) for job in jobs]

            def fail(sqlstate: str = sqlstate, part: UUID = parts[2]) -> None:
                books.fail(place, sqlstate, times=3, part=part)  # alone at last: four, two, one

            with capture_logs() as logs:
                outcomes = await commit_together(one, parts, fail)
            assert [type(outcome) for outcome in outcomes] == [Done, Done, Failed, Done], sqlstate
            assert [job.refresh().state for job in jobs] == ["succeeded", "succeeded", "failed", "succeeded"]
            assert jobs[2].failure is not None
            assert jobs[2].failure.code is FailureCode.INTERNAL
            assert PATIENT not in f"{jobs[2].failure.message} {logs}"
            assert [entry["error"] for entry in logs] == [sqlstate]
            reasons = books.query(
                "SELECT reason FROM job_events WHERE part_id = %s AND state = 'failed'", parts[2]
            )
            assert reasons == [(f"internal {sqlstate}",)]

    books.play(story)


def test_a_group_that_takes_too_long_is_halved_and_a_part_that_does_so_alone_fails(
    books: Books, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "COMMIT_LIMIT_S", 0.5)
    jobs = [submit() for _ in range(4)]
    parts = [books.part_of(job) for job in jobs]
    outages: list[bool] = []

    def fail() -> None:
        books.fail(PLACES["its result"], "57014", times=1_000, part=parts[2])

    async def story(one: Ledger) -> list[Outcome | None]:
        committing = asyncio.create_task(commit_together(one, parts, fail))
        while not committing.done():
            outages.append(OUTAGE.is_on)  # a health check would excuse the worker
            await asyncio.sleep(0.01)
        return await committing

    outcomes = books.play(story)
    assert [type(outcome) for outcome in outcomes] == [Done, Done, Failed, Done]
    assert [job.refresh().state for job in jobs] == ["succeeded", "succeeded", "failed", "succeeded"]
    assert books.query("SELECT reason FROM job_events WHERE part_id = %s AND state = 'failed'", parts[2]) == [
        ("internal 57014",)
    ]
    assert not any(outages)


def test_a_commit_that_waits_for_a_lock_is_tried_until_it_has_it(
    books: Books, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "COMMIT_LIMIT_S", 0.0)
    job = submit()
    part = books.part_of(job)

    async def story(database: AsyncEngine) -> None:
        one = Ledger(database, "one", announce=hear_nothing)
        claim = await claimed(one, part)
        with psycopg.connect(books.database_url) as report:
            report.execute("LOCK TABLE results IN SHARE MODE")
            committing = asyncio.create_task(commit(one, claim))
            await until(lambda: OUTAGE.is_on)
            report.rollback()
        assert isinstance(await committing, Done)

    books.ask(story, timeout=timedelta(seconds=0.4))
    assert job.refresh().state is JobState.SUCCEEDED


def test_a_part_whose_failure_is_refused_too_delays_no_other(books: Books, submit: Submit) -> None:
    """It is given back, and tried again: nothing can be written down of it until a person has looked."""
    jobs = [submit() for _ in range(3)]
    parts = [books.part_of(job) for job in jobs]

    async def story(one: Ledger) -> list[type]:
        claims = [await claimed(one, part) for part in parts]
        books.fail(PLACES["its callback"], "54000", times=1_000, part=parts[1])
        committing = [commit(one, claim) for claim in claims]
        outcomes = await asyncio.gather(*committing, return_exceptions=True)
        assert await one.requeue([parts[1]]) == {parts[1]}
        return [type(outcome) for outcome in outcomes]

    first, second, third = books.play(story)
    assert (first, third) == (Done, Done)
    assert issubclass(second, Exception)
    assert [job.refresh().state for job in jobs] == ["succeeded", "running", "succeeded"]


def test_a_claim_waits_for_what_is_transient_and_is_refused_alone(books: Books, submit: Submit) -> None:
    async def claims(one: Ledger, sqlstate: str, times: int) -> list[type]:
        parts = [books.part_of(submit()) for _ in range(3)]
        books.fail(PLACES["the part"], sqlstate, times=times, part=parts[1])
        requests = [one.claim(part) for part in parts]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        return [ClaimedPart if isinstance(outcome, ClaimedPart) else Exception for outcome in outcomes]

    async def story(one: Ledger) -> None:
        assert await claims(one, "25006", 2) == [ClaimedPart] * 3
        assert await claims(one, "54000", 1_000) == [ClaimedPart, Exception, ClaimedPart]

    books.play(story)


def test_giving_back_waits_for_what_is_transient(books: Books, submit: Submit) -> None:
    part = books.part_of(submit())

    async def story(one: Ledger) -> set[UUID]:
        await claimed(one, part)
        await asyncio.to_thread(books.fail, PLACES["the part"], "25006", times=2, part=part)
        return await one.requeue([part])

    assert books.play(story) == {part}


def test_results_wait_in_memory_while_postgres_is_read_only_and_nothing_is_claimed_meanwhile(
    books: Books, submit: Submit
) -> None:
    jobs = [submit() for _ in range(3)]
    parts = [books.part_of(job) for job in jobs]

    async def story(one: Ledger) -> list[Outcome | None]:
        claims = [await claimed(one, part) for part in parts]
        with books.read_only():
            committing = [asyncio.create_task(commit(one, claim)) for claim in claims]
            await until(lambda: OUTAGE.is_on)
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in committing)
        return await asyncio.gather(*committing)

    assert [type(outcome) for outcome in books.play(story)] == [Done] * 3
    assert {job.refresh().state for job in jobs} == {JobState.SUCCEEDED}
    assert books.query("SELECT max(attempt), sum(deaths + strikes) FROM parts") == [(1, 0)]


def test_a_process_that_stood_still_in_a_commit_commits_again(books: Books, submit: Submit) -> None:
    """Postgres has ended the session by then: 25P03."""
    job = submit()
    stalled = False

    def stand_still(*_statement: Any) -> None:
        nonlocal stalled
        if not stalled and "UPDATE jobs" in _statement[2]:
            stalled = True
            time.sleep(1.5)

    async def story(database: AsyncEngine) -> Outcome | None:
        ledger = Ledger(database, "one", announce=hear_nothing)
        claim = await claimed(ledger, books.part_of(job))
        event.listen(database.sync_engine, "before_cursor_execute", stand_still)
        return await commit(ledger, claim)

    with capture_logs() as logs:
        assert isinstance(books.ask(story, timeout=timedelta(seconds=0.5)), Done)
    assert stalled
    assert "25P03" in [entry.get("error") for entry in logs]
    assert job.refresh().state is JobState.SUCCEEDED


INSERT_JOBS: Final = PLACES["its job"][0].replace("UPDATE", "INSERT"), "NEW.id"
UPDATE_JOBS: Final = "UPDATE ON jobs", "NEW.id"
MEANING: Final = (
    *[(sqlstate, DatabaseUnavailableError) for sqlstate in TRANSIENT],
    *[(sqlstate, SubmitError) for sqlstate in REFUSED],
    *[(sqlstate, ConfigurationError) for sqlstate in FAULTS],
)


def told(error: BaseException) -> str:
    """Return all that a traceback of the error would say."""
    causes = [error, *([error.__cause__] if error.__cause__ else [])]
    return " ".join(f"{cause} {cause.__notes__ if hasattr(cause, '__notes__') else ''}" for cause in causes)


def test_a_client_raises_errors_of_its_own_whatever_postgres_says_to_a_submit(
    books: Books, client: Client, picture: Picture
) -> None:
    async def submit_async() -> None:
        async with AsyncClient(*books.urls.values()) as other:
            await other.submit(ReadDocument(picture()), metadata={"patient": PATIENT})

    for sqlstate, kind in MEANING:
        books.fail(INSERT_JOBS, sqlstate, times=1_000, part=None)
        with pytest.raises(PeciaError) as blocking:
            client.submit(ReadDocument(picture()), metadata={"patient": PATIENT})
        with pytest.raises(PeciaError) as awaited:
            asyncio.run(submit_async())
        assert type(blocking.value) is type(awaited.value) is kind, sqlstate
        if kind is not DatabaseUnavailableError:
            assert PATIENT not in told(blocking.value) + told(awaited.value)
            assert sqlstate in str(blocking.value) or sqlstate == "42501"


@pytest.mark.parametrize("call", ["cancel", "retry", "purge"])
def test_a_client_raises_errors_of_its_own_whatever_postgres_says_to_a_change(
    call: str, books: Books, client: Client, submit: Submit
) -> None:
    job = submit()
    if call == "retry":
        job.cancel()
    changes: dict[str, Callable[[], object]] = {
        "cancel": job.cancel,
        "retry": job.retry,
        "purge": lambda: client.purge([job]),
    }
    for sqlstate, kind in MEANING:
        books.fail(UPDATE_JOBS, sqlstate, times=1_000, part=None)
        with pytest.raises(PeciaError) as raised:
            changes[call]()
        assert type(raised.value) is (DatabaseRefusedError if kind is SubmitError else kind), sqlstate


def test_a_client_tries_again_what_is_transient(books: Books, submit: Submit) -> None:
    for sqlstate in TRANSIENT:
        books.fail(INSERT_JOBS, sqlstate, times=1, part=None)
        assert submit().created, sqlstate


def test_of_many_tasks_postgres_refuses_but_some(books: Books, client: Client, picture: Picture) -> None:
    async def submit_async(tasks: list[ReadDocument], keys: list[str]) -> SubmitManyError:
        async with AsyncClient(*books.urls.values()) as other:
            with pytest.raises(SubmitManyError) as raised:
                await other.submit_many(tasks, idempotency_keys=keys)
            return raised.value

    is_bad = sql.SQL("NEW.idempotency_key LIKE 'bad%'")
    fail_writes(books.database_url, "INSERT ON jobs", "23514", row=is_bad)
    tasks = [ReadDocument(picture(shade=shade)) for shade in range(7)]
    bad = {1, 4, 5}
    with pytest.raises(SubmitManyError) as raised:
        client.submit_many(tasks, idempotency_keys=[f"{'bad' if n in bad else 'good'} {n}" for n in range(7)])
    awaited = asyncio.run(
        submit_async(tasks, [f"{'bad' if n in bad else 'good'} again {n}" for n in range(7)])
    )

    for error in (raised.value, awaited):
        assert set(error.failures) == bad
        assert all("23514" in str(failure) for failure in error.failures.values())
        assert len(error.accepted) == 4
    assert books.query("SELECT count(*) FROM jobs") == [(8,)]
