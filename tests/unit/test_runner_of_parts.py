"""The pool's other thread: how parts that do not end by themselves unwind, and what is told of them."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Event
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from fixture_types import Eventually
from pecia_workers.engines.base import Budget
from pecia_workers.worker.runner import Ending, Interruption, PartInFlight, PartRunner
from pecia_workers.worker.runtime import Runtime


class Unwinding:
    """A runtime whose first run, once it was interrupted, unwinds until it is let go."""

    room = 1.0
    name = "unwinding"
    figures: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.begun: list[UUID] = []
        self.at_work = 0
        self.most_at_work = 0
        self.given_back = 0
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

    async def give_back(self, parts: Collection[UUID]) -> None:  # noqa: ARG002
        self.given_back += 1
        if self.given_back <= self.refuses:
            raise OSError

    async def overdue(self, part: UUID) -> None:
        """No part is held for too long here."""

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
            cast("Runtime", self.runtime),
            submitted=lambda: None,
            begun=lambda _job, _about: None,
            tell=lambda job, ending: self.ended.append((job, ending)),
            fatal=lambda _error: self.failed.set(),
            priced=lambda _part, _tokens: None,
        )

    def deliver(self, part: UUID, former: PartInFlight | None = None) -> PartInFlight:
        job = PartInFlight(
            part=part,
            cost=1,
            deaths=0,
            suspect=False,
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


def test_a_part_that_comes_a_third_time_waits_for_its_first_run(pool: Pool, eventually: Eventually) -> None:
    part = uuid4()
    first = pool.deliver(part)
    eventually(lambda: pool.runtime.begun == [part])
    first.interrupt(Interruption.LOST)
    second = pool.deliver(part, former=first)
    eventually(lambda: second.task is not None)
    second.interrupt(Interruption.LOST)
    third = pool.deliver(part, former=second)
    eventually(lambda: any(job is second for job, _ in pool.ended))
    eventually(lambda: third.task is not None)

    pool.let_go()

    eventually(lambda: any(job is third for job, _ in pool.ended))
    assert (pool.runtime.begun, pool.runtime.most_at_work) == ([part, part], 1)
    assert not pool.failed.is_set()


def test_a_part_goes_back_to_redis_once_it_is_queued_in_postgres(pool: Pool, eventually: Eventually) -> None:
    pool.runtime.refuses = 2
    job = pool.deliver(uuid4())
    eventually(lambda: pool.runtime.begun)
    job.interrupt(Interruption.LOST)
    pool.let_go()
    eventually(lambda: pool.ended)
    assert pool.runtime.given_back == 3
