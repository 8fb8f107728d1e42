"""How the fleet's small asynchronous services run as a process: registered, stopped by a signal, gone in time.

On a spot machine SIGTERM does not come in time: the cloud's notice is asked for. On Kubernetes the cloud's node
termination handler sees to that.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import httpx2
import structlog
from pydantic import BaseModel, Field

from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity


class Service(Protocol):
    """Something that runs until it is stopped."""

    async def run(self) -> None:
        """Run until `stop`; then return as soon as the work in flight is finished."""
        ...

    def stop(self) -> None:
        """Begin nothing new."""
        ...


async def serve(
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
logging.getLogger("httpx2").setLevel(logging.WARNING)  # or it says a line for each look

_NOTICE_EVERY_S = 2.0
_TIMEOUT_S = 5.0
_NOTICE: Final = {"aws": timedelta(minutes=2), "gcp": timedelta(seconds=30), "azure": timedelta(seconds=30)}
"""What is left of the machine after the notice, by the clouds' documentation."""
_LINK_LOCAL: Final = "http://169.254.169.254"
_ADDRESSES: Final = {"aws": _LINK_LOCAL, "gcp": "http://metadata.google.internal", "azure": _LINK_LOCAL}
_MARGIN = timedelta(seconds=15)
"""Of that, for hearing of it and for requeueing."""

Notice = Callable[[httpx2.Client], bool]
"""Asks whether this machine will be taken away. Raises `httpx2.HTTPError`, `OSError` or `ValueError`."""


def within_notice(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings, with a drain that is over before the machine is."""
    notice = _NOTICE.get(settings.termination_notice)
    if notice is None or settings.drain_timeout <= notice - _MARGIN:
        return settings
    return settings.model_copy(update={"drain_timeout": notice - _MARGIN})


@contextmanager
def termination_heard(settings: WorkerSettings) -> Iterator[None]:
    """While the block runs, look for the notice and, once it is there, send this process SIGTERM."""
    if not settings.termination_notice:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(settings, ended), name="termination", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join(_TIMEOUT_S)


def _watch(settings: WorkerSettings, ended: threading.Event) -> None:
    notice = settings.termination_notice
    clouds: dict[str, Notice] = {"aws": _Aws(), "gcp": _gcp, "azure": _Azure()}
    is_announced: Notice = clouds.get(notice, lambda _client: Path(notice).exists())
    address = settings.termination_server or _ADDRESSES.get(notice, "")
    unavailable = False
    # No proxy knows this machine's metadata.
    with httpx2.Client(base_url=address, timeout=_TIMEOUT_S, trust_env=False) as client:
        while not ended.is_set():
            try:
                if is_announced(client):
                    break
                unavailable = False
            except (httpx2.HTTPError, OSError, ValueError) as error:
                if not unavailable:
                    log.warning("termination_notice_unavailable", error=type(error).__name__)
                unavailable = True
            ended.wait(_NOTICE_EVERY_S)
    if not ended.is_set():
        log.warning("termination_notice", source=notice)
        os.kill(os.getpid(), signal.SIGTERM)


class _Aws:
    """EC2's `spot/instance-action`, by version 2 of the instance metadata service; 404 while there is none."""

    def __init__(self) -> None:
        self._token = ""

    def __call__(self, client: httpx2.Client) -> bool:
        answer = self._ask(client)
        if answer.status_code == httpx2.codes.UNAUTHORIZED:  # the token has run out
            self._token = ""
            answer = self._ask(client)
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return False
        answer.raise_for_status()
        return True

    def _ask(self, client: httpx2.Client) -> httpx2.Response:
        if not self._token:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            self._token = client.put("/latest/api/token", headers=lifetime).raise_for_status().text
        headers = {"X-aws-ec2-metadata-token": self._token}
        return client.get("/latest/meta-data/spot/instance-action", headers=headers)


def _gcp(client: httpx2.Client) -> bool:
    """Ask Compute Engine whether it has begun to preempt this machine."""
    headers = {"Metadata-Flavor": "Google"}
    answer = client.get("/computeMetadata/v1/instance/preempted", headers=headers)
    return answer.raise_for_status().text.strip() == "TRUE"


class _Event(BaseModel):
    kind: str = Field(alias="EventType")
    machines: tuple[str, ...] = Field(default=(), alias="Resources")


class _Events(BaseModel):
    events: tuple[_Event, ...] = Field(alias="Events")


class _Azure:
    """Azure's scheduled events, which list the other machines of a scale set too."""

    _GOING: Final = {"Preempt", "Terminate"}

    def __init__(self) -> None:
        self._name = ""

    def __call__(self, client: httpx2.Client) -> bool:
        if not self._name:
            name = self._ask(client, "/metadata/instance/compute/name?api-version=2021-02-01&format=text")
            self._name = name.text.strip()
        answer = self._ask(client, "/metadata/scheduledevents?api-version=2020-07-01")
        events = _Events.model_validate_json(answer.content).events
        return any(event.kind in self._GOING and self._name in event.machines for event in events)

    @staticmethod
    def _ask(client: httpx2.Client, path: str) -> httpx2.Response:
        return client.get(path, headers={"Metadata": "true"}).raise_for_status()
