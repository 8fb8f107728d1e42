"""One process of a local fleet: started, watched, and started again with growing pauses when it dies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from pecia_workers.local.errors import EmbeddedError
from pecia_workers.local.process import Running

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R", bound=Running)

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_HEALTHY_S = 60.0  # who ran this long and died starts again as if for the first time
_SETTLED_S = 1.0  # who ran this long counts as ready if there is no better way to tell


class ServiceState(StrEnum):
    """What a service of the fleet is doing."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    """It died and waits for its next start."""
    STOPPED = "stopped"
    EXTERNAL = "external"
    """Not ours: given by URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One line of the screen."""

    name: str
    pid: int | None
    state: ServiceState
    where: str
    """Its address, or its log if it has none."""
    restarts: int = 0


class Supervised(Generic[R]):
    """A process or server, and how to have it again. Used by one thread alone, but for `service`."""

    def __init__(
        self,
        *,
        name: str,
        where: str,
        launch: Callable[[], R],
        ready: Callable[[], bool] | None = None,
        ended: Callable[[int], None] | None = None,
    ) -> None:
        self.name = name
        self.where = where
        self._launch = launch
        self._ready = ready
        self._ended = ended
        self._running: R | None = None
        self._state = ServiceState.STOPPED
        self._restarts = 0
        self._pause = _FIRST_PAUSE_S
        self._launched = 0.0
        self._due = 0.0

    @property
    def service(self) -> Service:
        """How it stands now."""
        running = self._running
        return Service(
            name=self.name,
            pid=running.pid if running else None,
            state=self._state,
            where=self.where,
            restarts=self._restarts,
        )

    def start(self) -> R:
        """Start it. Raises `EmbeddedError`."""
        self._running = launched = self._launch()
        self._launched = time.monotonic()
        self._state = ServiceState.STARTING
        return launched

    def tend(self) -> None:
        """Look after it: called again and again, never waits."""
        if self._running is None:
            self._start_when_due()
        elif not self._running.alive:
            self._bury(self._running)
        elif self._state is ServiceState.STARTING and self._is_ready():
            self._state = ServiceState.READY

    def ask_to_stop(self) -> None:
        """Tell it to end; returns at once."""
        if self._running:
            self._running.ask_to_stop()

    def stop(self, timeout: float) -> None:
        """End it, by force after `timeout` seconds."""
        if self._running:
            self._running.stop(timeout)
            self._let_go(self._running)
        self._state = ServiceState.STOPPED

    def _is_ready(self) -> bool:
        if self._ready:
            return self._ready()
        return time.monotonic() - self._launched > _SETTLED_S

    def _bury(self, running: R) -> None:
        running.kill()  # takes the rest of its group along
        self._let_go(running)
        if time.monotonic() - self._launched > _HEALTHY_S:
            self._pause = _FIRST_PAUSE_S
        self._wait_for_next_start()

    def _let_go(self, running: R) -> None:
        self._running = None
        if self._ended:
            self._ended(running.pid)

    def _start_when_due(self) -> None:
        if self._state is not ServiceState.RESTARTING or time.monotonic() < self._due:
            return
        self._restarts += 1
        try:
            self.start()
        except (EmbeddedError, OSError):
            self._wait_for_next_start()

    def _wait_for_next_start(self) -> None:
        self._state = ServiceState.RESTARTING
        self._due = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
