"""Runs the fleet's small asynchronous services as processes: registered, stopped by a signal, within a time limit."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity


class Service(Protocol):
    """A service that runs until stopped."""

    async def run(self) -> None:
        """Run until `stop`, then finish the work in flight and return."""
        ...

    def stop(self) -> None:
        """Start no further work."""
        ...


async def serve(
    role: str,
    open_service: Callable[[WorkerSettings], Service],
    settings: WorkerSettings,
    *,
    capabilities: Mapping[str, Any] | None = None,
) -> None:
    """Run the service until SIGTERM or SIGINT, and at most `drain_timeout` longer.

    `capabilities` are stored in its row.
    """
    identity = replace(WorkerIdentity.new(role), capabilities=capabilities)
    service, loop = open_service(settings), asyncio.get_running_loop()

    async def run() -> None:
        async with Heartbeat(settings.database_url.get_secret_value(), identity, lease=settings.lease):
            await service.run()

    def stop() -> None:
        service.stop()
        loop.call_later(settings.drain_timeout.total_seconds(), running.cancel)

    running = asyncio.create_task(run())
    for number in (signal.SIGTERM, signal.SIGINT):  # before anything shows that this process is there
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await running


log = structlog.get_logger(__name__)

_LOOK_S = 2.0


@contextmanager
def termination_heard(notice: str) -> Iterator[None]:
    """During the block, check for the file `notice`; once it exists, send SIGTERM to this process."""
    if not notice:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(Path(notice), ended), name="termination", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(notice: Path, ended: threading.Event) -> None:
    try:
        while not (announced := notice.exists()) and not ended.wait(_LOOK_S):
            pass
    except OSError as error:  # a directory that this user may not enter
        log.warning("termination_notice_unavailable", error=type(error).__name__)
        return
    if announced and not ended.is_set():
        log.warning("termination_notice", source=str(notice))
        os.kill(os.getpid(), signal.SIGTERM)
