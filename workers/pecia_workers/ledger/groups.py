"""Group commit: one statement for everybody who asked while the last one ran."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from pecia_schemas.sqlstates import Verdict, verdict_on

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Grouped(Generic[Item, Outcome]):
    """Calls `run` with up to `most` items at a time, one call after the other, and hands each caller its own outcome.

    No item waits for others: one that comes alone goes alone. A group that Postgres refuses is halved until the
    item is found that it refuses. A caller that is cancelled leaves its item in the group.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]], *, most: int) -> None:
        self._run = run
        self._most = most
        self._waiting: deque[tuple[Item, asyncio.Future[Outcome]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Outcome:
        """Return what `run` returned for this item. Raises what it raised for this item, or for a whole group."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None or self._worker.done():
            # What it logs is about all, not about the one who came first.
            self._worker = asyncio.create_task(self._drain(), context=Context())
        return await future

    async def idle(self) -> None:
        """Return once no group is under way, also one whose callers are gone."""
        if self._worker:
            await asyncio.wait([self._worker])

    async def _drain(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            await self._settle(group)

    async def _settle(self, group: Sequence[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._run([item for item, _ in group])
        except Exception as error:  # noqa: BLE001  each caller gets it
            if len(group) > 1 and verdict_on(error) is Verdict.REFUSED:
                half = len(group) // 2
                await self._settle(group[:half])
                await self._settle(group[half:])
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), outcome in zip(group, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
