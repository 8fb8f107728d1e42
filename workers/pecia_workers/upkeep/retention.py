"""The steps of upkeep that end what was kept long enough, each of one kind and a bounded number at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from obstore.exceptions import BaseError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.payloads import PayloadStore, payload_named
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger import retention

_JOBS = 50
"""In one transaction: each may have thousands of parts."""
_ROWS = 1_000
_PAYLOADS = 100
_FORGETS_EVERY_S = 3_600.0

Step = Callable[[AsyncEngine], Awaitable[int]]


class PayloadsStayedError(Exception):
    """The payload store did not let go of some documents; they are tried again."""


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
        name: partial(forget, age=age, limit=limit)
        for name, (forget, age, limit) in subjects.items()
        if age > timedelta()
    }
    return steps | {"payloads": PayloadRemoval(settings)}


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
        waiting = await retention.discarded_payloads(database, limit=_PAYLOADS)
        removed = stayed = 0
        for payload in waiting:
            try:
                removed += await retention.remove_payload(database, payload, partial(self._remove, payload))
            except (BaseError, OSError):
                stayed += 1
        if stayed:
            raise PayloadsStayedError(f"{stayed} of {len(waiting)}")
        return removed

    async def _remove(self, payload: str) -> None:
        await asyncio.to_thread(self._delete, payload)

    def _delete(self, payload: str) -> None:
        settings = self._settings
        if not settings.payload_url:
            raise FileNotFoundError("no payload store is set")
        store = PayloadStore.open(settings.payload_url, settings.payload_options)
        store.delete(payload_named(payload))
