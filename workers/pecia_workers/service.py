"""How the fleet's small asynchronous services run as a process: registered, stopped by a signal, gone in time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.workers import WorkerIdentity, keep_registered


class Service(Protocol):
    """Something that runs until it is stopped."""

    async def run(self) -> None:
        """Run until `stop`; then return as soon as what is under way is finished."""
        ...

    def stop(self) -> None:
        """Begin nothing new."""
        ...


def serve(
    role: str,
    open_service: Callable[[WorkerSettings], Service],
    settings: WorkerSettings,
    *,
    capabilities: Mapping[str, Any] | None = None,
) -> None:
    """Run the service in this process until SIGTERM or SIGINT, for `drain_timeout` longer at most.

    Its row says what it is capable of.
    """
    identity = replace(WorkerIdentity.new(role), capabilities=capabilities)
    asyncio.run(_serve(identity, open_service(settings), settings))


async def _serve(identity: WorkerIdentity, service: Service, settings: WorkerSettings) -> None:
    async with keep_registered(settings.database_url.get_secret_value(), identity, lease=settings.lease):
        await _until_signalled(service, settings.drain_timeout.total_seconds())


async def _until_signalled(service: Service, drain_s: float) -> None:
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(service.run())

    def stop() -> None:
        service.stop()
        loop.call_later(drain_s, running.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await running
