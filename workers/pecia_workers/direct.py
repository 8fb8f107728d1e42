"""Claims straight from Postgres while Redis does not answer, so that the fleet works on without it.

By lane and age, without turns and shares. Suspects wait for Redis, and Celery and Flower see nothing of these parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from pecia_schemas.connecting import name_of
from pecia_workers.bus import Bus
from pecia_workers.ledger import ClaimedPart

log = structlog.get_logger(__name__)

_LOOK_S = 1.0


class DirectClaims:
    """Looks after Redis every second, and begins waiting parts while it does not answer."""

    def __init__(
        self,
        bus: Bus,
        *,
        claim: Callable[[int], Awaitable[Sequence[ClaimedPart]]],
        free: Callable[[], int],
        run: Callable[[ClaimedPart], Awaitable[None]],
    ) -> None:
        """`claim` claims up to so many, `free` tells how many may begin, `run` runs one to its end without raising."""
        self._bus = bus
        self._claim = claim
        self._claiming = asyncio.Lock()
        self._free = free
        self._run = run
        self._running: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._running)

    def start(self) -> None:
        """Begin to look after Redis."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Begin nothing more, and cancel what runs: `run` gives it back."""
        while self._looking and not self._looking.done():  # redis-py may swallow the first while it connects
            self._looking.cancel()
            await asyncio.wait([self._looking], timeout=_LOOK_S)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def idle(self) -> None:
        """Return once no claim is under way: a message's claim beside it could take the same part."""
        if self._claiming.locked():
            async with self._claiming:
                pass

    async def _look(self) -> None:
        away = False
        while True:
            await asyncio.sleep(_LOOK_S)
            was_away, away = away, not await self._bus.answers()
            if away != was_away:
                log.warning("claiming_directly" if away else "claiming_through_redis", running=len(self))
            try:
                while away and await self._begin():
                    pass
            except Exception as error:  # noqa: BLE001  the next look may succeed, and nothing else claims now
                log.warning("direct_claim_failed", error=name_of(error))

    async def _begin(self) -> bool:
        """Begin what fits; return whether more may."""
        if (slots := self._free()) <= 0:
            return False
        async with self._claiming:
            parts = await self._claim(slots)
        for part in parts:
            task = asyncio.ensure_future(self._run(part))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        await asyncio.sleep(0)  # they begin, and so take their room
        return bool(parts)
