"""The home of a local fleet: its files, sockets and lock, environment of its processes, start of Flower."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from pydantic import SecretStr, TypeAdapter

from pecia_schemas.settings import PREFIX, WorkerSettings
from pecia_workers.local.process import EmbeddedError, FleetRunningError, state_of, wait_until

_PREFIX = "pecia-tmp-"
_LOCK = "lock"
_LONGEST_PATH = 107 - len("/postgres/.s.PGSQL.5432")  # what the kernel allows a socket's path
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # needs no escape in a URL; Alembic would interpolate a percent sign
_HALF_MADE_S = 60
_NAMED_S = 1.0
"""Seconds in which a supervisor writes its process id after taking the lock."""
_STOPPING = b" stopping"
_LONGEST_NOTE = 32
_SUSPENDED = ("T", "t")  # in /proc/PID/stat: by a signal such as Ctrl-Z's, or by a debugger


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDirectory:
    """A new directory with a short path, locked while this process lives."""

    path: Path
    lock: int
    """Descriptor of the lock, by which later processes recognise the directory of a dead owner."""

    @classmethod
    def create(cls, parent: Path | None = None) -> ScratchDirectory:
        """Make one, mode 0700, in `parent` or the temporary directory; remove those of dead owners."""
        parent = parent or _temporary_directory()
        for path in parent.glob(f"{_PREFIX}????????"):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    shutil.rmtree(path, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unheld = path / "unheld"
        lock = os.open(unheld, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unheld.rename(path / _LOCK)  # held before another process can take the directory for abandoned
        return cls(path=path, lock=lock)

    def remove(self) -> None:
        """Remove it with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def _temporary_directory() -> Path:
    """Return a directory for sockets. Raises `EmbeddedError` if each candidate is too deep or not accessible."""
    for candidate in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")):  # noqa: S108  fallbacks, made 0700  # nosec B108
        if (
            _is_addressable(candidate / f"{_PREFIX}0123456789abcdef")
            and os.access(candidate, os.W_OK | os.X_OK)
            and (os.geteuid() != 0 or candidate.stat().st_mode & 0o001)
        ):
            return candidate
    raise EmbeddedError("No short and open temporary directory: set TMPDIR to one, such as /tmp.")


def _is_addressable(directory: Path) -> bool:
    """Return whether the kernel and URLs accept paths of sockets in this directory."""
    return len(str(directory)) <= _LONGEST_PATH and bool(_PLAIN.fullmatch(str(directory)))


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return not any(path.iterdir()) and time.time() - path.stat().st_mtime > _HALF_MADE_S
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)


def default_home() -> Path:
    """Return the default home: the system's for root, else the user's."""
    if os.geteuid() == 0:
        return Path("/var/lib/pecia")
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "pecia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The directories and files of one fleet."""

    path: Path

    @property
    def payloads(self) -> Path:
        """Documents."""
        return self.path / "payloads"

    @property
    def webhook_secret(self) -> Path:
        """File of the secret that signs webhooks submitted with jobs."""
        return self.path / "webhook.secret"

    def log(self, name: str) -> Path:
        """Return the log of one process."""
        return self.path / "logs" / f"{name}.log"

    @property
    def sockets(self) -> Path:
        """Directory of the servers' sockets, the same at every start: in the home, unless its path is too long.

        Otherwise in the temporary directory, since that of the session (`XDG_RUNTIME_DIR`) is removed with the session.
        """
        home = self.path.resolve()
        if _is_addressable(sockets := home / "sockets"):
            return sockets
        name = hashlib.sha256(f"{os.geteuid()} {home}".encode()).hexdigest()[:16]
        return _temporary_directory() / f"pecia-{name}"

    @contextmanager
    def socket_directory(self, server: str) -> Iterator[Path]:
        """Make the directory of one server's sockets; removed after the block if empty.

        Raises `EmbeddedError` if another account could have replaced it.
        """
        sockets = self.sockets
        with contextlib.suppress(FileExistsError):
            sockets.mkdir(mode=0o700)
        status = sockets.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise EmbeddedError(
                f"{sockets} is not a directory to which this user alone can write: remove it, or choose another"
                " directory for the fleet (--home)."
            )
        if os.geteuid() == 0:
            sockets.chmod(0o711)  # root's Postgres runs as another account
        directory = sockets / server
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            yield directory
        finally:
            for emptied in (directory, sockets):
                with contextlib.suppress(OSError):  # a killed server's socket: its next start removes that
                    emptied.rmdir()

    @contextmanager
    def hold(self) -> Iterator[Callable[[], object]]:
        """Make the home and lock it; yields a function that records that this supervisor is stopping.

        Raises `FleetRunningError`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not any(self.path.iterdir()):  # ours from now on; one with other things in it keeps its mode
                mode = 0o711 if os.geteuid() == 0 else 0o700  # root's Postgres runs as another account
                self.path.chmod(mode)
            for directory in (self.payloads, self.path / "logs"):
                directory.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self.path / "fleet.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise EmbeddedError(
                f"This user may not write in {self.path}: choose another directory (--home), or run as its owner."
            ) from error
        except OSError as error:
            raise EmbeddedError(
                f"No fleet can live in {self.path} ({error.strerror}): choose another directory (--home)."
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._running_already(lock) from None
            os.truncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            yield partial(os.write, lock, _STOPPING)
        finally:
            os.close(lock)

    def _running_already(self, lock: int) -> FleetRunningError:
        """Return who holds the lock, as far as it has said so, and what to do."""
        wait_until(lambda: bool(state_of(_holder(lock))), _NAMED_S)
        holder = _holder(lock)
        if state_of(holder) in _SUSPENDED:
            return FleetRunningError(
                f"The fleet in {self.path} has a supervisor that is suspended (process {holder}): `kill -CONT {holder}`"
                " lets it go on, and Ctrl-C or `kill` then stops it."
            )
        if os.pread(lock, _LONGEST_NOTE, 0).endswith(_STOPPING):
            return FleetRunningError(
                f"The fleet in {self.path} is still stopping (process {holder}): start again once it has ended."
            )
        return FleetRunningError(
            f"A fleet already runs in {self.path} (process {holder}): stop it with Ctrl-C where it was started,"
            " or choose another directory (--home, PECIA_HOME)."
        )


def _holder(lock: int) -> str:
    """Return the process id in a lock file; just after the lock was taken, none or a former one."""
    return os.pread(lock, _LONGEST_NOTE, 0).removesuffix(_STOPPING).decode() or "unknown"


def kept_secret(file: Path, make: Callable[[], str]) -> str:
    """Return the secret in `file`, creating it if needed. Only this account can read it."""
    if file.exists() and (kept := file.read_text().strip()):
        return kept
    secret = make()
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(f"{secret}\n")
    return secret


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
