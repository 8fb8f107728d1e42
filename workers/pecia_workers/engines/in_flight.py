"""The requests that an engine works on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pecia_workers.engines.base import EngineError

if TYPE_CHECKING:
    from collections.abc import Coroutine

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
