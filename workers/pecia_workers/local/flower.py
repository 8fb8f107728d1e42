"""Flower as part of a local fleet: its port, and a password made when there is none."""

from __future__ import annotations

import secrets
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pecia_workers.local.home import kept_secret

if TYPE_CHECKING:
    from pathlib import Path

    from pecia_schemas.settings import WorkerSettings

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
