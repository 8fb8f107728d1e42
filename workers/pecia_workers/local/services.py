"""Environment of a local fleet's processes, and how Flower is started."""

import json
import os
import secrets
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import SecretStr, TypeAdapter

from pecia_schemas.settings import PREFIX, WorkerSettings
from pecia_workers.local.home import kept_secret

_DURATION = TypeAdapter(timedelta)
_ANY = ("", "0.0.0.0", "::")  # noqa: S104  compared with, not listened on  # nosec B104


def environment(settings: WorkerSettings) -> dict[str, str]:
    """Return our environment with every explicit setting, whatever its origin.

    A setting given at its default is passed on too, since it overrides the profile's.
    """
    passed = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    for name, value in settings:
        if name not in settings.model_fields_set:
            continue
        plain = value
        if isinstance(value, SecretStr):
            plain = value.get_secret_value()
        elif isinstance(value, timedelta):
            plain = _DURATION.dump_python(value, mode="json")
        passed[PREFIX + name.upper()] = plain if isinstance(plain, str) else json.dumps(plain)
    return passed


class Flower:
    """How Flower is started, and how to reach it."""

    command = (sys.executable, "-m", "pecia_workers", "flower")
    """The program and its arguments. The password is not among them, as every user can read arguments."""

    def __init__(self, settings: WorkerSettings, home: Path) -> None:
        """Choose a free port if that of the settings is taken, and generate a password if they have none.

        Both stay the same over restarts, unless the port is taken by then or the settings change.
        """
        given = settings.flower_password.get_secret_value()
        self.address = settings.flower_address
        self.port = self._free_port(settings.flower_port, home / "flower.port")
        self.user = settings.flower_user
        self.password = given or kept_secret(home / "flower.password", lambda: secrets.token_urlsafe(18))
        shown = "as in PECIA_FLOWER_PASSWORD" if given else self.password
        self.login = f"user {self.user}, password {shown}"
        """User and password, for display."""
        prefix = settings.flower_url_prefix.strip("/")
        self.url = url_of(self.address, self.port) + (f"/{prefix}" if prefix else "")
        """URL of the page from this machine."""
        self.environment = {"PECIA_FLOWER_PORT": str(self.port), "PECIA_FLOWER_PASSWORD": self.password}
        """Its environment variables, in addition to the fleet's settings."""

    def _free_port(self, chosen: int, file: Path) -> int:
        """Return the first free port of: the one in `file` for this choice, the chosen one, any."""
        name, _, kept = file.read_text().partition(" ") if file.exists() else ("", "", "")
        former = (int(kept),) if name == str(chosen) and kept.isdecimal() else ()
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        for port in (*former, chosen, 0):
            with suppress(OSError), socket.create_server((self.address, port), family=family) as listener:
                free = int(listener.getsockname()[1])
                file.write_text(f"{chosen} {free}")
                return free
        return chosen


def url_of(address: str, port: int) -> str:
    """Return the URL of a listener, as seen from this machine."""
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
