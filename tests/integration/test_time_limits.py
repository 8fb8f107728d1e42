"""A part that is not wanted any more, or takes too long, leaves the engine at once; nobody waits for its answer."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from celery.exceptions import Retry

from pecia import Client, Document, DocumentType, FailureCode, Job, JobState, ReadDocument
from pecia_schemas.states import Stage
from pecia_workers.engines.simulated import Clock
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.media.turns import ALL_ALIKE, Call
from pecia_workers.observability.metrics import REGISTRY
from pecia_workers.protocol.parts import (
    ClaimedPart,
    Outcome,
    PartCancelledError,
    PartFailedError,
    clocked,
    limited,
    worked_longer,
)
from pecia_workers.upkeep.loop import expire, open_stores
from pecia_workers.worker.runtime import Runtime
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, until

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]


Submit = Callable[..., Job[Document]]


@pytest.fixture
def submit(client: Client, printed: bytes) -> Submit:
    """Submits a page whose answer takes the engine some seconds."""
    return lambda **options: client.submit(ReadDocument(printed, document_type=DocumentType.CHART), **options)


def held(runtime: Runtime) -> int:
    assert runtime._stages.engine is not None
    load = runtime._stages.engine.load()
    return load.running + load.waiting


class Stopped(Clock):
    """Time that stands still: what the engine writes is never finished."""

    async def sleep(self, seconds: float) -> None:  # noqa: ARG002
        await asyncio.Event().wait()


async def until_it_is_read(runtime: Runtime, part: UUID) -> asyncio.Task[Any]:
    """Have the engine begin with a part that it does not come to the end of by itself."""
    reading = asyncio.create_task(runtime.run(part, deaths=0))
    await until(lambda: held(runtime) or reading.done())
    runtime._stages.engine._clock = Stopped()  # type: ignore[union-attr]
    return reading


async def ending(reading: asyncio.Task[None], runtime: Runtime) -> type[BaseException] | None:
    """Return with what it ended; by then the engine has let go of it."""
    await asyncio.wait([reading], timeout=WAIT_S)
    assert reading.done(), "the engine goes on with it"
    assert held(runtime) == 0
    error = reading.exception()
    return type(error) if error else None


def working(house: House, **settings: Any) -> AbstractAsyncContextManager[Runtime]:
    return house.working({Stage.READ}, engine="simulated", **settings)


async def test_a_cancellation_reaches_the_engine(house: House, submit: Submit) -> None:
    job = submit()
    async with working(house) as runtime:
        reading = await until_it_is_read(runtime, house.part_of(job))
        await asyncio.to_thread(job.cancel)
        assert await ending(reading, runtime) is PartCancelledError
    assert job.refresh().state is JobState.CANCELLED


async def test_the_end_of_a_jobs_time_reaches_the_engine(house: House, submit: Submit) -> None:
    job = submit(expires=timedelta(hours=1))
    async with working(house) as runtime:
        reading = await until_it_is_read(runtime, house.part_of(job))
        house.query("UPDATE jobs SET expires_at = now()")
        async with open_stores(house.settings()) as stores:
            assert await expire(stores) == 1
        assert await ending(reading, runtime) is PartCancelledError
    assert job.refresh().state is JobState.EXPIRED


async def test_a_part_that_takes_too_long_fails_at_last(house: House, submit: Submit, client: Client) -> None:
    job = submit()
    limits = {"part_timeout": 1, "max_attempts": 2, "retry_delay": 0.001}
    ends: list[type[BaseException] | None] = []
    async with working(house, **limits) as runtime:
        for _ in range(2):
            ends.append(await ending(await until_it_is_read(runtime, house.part_of(job)), runtime))
            await asyncio.sleep(0.05)

    assert ends == [Retry, PartFailedError]
    assert job.refresh().state is JobState.FAILED
    (dead,) = client.dead_parts()
    assert (dead.failure.code, dead.attempts, dead.strikes) == (FailureCode.TIMEOUT, 2, 1)


async def test_a_part_that_does_not_end_is_given_up_once_and_counted_as_a_death(
    house: House, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, unwound = house.part_of(submit()), asyncio.Event()

    async def hang(_part: ClaimedPart) -> Outcome:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await unwound.wait()
        raise asyncio.CancelledError

    def given_up() -> float:
        return REGISTRY.get_sample_value("pecia_overdue_parts_total") or 0.0

    before = given_up()
    async with working(house, part_timeout=1, lease=1) as runtime, asyncio.timeout(WAIT_S):
        monkeypatch.setattr(runtime._stages, "run", hang)
        running = asyncio.create_task(runtime.run(part, deaths=0))
        await until(lambda: house.query("SELECT state, deaths FROM parts") == [("queued", 1)])
        await asyncio.sleep(1.5)  # it looks every second
        unwound.set()
        await asyncio.wait([running])
    assert given_up() - before == 1


async def test_a_page_may_wait_for_a_decoder_for_longer_than_it_may_take(
    house: House, client: Client, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()))  # blank: the engine has no part in it
    limit = timedelta(seconds=5)
    async with working(house, part_timeout=limit) as runtime:
        decoders = runtime._stages.handlers[Stage.READ]._decoder._processes  # type: ignore[attr-defined]
        async with decoders._places.held(Call(ALL_ALIKE)):  # another page has the only one
            reading = asyncio.create_task(runtime.run(house.part_of(job), deaths=0))
            done, _ = await asyncio.wait([reading], timeout=1.2 * limit.total_seconds())
            assert not done
            assert worked_longer(0) == [house.part_of(job)]
            assert worked_longer(limit.total_seconds()) == []
        await reading
    assert job.refresh().state is JobState.SUCCEEDED


def test_a_part_may_wait_for_what_was_read_before_for_longer_than_it_may_take(house: House) -> None:
    async def story(ledger: Ledger) -> None:
        async with await psycopg.AsyncConnection.connect(house.database_url) as other:
            await other.execute("LOCK TABLE result_cache")
            asyncio.get_running_loop().call_later(2, asyncio.ensure_future, other.rollback())
            with clocked(uuid4()):
                async with limited(1):
                    assert await ledger.earlier(b"key") is None

    house.play(story)
