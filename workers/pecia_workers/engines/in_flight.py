"""The requests that an engine works on, and whose turn it is at what serves one of them at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from pecia_workers.engines.base import EngineError
from pecia_workers.working import waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from pecia_workers.engines.base import Generation


class InFlight:
    """Runs each request as a task of its own, so that it can be ended by its id."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Generation]] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._tasks)

    async def run(self, request_id: str, work: Coroutine[None, None, Generation]) -> Generation:
        """Return what comes of the work. Raises `EngineError` for an id that is in flight already."""
        if request_id in self._tasks:
            work.close()
            raise EngineError("A request with this id is in flight already.")
        task = self._tasks[request_id] = asyncio.create_task(work)
        try:
            return await task
        finally:
            del self._tasks[request_id]

    def end(self, request_id: str) -> None:
        """End one; its caller gets `asyncio.CancelledError`. An unknown id is no error."""
        if task := self._tasks.get(request_id):
            task.cancel()

    async def end_all(self) -> None:
        """End every one, and wait until they have."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Turns:
    """Lets one block run at a time, by rank, those of one rank as they came. For one loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._arrivals = count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, rank: int) -> AsyncIterator[None]:
        """Run the block when its turn has come; the lowest rank comes first. The wait is not the part's work."""
        if self._is_taken:
            with waiting():
                await self._wait(rank)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, rank: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        heappush(self._queue, (rank, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn had come already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._queue:
            *_, turn = heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
