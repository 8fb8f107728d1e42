"""Whether a server is there: requests wait while it is away, and fail when it stays away."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from pecia_workers.engines.base import EngineDeadError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger(__name__)

_WELL_S: Final = 5.0
_AWAY_S: Final = 0.5


class ServerWatch:
    """Looks at the server now and then, and at once when a request could not reach it.

    `look` returns whether it answers. A server that is away for `patience_s` is dead, and stays so.
    """

    def __init__(self, look: Callable[[], Awaitable[bool]], *, patience_s: float) -> None:
        self._look = look
        self._patience_s = patience_s
        self._settled = asyncio.Event()
        self._settled.set()
        self._suspected = asyncio.Event()
        self._seen = time.monotonic()
        self._dead = ""

    async def run(self) -> None:
        """Watch until the server is dead."""
        while not self._dead:
            pause = _WELL_S if await self._is_there() else _AWAY_S
            self._suspected.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._suspected.wait()
            except TimeoutError:
                continue

    async def _is_there(self) -> bool:
        if await self._look():
            if not self._settled.is_set():
                log.info("engine_server_is_there")
            self._seen = time.monotonic()
            self._settled.set()
            return True
        if self._settled.is_set():
            log.warning("engine_server_is_away")
            self._settled.clear()
        if time.monotonic() - self._seen > self._patience_s:
            self.give_up(f"The engine's server has not answered for {self._patience_s:g} s.")
        return False

    def suspect(self) -> None:
        """Have requests wait until the next look, which is at once."""
        if self._settled.is_set() and not self._dead:
            self._settled.clear()
            self._suspected.set()

    def give_up(self, reason: str) -> None:
        """Take the server for dead."""
        self._dead = reason
        self._settled.set()
        self._suspected.set()

    async def there(self) -> None:
        """Return once the server is there. Raises `EngineDeadError`."""
        await self._settled.wait()
        self.check()

    def check(self) -> None:
        """Raise `EngineDeadError` if the server is dead."""
        if self._dead:
            raise EngineDeadError(self._dead)
