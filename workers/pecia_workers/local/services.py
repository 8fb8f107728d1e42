"""The environment of the processes of a local fleet; Flower, and the pages that it serves."""

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
    """Return our environment with every setting that was given to us, however that was.

    One given at its default is passed on too: it wins over what a profile says.
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
    """The program and its arguments. The password is no argument: those can be read by every user."""

    def __init__(self, settings: WorkerSettings, home: Path) -> None:
        """Find a free port if that of the settings is taken, and keep a password if they have none.

        A fleet that is started again has the same, unless that port is taken meanwhile or the settings name another.
        """
        given = settings.flower_password.get_secret_value()
        self.address = settings.flower_address
        self.port = self._free_port(settings.flower_port, home / "flower.port")
        self.user = settings.flower_user
        self.password = given or kept_secret(home / "flower.password", lambda: secrets.token_urlsafe(18))
        shown = "as in PECIA_FLOWER_PASSWORD" if given else self.password
        self.login = f"user {self.user}, password {shown}"
        """What to type there, for a screen."""
        prefix = settings.flower_url_prefix.strip("/")
        self.url = url_of(self.address, self.port) + (f"/{prefix}" if prefix else "")
        """Where the page is, seen from this machine."""
        self.environment = {"PECIA_FLOWER_PORT": str(self.port), "PECIA_FLOWER_PASSWORD": self.password}
        """What it takes from the environment, beside the fleet's settings."""

    def _free_port(self, chosen: int, file: Path) -> int:
        """Return the first free port: what `file` says it had for this choice, the chosen one, any."""
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
