"""The steps of upkeep that end what was kept long enough: each of one kind, transaction by transaction, to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from obstore.exceptions import BaseError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import discards
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger import retention

_JOBS = 500
"""In one transaction, or jobs of so many parts."""
_ROWS = 5_000
_PAYLOADS = 2_000
_REMOVALS_AT_ONCE = 3
_BUDGET_S = 5.0
"""How long one step may keep the others waiting."""
_FORGETS_EVERY_S = 3_600.0
_SEARCHES_EVERY_S = 86_400.0
_BATCHES = 1_000
_BEGINNINGS = 256
"""Of names in the store: two hexadecimal digits."""

Step = Callable[[AsyncEngine], Awaitable[int]]


class PayloadsStayedError(Exception):
    """The payload store did not let go of some documents; they are tried again."""


class PayloadStoreSilentError(Exception):
    """The payload store did not say what it holds; it is asked again."""


def retention_steps(settings: WorkerSettings) -> dict[str, Step]:
    """Return the steps for what the settings keep for a time, by name, and the one that takes documents away."""
    subjects = {
        "payload_retention": (retention.release_payloads, settings.keep_payloads, _JOBS),
        "result_retention": (retention.erase_results, settings.keep_results, _JOBS),
        "event_retention": (retention.forget_events, settings.keep_events, _ROWS),
        "delivery_retention": (retention.forget_deliveries, settings.keep_deliveries, _ROWS),
        "job_retention": (retention.forget_jobs, settings.keep_jobs, _JOBS),
        "audit_retention": (retention.forget_trail, settings.keep_audit, _ROWS),
    }
    steps: dict[str, Step] = {
        name: partial(_until_nothing_is_left, partial(forget, age=age, limit=limit))
        for name, (forget, age, limit) in subjects.items()
        if age > timedelta()
    }
    if settings.keep_payloads:
        steps["strays"] = StraySearch(settings)
    return steps | {
        "batches": EmptyBatches(),
        "payloads": partial(_until_nothing_is_left, PayloadRemoval(settings)),
    }


async def _until_nothing_is_left(step: Step, database: AsyncEngine) -> int:
    """Repeat a step until it finds nothing more, or the others have waited long enough."""
    total, until = 0, time.monotonic() + _BUDGET_S
    while done := await step(database):
        total += done
        if time.monotonic() >= until:
            break
    return total


class PayloadRemoval:
    """Takes documents out of the store that every job has let go of, by retention, a purge or a change of keys."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._forgets_at = 0.0

    async def __call__(self, database: AsyncEngine) -> int:
        """Remove what waits for it; return how much. Raises `PayloadsStayedError` if the store refused some of it."""
        if time.monotonic() >= self._forgets_at:
            await retention.forget_removals(database)
            self._forgets_at = time.monotonic() + _FORGETS_EVERY_S
        buckets = await retention.discarded_payloads(database, limit=_PAYLOADS)
        if not buckets:
            return 0
        store = await asyncio.to_thread(_store, self._settings)
        at_once = asyncio.Semaphore(_REMOVALS_AT_ONCE)

        async def empty(bucket: Sequence[str]) -> tuple[int, int]:
            async with at_once:
                return await retention.remove_payloads(database, bucket, store.delete_many)

        removed, stayed = map(sum, zip(*await asyncio.gather(*map(empty, buckets)), strict=True))
        if stayed:
            raise PayloadsStayedError(f"{stayed} of {sum(map(len, buckets))}")
        return removed


class EmptyBatches:
    """Forgets batches of which no job is left, once a day."""

    def __init__(self) -> None:
        self._rests_until = 0.0

    async def __call__(self, database: AsyncEngine) -> int:
        """Forget some of them; return how many."""
        if time.monotonic() < self._rests_until:
            return 0
        found = await retention.forget_batches(database, limit=_BATCHES)
        if found < _BATCHES:
            self._rests_until = time.monotonic() + _SEARCHES_EVERY_S
        return found


class StraySearch:
    """Finds documents in the store that no job was ever given, because the submit that stored them failed.

    It looks at one part in 256 of the store in each round, and at all of it once a day.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._age = max(settings.keep_payloads, discards.MEMORY)
        self._next = 0
        self._rests_until = 0.0

    async def __call__(self, database: AsyncEngine) -> int:
        """Have strays removed that are older than documents are kept, and than a day; return how many were found."""
        if time.monotonic() < self._rests_until:
            return 0
        names = await asyncio.to_thread(self._old_names, f"{self._next:02x}")
        found = await retention.discard_strays(database, names) if names else 0
        self._next = (self._next + 1) % _BEGINNINGS
        if self._next == 0:
            self._rests_until = time.monotonic() + _SEARCHES_EVERY_S
        return found

    def _old_names(self, beginning: str) -> list[str]:
        before = datetime.now(UTC) - self._age
        try:
            return [name for name, written in _store(self._settings).names(beginning) if written < before]
        except (BaseError, OSError) as error:
            raise PayloadStoreSilentError(type(error).__name__) from error


def _store(settings: WorkerSettings) -> PayloadStore:
    if not settings.payload_url:
        raise FileNotFoundError("no payload store is set")
    return PayloadStore.open(settings.payload_url, settings.payload_options)
