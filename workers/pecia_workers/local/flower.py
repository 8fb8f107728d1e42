"""Flower, the page on which people watch the fleet: on loopback, behind a password, without buttons."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = "127.0.0.1"
_USER = "pecia"
_MOST_TASKS = 5000  # 90 MB; Flower's own default needs half a gigabyte


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """How to start Flower and how to reach it."""

    port: int
    password: str

    @classmethod
    def plan(cls, *, port: int, password_file: Path) -> Flower:
        """Return a plan for `port`, or for a free port if that is taken."""
        return cls(port=_free_port(port), password=_password(password_file))

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_ADDRESS}:{self.port}"

    @property
    def user(self) -> str:
        """Whom the page lets in."""
        return _USER

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments. The password is no argument: those can be read by every user."""
        return (
            *(sys.executable, "-m", "celery", "-A", "pecia_workers.app", "flower"),
            *(f"--address={_ADDRESS}", f"--port={self.port}", f"--max_tasks={_MOST_TASKS}"),
            *("--read_only=True", "--purge_offline_workers=60"),
        )

    @property
    def environment(self) -> dict[str, str]:
        """What Flower takes from the environment."""
        return {"FLOWER_BASIC_AUTH": f"{_USER}:{self.password}"}

    def answers(self) -> bool:
        """Return whether the page is there."""
        try:
            socket.create_connection((_ADDRESS, self.port), timeout=0.2).close()
        except OSError:
            return False
        return True


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((_ADDRESS, port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    return wanted


def _password(file: Path) -> str:
    """Return the password kept in `file`, made now if there is none."""
    if file.exists() and (kept := file.read_text().strip()):
        return kept
    password = secrets.token_urlsafe(18)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(f"{password}\n")
    return password
