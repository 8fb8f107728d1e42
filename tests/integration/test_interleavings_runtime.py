"""A worker's runtime while jobs are cancelled and retried under its hands, on real servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery.exceptions import Ignore
from pydantic import SecretStr
from redis import Redis

from pecia import Client, ReadDocument
from pecia_schemas.failures import FailureCode
from pecia_schemas.messages import CANCEL_CHANNEL
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.engines.simulated import InstantEngine
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import Judge
from pecia_workers.protocol.base import (
    Budget,
    EngineDeadError,
    EngineRefusedError,
    EngineRequest,
    Generation,
    Load,
)
from pecia_workers.protocol.parts import ClaimedPart, Done, PartCancelledError, RuntimeLostError
from pecia_workers.worker import runtime as runtimes
from pecia_workers.worker.runtime import Runtime
from pecia_workers.worker.stages import failure_of
from tests.shared.failing_writes import fail_writes, let_writes_pass
from tests.shared.fixture_types import Picture
from tests.shared.house import House, hear_nothing
from tests.shared.limits import WAIT_S, eventually, until

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]


@pytest.fixture
def settings(house: House) -> WorkerSettings:
    return house.settings()


@pytest.fixture
def part(client: Client, picture: Picture, house: House) -> UUID:
    return house.part_of(client.submit(ReadDocument(picture())))


NO_REDIS = SecretStr("unix:///nowhere/redis.sock")


@asynccontextmanager
async def working(settings: WorkerSettings, handler: Any) -> AsyncIterator[Runtime]:
    """A worker whose pages go to this stage."""
    runtime = Runtime(settings, {Stage.READ}, redis_serves=lambda: settings.redis_url != NO_REDIS)
    await runtime.start()
    runtime._stages.handlers[Stage.READ] = handler
    try:
        yield runtime
    finally:
        await runtime.stop()


class Reader:
    """A stage whose parts take until the test lets them end."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False
        """Whether it came to its end by itself."""

    async def __call__(self, part: ClaimedPart) -> Done:
        self.began.set()
        await self.may_end.wait()
        self.has_ended = True
        return Done(Page(number=part.ordinal + 1, verdict=Verdict.OK, width=1, height=1, engine="test"))


def while_it_runs(
    settings: WorkerSettings, part: UUID, meanwhile: Callable[[], object], *, patience: float = WAIT_S
) -> str:
    """Run the part, do something once it has begun, let it end after `patience` seconds, and return how it ended."""

    async def story() -> str:
        reader = Reader()
        async with working(settings, reader) as runtime:
            return await _ending(runtime.run(part, deaths=0), reader, meanwhile, patience)

    return asyncio.run(story())


async def _ending(
    run: Awaitable[object], reader: Reader, meanwhile: Callable[[], object], patience: float
) -> str:
    running = asyncio.ensure_future(run)
    await asyncio.wait_for(reader.began.wait(), WAIT_S)
    await asyncio.to_thread(meanwhile)
    await asyncio.wait([running], timeout=patience)
    reader.may_end.set()
    try:
        await running
    except PartCancelledError:
        return "too late" if reader.has_ended else "cancelled"
    except asyncio.CancelledError:
        return "to be given back"
    return "done"


def parts_of(house: House) -> list[tuple[Any, ...]]:
    """State and deaths of every part."""
    return house.query("SELECT state, deaths FROM parts ORDER BY deaths")


def without_redis(settings: WorkerSettings) -> WorkerSettings:
    return settings.model_copy(update={"redis_url": NO_REDIS})


def test_a_part_of_a_cancelled_job_is_ended_at_once_and_left_as_it_is(
    client: Client, settings: WorkerSettings, part: UUID, house: House
) -> None:
    (job,) = client.jobs()
    assert while_it_runs(settings, part, job.cancel) == "cancelled"
    assert parts_of(house) == [("cancelled", 0)]


def test_news_of_a_cancellation_that_a_retry_has_overtaken_lose_no_part(
    client: Client, settings: WorkerSettings, part: UUID, redis_url: str, house: House
) -> None:
    """The retry's part runs when the announcement of the cancellation before it arrives."""
    (job,) = client.jobs()

    def announce_late() -> None:
        with Redis.from_url(redis_url) as redis:
            eventually(lambda: redis.publish(CANCEL_CHANNEL, str(job.id)), what="a worker that hears it")

    assert while_it_runs(settings, part, announce_late) == "to be given back"
    assert parts_of(house) == [("queued", 0)]


