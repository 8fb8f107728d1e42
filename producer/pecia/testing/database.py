"""The seam: what the clients take for a database hands its transactions the fake fleet's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.util import greenlet_spawn

from pecia.testing.memory import Memory

T = TypeVar("T")


class MemoryDatabase:
    """Stands in for `pecia.database.Database`: the stores of this package take the memory for their connection."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:  # noqa: ARG002  never lost
        """Run `work` on the memory, alone. Raises `DatabaseUnavailableError` in an outage of Postgres."""
        with self._memory.transaction():
            return work(self._memory)


class AsyncMemoryDatabase:
    """Stands in for `pecia.aio.database.AsyncDatabase`. Nothing waits, but for what `within_work` awaits."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:  # noqa: ARG002  never lost
        """Run `work` on the memory, alone. Raises `DatabaseUnavailableError` in an outage of Postgres."""
        with self._memory.transaction():
            outcome: T = await greenlet_spawn(work, self._memory)
            return outcome
