"""Whose turn it is at something that serves one at a time: the most urgent first."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from pecia_workers.working import waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
