"""The requests that an engine works on, and whose turn it is at what serves one of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Final

from pecia_workers.engines.base import EngineError, Generation
from pecia_workers.worker.attempts import waiting

LOOPS: Final = {"min_pattern_size": 8, "max_pattern_size": 48, "min_count": 12}
"""So many equal patterns of so many tokens at the end of the text; the names are vLLM's.

A shorter pattern repeats within the shortest; an empty table of a dozen rows is not yet a loop.
"""


def is_loop(pieces: Sequence[object]) -> bool:
    """Return whether a text that came in these pieces, of a token each, ends in a loop."""
    sizes = range(LOOPS["min_pattern_size"], LOOPS["max_pattern_size"] + 1)
    return any(_repeats(pieces, size) for size in sizes)


def _repeats(pieces: Sequence[object], size: int) -> bool:
    """Return whether the end is one pattern of `size` pieces, often enough: then it equals itself, shifted by one."""
    length = size * LOOPS["min_count"]
    if len(pieces) < length or pieces[-1] != pieces[-1 - size]:
        return False
    return pieces[-length:-size] == pieces[-length + size :]


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
    """Lets some blocks run at a time, by rank, those of one rank as they came. For one loop."""

    def __init__(self, places: int = 1, opens: Callable[[int], bool] = lambda _rank: True) -> None:
        """Let `places` run at a time, each once `opens` lets its rank begin; if not, then it lets no higher one."""
        self._free = places
        self._opens = opens
        self._arrivals = count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, rank: int) -> AsyncIterator[None]:
        """Run the block when its turn has come; the lowest rank comes first. The wait is not the part's work."""
        turn = asyncio.get_running_loop().create_future()
        heappush(self._queue, (rank, next(self._arrivals), turn))
        self.look()
        try:
            if not turn.done():
                with waiting():
                    await turn
            yield
        finally:
            if not turn.cancel() and not turn.cancelled():
                self._free += 1
            self.look()

    def look(self) -> None:
        """Let those begin whose turn has come; to be called when `opens` would say otherwise than before."""
        while self._free and self._queue:
            rank, _, turn = self._queue[0]
            if not turn.done():
                if not self._opens(rank):
                    return
                turn.set_result(None)
                self._free -= 1
            heappop(self._queue)
