"""One process of a local fleet: started, watched, and started again with growing pauses when it dies."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.home import kept_secret
from pecia_workers.local.process import ChildProcess, EmbeddedError

R = TypeVar("R", bound=ChildProcess)

_ANY = ("", "0.0.0.0", "::")  # noqa: S104  compared with, not listened on  # nosec B104


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """How to start Flower and how to reach it."""

    address: str
    port: int
    user: str
    """Whom the page lets in."""
    password: str
    is_given: bool
    """Whether the password is the operator's own."""
    prefix: str = ""

    @classmethod
    def plan(cls, settings: WorkerSettings, *, password_file: Path) -> Flower:
        """Return a plan by the settings; for a free port if theirs is taken, with a password of its own without one."""
        address = settings.flower_address
        given = settings.flower_password.get_secret_value()
        return cls(
            address=address,
            port=_free_port(address, settings.flower_port),
            user=settings.flower_user,
            password=given or kept_secret(password_file, lambda: secrets.token_urlsafe(18)),
            is_given=bool(given),
            prefix=settings.flower_url_prefix.strip("/"),
        )

    @property
    def url(self) -> str:
        """Where the page is, seen from this machine."""
        return url_of(self.address, self.port) + (f"/{self.prefix}" if self.prefix else "")

    @property
    def login(self) -> str:
        """What to type there, for a screen: a password that the operator chose is only named."""
        password = "as in PECIA_FLOWER_PASSWORD" if self.is_given else self.password
        return f"user {self.user}, password {password}"

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments. The password is no argument: those can be read by every user."""
        return (sys.executable, "-m", "pecia_workers", "flower")

    @property
    def environment(self) -> dict[str, str]:
        """What it takes from the environment, beside the fleet's settings."""
        return {"PECIA_FLOWER_PORT": str(self.port), "PECIA_FLOWER_PASSWORD": self.password}

    def answers(self) -> bool:
        """Return whether the page is there."""
        return answers(self.address, self.port)


def url_of(address: str, port: int) -> str:
    """Return where what listens there is, seen from this machine."""
    host = _host(address)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def answers(address: str, port: int) -> bool:
    """Return whether a process listens there."""
    try:
        socket.create_connection((_host(address), port), timeout=0.2).close()
    except OSError:
        return False
    return True


def _host(address: str) -> str:
    return "127.0.0.1" if address in _ANY else address


def _free_port(address: str, wanted: int) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (wanted, 0):
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    return wanted


_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_HEALTHY_S = 10.0  # a process that ran this long is restarted after the first pause again
_SETTLED_S = 1.0  # a process that runs this long is ready, if nothing else tells


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
        elif self._state is ServiceState.STARTING and (
            self._ready() if self._ready else time.monotonic() - self._launched > _SETTLED_S
        ):
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
