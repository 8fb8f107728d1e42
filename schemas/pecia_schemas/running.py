"""The fleets that `pecia up` runs for this user: a note for each home, by which clients find them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

_START_TIME = 19  # of /proc/PID/stat, counted from 0 behind the program's name


class RunningFleet(BaseModel):
    """Who runs the fleet, and where its stores are."""

    model_config = ConfigDict(frozen=True)

    pid: int
    """The supervisor."""
    home: str
    database_url: str
    redis_url: str
    payload_url: str
    flower_url: str | None = None
    started: int = 0
    """When the supervisor's process began, in the kernel's ticks: tells it from a later process with its number."""


class NoFleetError(LookupError):
    """No fleet runs here, or not the one that was chosen, or several run and none was chosen. Says what to do."""


def notes() -> Path:
    """Return where the notes lie: `$XDG_STATE_HOME/pecia/fleets`, by default below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pecia" / "fleets"


def announce(fleet: RunningFleet) -> None:
    """Write the note of this fleet's home, readable by this user alone. One that is there already is replaced."""
    path = _note_of(fleet.home)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = fleet.model_copy(update={"started": _start_time(fleet.pid) or 0})
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(note.model_dump_json())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def withdraw(home: str, pid: int) -> None:
    """Remove the note of a home if it is about the fleet of this supervisor."""
    note = _read(_note_of(home))
    if note is not None and note.pid == pid:
        _note_of(home).unlink(missing_ok=True)


def running_fleets() -> list[RunningFleet]:
    """Return the fleets that run for this user now, by home."""
    found = [note for path in notes().glob("*.json") if (note := _read(path)) and _is_ours(note)]
    return sorted(found, key=lambda fleet: fleet.home)


def find(home: str = "") -> RunningFleet:
    """Return the fleet that runs in `home`; without one, the only fleet that runs. Raises `NoFleetError`."""
    fleets = running_fleets()
    there = [fleet for fleet in fleets if not home or _real(fleet.home) == _real(home)]
    if len(there) == 1:
        return there[0]
    homes = ", ".join(fleet.home for fleet in fleets)
    if there:
        raise NoFleetError(
            f"Several fleets run on this machine: choose one by --home or PECIA_HOME. They are {homes}."
        )
    where = f"in {home}" if home else "on this machine"
    others = f" Fleets run in {homes}." if fleets else ""
    raise NoFleetError(
        f"No fleet runs {where}: start `pecia up`, or set PECIA_DATABASE_URL, PECIA_REDIS_URL, PECIA_PAYLOAD_URL to"
        f" reach one elsewhere.{others}"
    )


def _note_of(home: str) -> Path:
    return notes() / f"{hashlib.sha256(_real(home).encode()).hexdigest()[:16]}.json"


def _real(home: str) -> str:
    return os.path.realpath(Path(home).expanduser())


def _read(path: Path) -> RunningFleet | None:
    with suppress(OSError, ValidationError):
        if path.stat().st_uid == os.geteuid():
            return RunningFleet.model_validate_json(path.read_bytes())
    return None


def _is_ours(note: RunningFleet) -> bool:
    """Whether the very process that wrote the note still runs, as this user."""
    with suppress(OSError):
        owner = Path(f"/proc/{note.pid}").stat().st_uid
        return owner == os.geteuid() and _start_time(note.pid) == note.started
    return False


def _start_time(pid: int) -> int | None:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return int(status.rpartition(")")[2].split()[_START_TIME])
    return None
