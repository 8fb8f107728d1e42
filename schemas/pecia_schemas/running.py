"""The fleet that `pecia up` runs for this user: a note in the state directory, by which clients find it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
    webhook_secret: str = Field(default="", repr=False)
    """Signs the callbacks of jobs' own webhooks."""
    webhook_listener: int = 0
    """Port of this machine that callbacks may reach."""
    started: int = 0
    """When the supervisor's process began, in the kernel's ticks: tells it from a later process with its number."""


def fleet_file() -> Path:
    """Return where the note lies: `$XDG_STATE_HOME/pecia/fleet.json`, by default below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pecia" / "fleet.json"


def announce(fleet: RunningFleet) -> None:
    """Write the note, readable by this user alone. One that is there already is replaced."""
    path = fleet_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = fleet.model_copy(update={"started": _start_time(fleet.pid) or 0})
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".fleet-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(note.model_dump_json())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def withdraw(pid: int) -> None:
    """Remove the note if it is about the fleet of this supervisor."""
    note = _read()
    if note is not None and note.pid == pid:
        fleet_file().unlink(missing_ok=True)


def find() -> RunningFleet | None:
    """Return the fleet that runs for this user now, if any."""
    note = _read()
    return note if note is not None and _is_ours(note) else None


def _read() -> RunningFleet | None:
    with suppress(OSError, ValidationError):
        path = fleet_file()
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
