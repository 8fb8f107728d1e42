"""A part's time limit counts its work; what is begun ends before its caller goes on; how parts unwind."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest

from pecia_schemas.payloads import PayloadStore
from pecia_schemas.threads import finish, finish_in_thread
from pecia_workers.ledger.database import retry_unavailable
from pecia_workers.media.decoder import Spool
from pecia_workers.protocol.base import Budget
from pecia_workers.protocol.parts import clocked, limited, waiting, worked_longer, worked_s
from pecia_workers.worker.runner import Ending, Interruption, PartInFlight, PartRunner
from pecia_workers.worker.runtime import Runtime
from tests.shared.limits import WAIT_S, eventually

LIMIT_S = 0.5
LONG_S = 2 * LIMIT_S
PART = uuid4()


async def wait() -> None:
    with waiting():
        await asyncio.sleep(LONG_S)


def run(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run the work of one part under the limit."""

    async def limited_work() -> None:
        with clocked(PART):
            async with limited(LIMIT_S):
                await work()

    asyncio.run(limited_work())


def test_work_ends_at_the_limit() -> None:
    with pytest.raises(TimeoutError):
        run(asyncio.Event().wait)


def test_a_wait_may_be_longer_than_the_limit() -> None:
    async def work() -> None:
        await wait()
        assert worked_s() < LIMIT_S
        assert (worked_longer(LIMIT_S), worked_longer(0)) == ([], [PART])

    run(work)


def test_work_after_a_wait_has_what_was_left() -> None:
    async def work() -> None:
        await wait()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(work)


def test_of_waits_side_by_side_the_last_counts() -> None:
    async def work() -> None:
        with waiting():
            await asyncio.create_task(wait())
            await asyncio.sleep(LONG_S)

    run(work)


def test_postgres_may_be_away_for_longer_than_the_limit() -> None:
    async def work() -> None:
        back = asyncio.get_running_loop().time() + LONG_S

        async def ask() -> None:
            if asyncio.get_running_loop().time() < back:
                raise psycopg.OperationalError

        await retry_unavailable(ask)

    run(work)


def test_the_store_may_take_longer_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another part is fetching the same document."""
    monkeypatch.setattr("pecia_workers.media.decoder.verify", lambda *_: time.sleep(LONG_S))
    store = PayloadStore.open(str(tmp_path))
    reference = store.deposit(b"content").reference
    spool = Spool(store, tmp_path)

    async def work() -> None:
        async def read() -> None:
            async with spool.open(reference):
                pass

        await asyncio.gather(read(), read())

    run(work)


def test_outside_of_a_part_nothing_is_counted() -> None:
    asyncio.run(wait())
    assert (worked_s(), worked_longer(0)) == (0.0, [])


async def test_a_thread_never_outlives_its_caller_that_is_cancelled_again_and_again() -> None:
    may_end = threading.Event()

    waiting = asyncio.create_task(finish_in_thread(may_end.wait, WAIT_S))
    for _ in range(3):
        await asyncio.sleep(0.01)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_the_work_raises_is_raised_unless_the_caller_was_cancelled() -> None:
    may_fail = asyncio.Event()

    async def work() -> None:
        await may_fail.wait()
        raise LookupError

    waiting = asyncio.create_task(finish(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    may_fail.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(LookupError):
        await finish(work())


class Unwinding:
    """A runtime whose first run, once it was interrupted, unwinds until it is let go."""

    room = 1.0
    name = "unwinding"
    figures: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.begun: list[UUID] = []
        self.at_work = 0
        self.most_at_work = 0
        self.requeued = 0
        self.refuses = 0
        self.let_go = asyncio.Event()

    async def start(self, priced: Callable[[UUID, int], None]) -> Budget:  # noqa: ARG002  as `Runtime`
        return Budget(slots=8, tokens=None)

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def run(
        self,
        part: UUID,
        *,
        deaths: int,  # noqa: ARG002
        begun: Callable[[Mapping[str, Any]], None],  # noqa: ARG002
    ) -> None:
        self.begun.append(part)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            if len(self.begun) == 1:
                await asyncio.Event().wait()
        finally:
            await self.let_go.wait()
            self.at_work -= 1

    async def requeue(self, parts: Collection[UUID]) -> None:  # noqa: ARG002
        self.requeued += 1
        if self.requeued <= self.refuses:
            raise OSError

    async def revoked(self, part: UUID) -> None:
        """Nobody revokes anything here."""

    async def stop(self) -> None:
        """There is nothing to free."""


class Pool:
    """What the runner tells."""

    def __init__(self) -> None:
        self.runtime = Unwinding()
        self.ended: list[tuple[PartInFlight, Ending]] = []
        self.failed = Event()
        self.runner = PartRunner(
            runtime=cast("Runtime", self.runtime),
            submitted=lambda: None,
            begun=lambda _job, _about: None,
            notify=lambda job, ending: self.ended.append((job, ending)),
            fatal=lambda _error: self.failed.set(),
            priced=lambda _part, _tokens: None,
        )

    def deliver(self, part: UUID, former: PartInFlight | None = None) -> PartInFlight:
        job = PartInFlight(
            part=part,
            cost=1,
            deaths=0,
            begun=lambda _about: None,
            callback=lambda _result: None,
            timeout_callback=lambda _soft, _limit: None,
            limit_s=None,
            soft=False,
            started=0.0,
        )
        job.former = former
        self.runner.submit([job])
        return job

    def let_go(self) -> None:
        self.runner._loop.call_soon_threadsafe(self.runtime.let_go.set)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    pool.runner.start().result()
    yield pool
    pool.let_go()
    pool.runner.stop()


def test_a_part_that_comes_a_third_time_waits_for_its_first_run(pool: Pool) -> None:
    part = uuid4()
    first = pool.deliver(part)
    eventually(lambda: pool.runtime.begun == [part])
    first.interrupt(Interruption.REVOKED)
    second = pool.deliver(part, former=first)
    eventually(lambda: second.task is not None)
    second.interrupt(Interruption.REVOKED)
    third = pool.deliver(part, former=second)
    eventually(lambda: any(job is second for job, _ in pool.ended))
    eventually(lambda: third.task is not None)

    pool.let_go()

    eventually(lambda: any(job is third for job, _ in pool.ended))
    assert (pool.runtime.begun, pool.runtime.most_at_work) == ([part, part], 1)
    assert not pool.failed.is_set()


def test_a_part_goes_back_to_redis_once_it_is_queued_in_postgres(pool: Pool) -> None:
    pool.runtime.refuses = 2
    job = pool.deliver(uuid4())
    eventually(lambda: pool.runtime.begun)
    pool.runner._loop.call_soon_threadsafe(pool.runner._cancel, job)
    pool.let_go()
    eventually(lambda: pool.ended)
    assert pool.runtime.requeued == 3
