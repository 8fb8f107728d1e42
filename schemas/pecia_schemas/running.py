"""Running fleets: the fleets that `pecia up` runs for this user, and parts that no running worker of a fleet serves.

Clients find a fleet of this machine by a note about its home directory.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pecia_schemas.states import Stage

_START_TIME = 19  # of /proc/PID/stat, counted from 0 behind the program's name


class RunningFleet(BaseModel):
    """A running fleet: its supervisor and its stores."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    pid: int
    """Process id of the supervisor."""
    home: str
    database_url: str
    redis_url: str
    payload_url: str
    webhook_secret: str = Field(default="", repr=False)
    """Secret that signs the callbacks of jobs' own webhooks."""
    webhook_listener: int = 0
    """Port of this machine that callbacks may use."""
    started: int = 0
    """When the supervisor's process began, in kernel ticks. Distinguishes it from a later process with the same id."""


class NoFleetError(LookupError):
    """No fleet runs here, or not the chosen one, or several run and none was chosen. The message says what to do."""


def notes() -> Path:
    """Return the directory of the notes: `$XDG_STATE_HOME/pecia/fleets`, by default below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pecia" / "fleets"


def announce(fleet: RunningFleet) -> None:
    """Write the note of this fleet's home, readable by this user only. Replaces an existing note."""
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
    """Remove the note of a home if it belongs to this supervisor's fleet."""
    note = _read(_note_of(home))
    if note is not None and note.pid == pid:
        _note_of(home).unlink(missing_ok=True)


def running_fleets() -> list[RunningFleet]:
    """Return the fleets that run for this user now, ordered by home."""
    found = []
    for path in notes().glob("*.json"):
        with suppress(OSError):
            note = _read(path)
            # The process that wrote the note still runs, as this user.
            owned = note and Path(f"/proc/{note.pid}").stat().st_uid == os.geteuid()
            if note and owned and _start_time(note.pid) == note.started:
                found.append(note)
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


def _start_time(pid: int) -> int | None:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return int(status.rpartition(")")[2].split()[_START_TIME])
    return None


LOST = "coalesce(workers.lost_at >= workers.seen_at, false)"
"""SQL condition on a row of `workers`: it was declared dead and has sent no heartbeat since."""
LIVING = f"workers.stopped_at IS NULL AND NOT {LOST}"
"""SQL condition on a row of `workers`: it has neither stopped nor been declared dead."""
ON_DUTY = f"{LIVING} AND workers.seen_at > now() - interval '30 seconds'"
"""SQL condition on a row of `workers`: it is alive and has not missed six heartbeats."""


UNSIGNED = f"""(
    SELECT coalesce(bool_and(capabilities->>'signs' = 'false'), false)
    FROM workers WHERE role = 'webhooks' AND {ON_DUTY}
)"""  # noqa: S608  a constant of this module
"""SQL: webhook workers are on duty, and none of them has the secret that signs the callbacks of jobs' own webhooks."""


class Need(StrEnum):
    """A requirement of a part on its worker."""

    STAGE = "stage"
    ADAPTER = "adapter"
    FIELDS = "fields"
    LANGUAGE = "language"


ABLE = """coalesce(CASE needs.name
    WHEN 'stage' THEN true
    WHEN 'adapter' THEN workers.capabilities->'adapters' ? needs.value
    WHEN 'fields' THEN CAST(workers.capabilities->>'fields' AS boolean)
    ELSE jsonb_typeof(workers.capabilities->'languages') = 'null'
         OR workers.capabilities->'languages' ?| string_to_array(needs.value, ',') END, true)"""
"""SQL condition on rows of `workers` and `needs` (`name`, `value`): the worker meets the need, or does not say."""

UNSERVED = f"""
    WITH requested AS (
        SELECT CASE WHEN CAST(:job_ids AS uuid[]) IS NOT NULL THEN parts.job_id END AS job_id, parts.stage,
               jobs.task->>'adapter' AS adapter, jobs.task->>'language' AS language,
               CASE jsonb_typeof(jobs.task->'fields') WHEN 'object' THEN 'true' END AS fields, count(*) AS parts
        FROM parts JOIN jobs ON jobs.id = parts.job_id
        WHERE parts.state = 'queued' AND parts.run_at <= now()
          AND (CAST(:job_ids AS uuid[]) IS NULL OR parts.job_id = ANY(CAST(:job_ids AS uuid[])))
        GROUP BY 1, 2, 3, 4, 5
    ), needs AS (
        SELECT requested.job_id, requested.stage, requested.parts, need.rank, need.name, need.value
        FROM requested, LATERAL (VALUES
            (1, 'stage', requested.stage), (2, 'adapter', requested.adapter),
            (3, 'fields', requested.fields), (4, 'language', requested.language)
        ) AS need (rank, name, value)
        WHERE need.value IS NOT NULL AND (need.name = 'stage' OR requested.stage <> 'ingest')
    ), unserved AS (
        SELECT * FROM needs WHERE NOT EXISTS (
            SELECT FROM workers
            WHERE {ON_DUTY} AND needs.stage = ANY(workers.stages) AND {ABLE}
        )
    ), first AS (
        SELECT *, min(rank) OVER (PARTITION BY job_id, stage) AS least FROM unserved
    )
    SELECT job_id, stage, name AS need, value, CAST(sum(parts) AS bigint) AS parts
    FROM first WHERE name = 'stage' OR least > 1
    GROUP BY job_id, stage, rank, name, value
    ORDER BY job_id, stage, rank, value
"""  # noqa: S608  constants of this module
"""Takes `job_ids`, or None for all jobs; returns needs of their queued parts that no running worker meets.

If no worker serves the stage, only that need is returned.
"""

_WORK = {
    Stage.SPLIT: ("splits bundles", "start `pecia worker ingest`"),
    Stage.INGEST: ("cuts documents", "start `pecia worker ingest`"),
    Stage.READ: ("reads pages", "start `pecia worker engine`"),
    Stage.CAPTION: ("captions videos", "start one with PECIA_ENGINE=vllm or openai"),
    Stage.SUMMARIZE: ("writes summaries", "start one with PECIA_ENGINE=vllm or openai"),
}

_LANGUAGES = {
    "ko": "give one of the CPU's pecia[korean] and tesseract-ocr-kor, or start one with PECIA_ENGINE=vllm or openai"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A row of `UNSERVED`: a need of queued parts that no running worker meets."""

    job_id: UUID | None
    """Job of the parts; None: any job."""
    stage: str
    need: str
    value: str
    """The stage, adapter or language that is missing."""
    parts: int

    @property
    def sentence(self) -> str:
        """The missing capability and how to start a worker with it."""
        if self.need == Need.ADAPTER:
            return f"no running worker has the adapter {self.value}; start one with it in PECIA_ADAPTERS"
        if self.need == Need.FIELDS:
            return "no running worker fills fields; start one with PECIA_ENGINE=vllm or openai"
        if self.need == Need.LANGUAGE:
            advice = _LANGUAGES.get(self.value, "start one with another PECIA_ENGINE")
            return f"no running worker reads the language {self.value}; {advice}"
        does, advice = _WORK[Stage(self.stage)]
        return f"no running worker {does}; {advice}"