def test_a_worker_that_was_taken_for_dead_lets_go_and_no_death_is_left(
    settings: WorkerSettings, part: UUID, house: House
) -> None:
    def take_for_dead() -> None:
        house.query("UPDATE workers SET lost_at = now() + interval '1 minute'")
        assert house.ask(lambda database: Judge(database, settings, hear_nothing).judge()) == 1
        eventually(lambda: parts_of(house) == [("queued", 0)])

    assert while_it_runs(settings, part, take_for_dead) == "to be given back"


@pytest.mark.usefixtures("part")
async def test_a_part_that_the_worker_has_lost_sight_of_goes_back(
    settings: WorkerSettings, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to its claim was lost; nothing else would ever move it."""
    monkeypatch.setattr(runtimes, "_SIGHT_S", 0.05)
    async with working(settings, Reader()) as runtime:
        house.query("ALTER TABLE parts RENAME TO parts_to_be")  # a database that is being restored
        await asyncio.sleep(0.5)
        house.query("ALTER TABLE parts_to_be RENAME TO parts")
        claim_long_ago(house, runtime.name)
        await until(lambda: parts_of(house) == [("queued", 0)])


def test_a_part_that_takes_long_is_left_to_the_worker_that_runs_it(
    settings: WorkerSettings, part: UUID, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "_SIGHT_S", 0.05)

    def wait() -> None:
        claim_long_ago(house, None)
        time.sleep(0.5)

    assert while_it_runs(settings, part, wait, patience=0) == "done"
    assert parts_of(house) == [("done", 0)]


def claim_long_ago(house: House, worker: str | None) -> None:
    house.query("UPDATE workers SET started_at = now() - interval '2 hours'")
    house.query(
        """UPDATE parts SET state = 'running', worker = coalesce(%s, worker), attempt = greatest(attempt, 1),
                            started_at = now() - interval '1 hour'""",
        worker,
    )


@pytest.mark.usefixtures("part")
def test_what_began_without_a_message_goes_back_at_the_end(settings: WorkerSettings, house: House) -> None:
    async def story() -> float:
        reader = Reader()
        async with working(without_redis(settings), reader) as runtime:
            await asyncio.wait_for(reader.began.wait(), WAIT_S)
            return runtime.room

    assert asyncio.run(story()) < 1, "it takes room from what comes by messages"
    assert parts_of(house) == [("queued", 0)]


@pytest.mark.parametrize("is_reply_late", [False, True])
async def test_the_message_of_a_part_that_is_claimed_without_it_changes_nothing(
    settings: WorkerSettings, part: UUID, house: House, monkeypatch: pytest.MonkeyPatch, is_reply_late: bool
) -> None:
    """Redis is back, and its message comes to the worker that has claimed the part already, or is about to hear so."""
    reader, claimed, may_be_told = Reader(), asyncio.Event(), asyncio.Event()
    waiting = Ledger.claim_waiting

    async def claim_waiting(*args: Any, **kwargs: Any) -> Any:
        parts = await waiting(*args, **kwargs)
        claimed.set()
        await may_be_told.wait()
        return parts

    monkeypatch.setattr(Ledger, "claim_waiting", claim_waiting)
    async with working(without_redis(settings), reader) as runtime:
        await asyncio.wait_for(claimed.wait(), WAIT_S)
        if not is_reply_late:
            may_be_told.set()
            await asyncio.wait_for(reader.began.wait(), WAIT_S)
        message = asyncio.ensure_future(runtime.run(part, deaths=0))
        await asyncio.wait([message], timeout=0.2)
        may_be_told.set()
        with pytest.raises(Ignore):
            await asyncio.wait_for(message, WAIT_S)
        reader.may_end.set()
        await until(lambda: parts_of(house) == [("done", 0)])
    assert house.query("SELECT attempt FROM parts") == [(1,)]


async def test_a_part_whose_message_is_being_claimed_is_not_claimed_without_it(
    settings: WorkerSettings, part: UUID, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis froze a moment ago, when it had handed over the message."""
    reader, looked = Reader(), asyncio.Event()
    by_message, waiting = Ledger._claim_all, Ledger.claim_waiting

    async def claim_late(*args: Any, **kwargs: Any) -> Any:
        await looked.wait()
        return await by_message(*args, **kwargs)

    async def claim_waiting(*args: Any, **kwargs: Any) -> Any:
        parts = await waiting(*args, **kwargs)
        looked.set()
        return parts

    monkeypatch.setattr(Ledger, "_claim_all", claim_late)
    monkeypatch.setattr(Ledger, "claim_waiting", claim_waiting)
    reader.may_end.set()
    async with working(without_redis(settings), reader) as runtime:
        await asyncio.wait_for(runtime.run(part, deaths=0), WAIT_S)
    assert house.query("SELECT attempt FROM parts") == [(1,)]


async def test_a_result_that_waits_for_postgres_is_written_though_its_part_is_interrupted(
    settings: WorkerSettings, part: UUID, house: House
) -> None:
    """Meanwhile the worker claims nothing."""
    reader = Reader()
    reader.may_end.set()
    async with working(settings, reader) as runtime:
        fail_writes(house.database_url, "INSERT ON results", "25006")
        running = asyncio.ensure_future(runtime.run(part, deaths=0))
        try:
            await until(lambda: not runtime.room)
            running.cancel()
            await asyncio.sleep(0.1)
            assert not running.done()
        finally:
            let_writes_pass(house.database_url)
            with suppress(asyncio.CancelledError):
                await running
            assert runtime.room == 1
    assert parts_of(house) == [("done", 0)]


def test_workers_that_share_a_spool_directory_do_not_share_their_copies(
    settings: WorkerSettings, part: UUID, tmp_path: Path
) -> None:
    def look() -> None:
        assert [entry.is_dir() for entry in tmp_path.glob("pecia-tmp-*")] == [True]

    assert while_it_runs(settings, part, look, patience=0) == "done"
    assert not list(tmp_path.glob("pecia-tmp-*"))


async def test_a_dead_engine_ends_the_worker_and_the_part_is_queued_with_a_death_to_its_name(
    settings: WorkerSettings, part: UUID, house: House
) -> None:
    async def die(part: ClaimedPart) -> Done:  # noqa: ARG001  a stage's signature
        raise EngineDeadError

    async with working(settings, die) as runtime:
        with pytest.raises(RuntimeLostError):
            await runtime.run(part, deaths=0)
        await runtime.requeue([part])
    assert parts_of(house) == [("queued", 1)]


async def test_a_worker_begins_with_less_where_an_engine_has_just_died_of_several_pages(
    client: Client, settings: WorkerSettings, printed: bytes, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [house.part_of(job) for job in client.submit_many(ReadDocument(printed) for _ in range(2))]

    class Dying(InstantEngine):
        asked = 0

        async def generate(self, request: EngineRequest) -> Generation:  # noqa: ARG002
            self.asked += 1
            await until(lambda: self.asked >= len(parts))
            raise EngineDeadError

    with monkeypatch.context() as patch:
        patch.setattr(runtimes, "create_engine", lambda _: Dying())
        runtime = Runtime(settings, {Stage.READ})
        await runtime.start()
    try:
        runs = (runtime.run(part, deaths=0) for part in parts)
        ends = await asyncio.gather(*runs, return_exceptions=True)
        assert {type(end) for end in ends} == {RuntimeLostError}
    finally:
        await runtime.stop()

    second = Runtime(settings, {Stage.READ})
    await second.start()
    room = second.room
    await second.stop()
    assert 0.5 <= room < 0.6


def test_a_page_that_the_engine_can_never_take_is_not_tried_again() -> None:
    failure = failure_of(EngineRefusedError("It is 9 tokens."), attempt=1)
    assert (failure.code, failure.retryable) == (FailureCode.TOO_LARGE, False)
    assert failure.message.startswith("It is 9 tokens.")


@pytest.mark.parametrize("is_watch_first", [False, True])
async def test_an_engine_dies_on_what_it_had_begun_and_not_on_what_waited_for_room(  # noqa: PLR0917  fixtures
    client: Client,
    settings: WorkerSettings,
    printed: bytes,
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    is_watch_first: bool,
) -> None:
    """The watch over the engine may be faster than the engine's own answer to the part."""
    parts = [house.part_of(job) for job in client.submit_many(ReadDocument(printed) for _ in range(2))]
    engine = Mortal()

    monkeypatch.setattr(runtimes, "create_engine", lambda _: engine)
    runtime = Runtime(settings, {Stage.READ})
    await runtime.start()
    try:
        runs = [asyncio.ensure_future(runtime.run(part, deaths=0)) for part in parts]
        await until(lambda: engine.priced >= len(parts))
        engine.is_dead = True
        if is_watch_first:
            await asyncio.wait_for(runtime.lost(), WAIT_S)
        else:
            engine.answers.set()
            await asyncio.wait(runs)
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        await runtime.requeue(parts)
    finally:
        await runtime.stop()

    assert parts_of(house) == [("queued", 0), ("queued", 1)]


class Mortal(InstantEngine):
    """Takes one page at a time, and dies when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.priced = 0
        self.answers = asyncio.Event()
        self.is_dead = False
        self.budget = Budget(slots=1, tokens=None)

    def cost(self, request: EngineRequest) -> int:
        self.priced += 1
        return super().cost(request)

    async def generate(self, request: EngineRequest) -> Generation:  # noqa: ARG002
        await self.answers.wait()
        raise EngineDeadError

    def load(self) -> Load:
        if self.is_dead:
            raise EngineDeadError
        return super().load()
