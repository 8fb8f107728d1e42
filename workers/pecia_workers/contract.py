"""What the pool needs of the runner of parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol
from uuid import UUID

from pecia_workers.engines.base import Budget


class RuntimeLostError(RuntimeError):
    """What runs the parts is gone for good: the worker gives all it holds back and exits."""


class PartRuntime(Protocol):
    """Runs parts on the loop that `start` runs on."""

    async def start(self, priced: Callable[[UUID, int], None]) -> Budget:
        """Make ready and return how much may be claimed; nothing is claimed before.

        `priced` is told, on this loop, what a part really takes of that, in tokens.
        """
        ...

    @property
    def room(self) -> float:
        """Share of that which may be claimed at this time, from 0 to 1. Read on any thread."""
        ...

    @property
    def figures(self) -> Mapping[str, Any]:
        """What it does, for those who watch: numbers by their names. Read on any thread."""
        ...

    @property
    def name(self) -> str:
        """The worker's name in Postgres and Redis, once it has started."""
        ...

    async def lost(self) -> None:
        """Return once what runs the parts is gone for good, though no part runs that could find out."""
        ...

    async def run(
        self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any] | None:
        """Run one part to its commit, and return what is told of its result. It is not run if more workers died on it.

        `begun` is called once Postgres has handed the part out, with what is told of it: ids, enumerations, numbers.
        Raises `celery.exceptions.Ignore` if there is nothing to do, `PartCancelledError` if it was cancelled, `Retry`
        if it failed and will be tried again, `PartFailedError` if it failed for good. After any other exception the
        part is given back.
        """
        ...

    async def give_back(self, parts: Collection[UUID]) -> None:
        """Note that these stay unfinished here; awaited before their messages go back to the lists.

        Messages of those that what runs the parts died on are stale then: a claim of one finds nothing to do.
        """
        ...

    async def overdue(self, part: UUID) -> None:
        """Give a part up that has been held for too long: it goes on elsewhere, as if a worker had died on it."""
        ...

    async def revoked(self, part: UUID) -> None:
        """End a part that an operator revoked through Celery, before or after it began."""
        ...

    async def stop(self) -> None:
        """Free everything."""
        ...
