"""A Postgres data directory: who owns it, which programs serve it, and how it is made."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from pecia_workers.local.errors import EmbeddedError, tail
from pecia_workers.local.process import Account, refuse_other_systems, spawn
from pecia_workers.local.wheels import postgres_programs

ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
_UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A directory of data, ready to be served."""

    data: Path
    programs: Path
    account: Account | None
    """Whom to serve it as; None: as we are."""

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
    if not (data / "PG_VERSION").exists():
        _initialise(cluster, durable=durable)
    return cluster


def _account_for(data: Path) -> Account | None:
    """Postgres refuses to run as root: then it runs as the owner of the data, or as an account without rights."""
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
    return all(_may_search(account, ancestor) for ancestor in (directory, *directory.parents))


def _may_search(account: Account, directory: Path) -> bool:
    status = directory.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & 0o100)
    if status.st_gid == account.gid:
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def _programs_for(account: Account | None, nearby: Path) -> Path:
    """Return programs that the account can run: a copy where it cannot enter the virtual environment."""
    programs = postgres_programs().resolve()
    if account is None or _can_enter(account, programs):
        return programs
    stamp = (programs / "postgres").stat().st_mtime_ns
    copy = nearby / f"postgres-programs-{stamp}"
    if not copy.exists():
        _copy_installation(programs.parent, copy)
    return copy / programs.parent.parent.name / programs.parent.name / "bin"


def _copy_installation(installation: Path, target: Path) -> None:
    """Copy a wheel's installation with the libraries that lie beside its package, all or nothing."""
    package = installation.parent
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
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
    unfinished.rename(target)


def _initialise(cluster: Cluster, *, durable: bool) -> None:
    """Make the cluster beside its place first, so that an interrupted attempt is never taken for a whole one."""
    unfinished = cluster.data.with_name(f".{cluster.data.name}.unfinished")
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
    made = spawn(command, log=log, environment=ENVIRONMENT, directory=Path("/"), account=cluster.account)
    if made.popen.wait():
        raise EmbeddedError(f"initdb could not make a database in {cluster.data}:\n{tail(log)}")
    log.unlink()
    unfinished.rename(cluster.data)
