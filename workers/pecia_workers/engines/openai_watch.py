"""Whether a server is there: requests wait while it is away, and fail when it stays away."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from pecia_workers.engines.base import EngineDeadError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger(__name__)

_WELL_S: Final = 5.0
_AWAY_S: Final = 0.5
_LOOKS: Final = 4
"""At least so many, before the patience is at an end."""


class ServerWatch:
    """Looks at the server now and then, and at once when a request could not reach it.

    `look` returns whether it answers. A server that is away for `patience_s` is dead, and stays so.
    """

    def __init__(self, look: Callable[[], Awaitable[bool]], *, patience_s: float) -> None:
        self._look = look
        self._patience_s = patience_s
        self._known = asyncio.Event()
        self._known.set()
        self._suspected = asyncio.Event()
        self._seen = time.monotonic()
        self._away = False
        self._dead = ""

    async def run(self) -> None:
        """Watch until the server is dead."""
        while not self._dead:
            self._note(is_there=await self._look())
            self._suspected.clear()
            pause = min(_AWAY_S if self._away else _WELL_S, self._patience_s / _LOOKS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._suspected.wait()

    def _note(self, *, is_there: bool) -> None:
        if is_there and self._away:
            log.info("engine_server_is_back")
        elif not is_there and not self._away:
            log.warning("engine_server_is_away")
        self._away = not is_there
        if is_there:
            self._seen = time.monotonic()
            self._known.set()
        elif time.monotonic() - self._seen > self._patience_s:
            self.give_up(f"The engine's server has not answered for {self._patience_s:g} s.")
        else:
            self._known.clear()

    def suspect(self) -> None:
        """Have requests wait until the next look, which is at once unless the server is known to be away."""
        if self._known.is_set() and not self._dead:
            self._known.clear()
            self._suspected.set()

    def give_up(self, reason: str) -> None:
        """Take the server for dead."""
        self._dead = reason
        self._known.set()
        self._suspected.set()

    async def there(self) -> None:
        """Return once the server is there. Raises `EngineDeadError`."""
        await self._known.wait()
        self.check()

    def check(self) -> None:
        """Raise `EngineDeadError` if the server is dead."""
        if self._dead:
            raise EngineDeadError(self._dead)
