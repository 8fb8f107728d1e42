"""Whether every promise was kept, judged by what is left when all is over: rows, callbacks, processes, keys."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from redis import Redis

from pecia_schemas.states import JobState
from pecia_workers.queue.lists import claimed_name
from tests.soak.observer import Observer
from tests.soak.producer import Accepted, Shape
from tests.soak.receiver import Call

_SHOWN = 3
_THROWN_OUT = re.compile(r"thrown[ _]out")
_KOMBU = b"_kombu."
"""Bindings of remote control, which Celery's workers keep as long as they live."""

_CLAIMED = claimed_name("").encode()

_JOBS = """
    SELECT id, state, total, (
        SELECT string_agg(DISTINCT failure->>'code', ' ') FROM parts WHERE job_id = jobs.id AND state = 'failed'
    ) FROM jobs
"""
_RESULTS = """
    SELECT parts.id FROM parts LEFT JOIN results ON results.part_id = parts.id
    GROUP BY parts.id
    HAVING count(results) <> CAST(parts.state = 'done' AND parts.stage <> 'ingest' AS int)
        OR bool_or(results.attempt <> parts.attempt)
"""
_ENDS = """
    SELECT parts.id FROM parts LEFT JOIN job_events AS told ON told.part_id = parts.id AND told.state = 'done'
    GROUP BY parts.id HAVING count(told.state) <> CAST(parts.state = 'done' AS int)
"""
_READ_AGAIN = """
    SELECT DISTINCT part_id FROM job_events AS told JOIN job_events AS again USING (part_id)
    WHERE told.state = 'done' AND again.state IN ('queued', 'running') AND again.sequence > told.sequence
"""
_LOSSES = "reason IN ('worker_lost', 'engine_lost', 'poisoned')"
_LOST_BY = f"""
    SELECT begun.actor, count(*) FROM job_events AS begun
    JOIN (SELECT part_id, attempt FROM job_events WHERE {_LOSSES}) AS lost USING (part_id, attempt)
    WHERE begun.state = 'running' AND begun.actor <> ALL(%s) GROUP BY begun.actor
"""  # noqa: S608  a constant of this module
_DEATHS = f"""
    SELECT parts.id FROM parts LEFT JOIN job_events ON job_events.part_id = parts.id AND {_LOSSES}
    WHERE parts.deaths > 0 GROUP BY parts.id HAVING parts.deaths > count(job_events.part_id)
"""  # noqa: S608  a constant of this module
_COUNTERS = """
    SELECT jobs.id FROM jobs LEFT JOIN parts ON parts.job_id = jobs.id AND parts.stage <> 'ingest'
    GROUP BY jobs.id
    HAVING jobs.done <> count(parts) FILTER (WHERE parts.state = 'done')
        OR jobs.failed <> count(parts) FILTER (WHERE parts.state = 'failed')
        OR jobs.cancelled <> count(parts) FILTER (WHERE parts.state = 'cancelled')
        OR coalesce(jobs.total, 0) <> count(parts)
"""
_CALLBACKS = """
    SELECT jobs.id FROM jobs LEFT JOIN deliveries ON deliveries.job_id = jobs.id
    GROUP BY jobs.id HAVING count(deliveries) <> 1 OR bool_or(deliveries.state <> 'delivered')
"""
_DELIVERED = "SELECT job_id, deliveries.id, jobs.state FROM deliveries JOIN jobs ON jobs.id = job_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    promise: str
    broken_by: tuple[str, ...] = ()
    """What contradicts it: ids, keys, processes."""

    @property
    def kept(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.broken_by

    @property
    def detail(self) -> str:
        """How many contradictions there are, and the first of them; nothing if it was kept."""
        if self.kept:
            return ""
        more = " …" if len(self.broken_by) > _SHOWN else ""
        return f"{len(self.broken_by)}: {', '.join(self.broken_by[:_SHOWN])}{more}"


def finding(promise: str, broken_by: Iterable[object]) -> Finding:
    """Return the verdict on a promise, given all that contradicts it."""
    return Finding(promise=promise, broken_by=tuple(map(str, broken_by)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    id: UUID
    state: JobState
    total: int | None
    codes: str | None
    """Why parts of it failed."""


class Auditor:
    """Judges a fleet that has come to rest."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def judge_jobs(self, accepted: Sequence[Accepted]) -> list[Finding]:
        """Judge what became of the jobs that producers know of."""
        jobs = {job.id: job for job in self._jobs()}
        known = {one.job_id for one in accepted}
        return [
            finding("every accepted job is there", known - jobs.keys()),
            finding("no job is there twice, or unknown to its producer", jobs.keys() - known),
            finding(
                "every job is over",
                (f"{job.id} {job.state}" for job in jobs.values() if not job.state.is_terminal),
            ),
            finding(
                "every job ended as its document deserves",
                (
                    f"{one.job_id} {jobs[one.job_id].state} {jobs[one.job_id].codes or ''}".strip()
                    for one in accepted
                    if one.job_id in jobs and not _is_deserved(one, jobs[one.job_id])
                ),
            ),
        ]

    def judge_parts(self) -> list[Finding]:
        """Judge results, events and counters against the parts."""
        return [
            finding("one result for each part that is done, of its last attempt", self._ids(_RESULTS)),
            finding("every part was committed once", self._ids(_ENDS)),
            finding("nothing finished was begun again", self._ids(_READ_AGAIN)),
            finding("every job's counters equal its parts", self._ids(_COUNTERS)),
        ]

    def judge_deaths(self, struck: Collection[str]) -> list[Finding]:
        """Judge the deaths that were counted, given the workers that were killed or stopped."""
        lost = self._observer.rows(_LOST_BY, list(struck))
        return [
            finding(
                "no worker that lived was taken for dead", (f"{name} {parts} parts" for name, parts in lost)
            ),
            finding("no death was counted that was none", self._ids(_DEATHS)),
        ]

    def judge_callbacks(self, calls: Sequence[Call], *, forged: int) -> list[Finding]:
        """Judge what the receiver got against what was promised."""
        ids: defaultdict[UUID, set[str]] = defaultdict(set)
        told: dict[UUID, JobState] = {}
        for call in calls:
            ids[call.notice.data.job_id].add(call.id)
            told[call.notice.data.job_id] = call.notice.data.state
        promised = {job: (str(id_), state) for job, id_, state in self._observer.rows(_DELIVERED)}
        return [
            finding("every job has one callback, and it was delivered", self._ids(_CALLBACKS)),
            finding(
                "every callback came, with the truth and under one id",
                (
                    job
                    for job, (id_, state) in promised.items()
                    if ids[job] != {id_} or told.get(job) != state
                ),
            ),
            finding("every call was signed", range(forged)),
        ]

    def _jobs(self) -> list[_Job]:
        return [
            _Job(id=id_, state=JobState(state), total=total, codes=codes)
            for id_, state, total, codes in self._observer.rows(_JOBS)
        ]

    def _ids(self, statement: str) -> list[Any]:
        return [row[0] for row in self._observer.rows(statement)]


def _is_deserved(one: Accepted, job: _Job) -> bool:
    order = one.order
    if order.cancelled and job.state is JobState.CANCELLED:
        return True
    if order.shape is Shape.DAMAGED:
        return job.state is JobState.FAILED and job.codes == "damaged"
    whole = job.state is JobState.SUCCEEDED and job.total == order.pages
    return whole or (order.cancelled and job.state is JobState.PARTIAL)


def keys_left(redis: Redis) -> list[str]:
    """Return the keys of Redis, but for Celery's own bindings and the replies to workers' last claims, which expire."""
    found: Any = redis.scan_iter(count=1_000)
    left = [key for key in found if not key.startswith((_KOMBU, _CLAIMED))]
    return sorted(key.decode(errors="replace") for key in left)


def judge_logs(logs: Path) -> list[Finding]:
    """Judge what workers say of themselves: what they throw out for a fault of their own is read again."""
    lines = (line for log in sorted(logs.glob("*.log")) for line in log.read_text().splitlines())
    return [finding("no worker threw out a part", (line for line in lines if _THROWN_OUT.search(line)))]


def processes_with(directory: Path) -> dict[int, str]:
    """Return the commands of processes that were told of a directory, or work in it; a zombie tells nothing."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            told = str(directory) in f"{command} {process.environ()}"
            if told or Path(process.cwd()).is_relative_to(directory):
                found[process.pid] = command
    return found


def orphans(home: Path) -> list[str]:
    """Return the fleet's processes whose parents are gone."""
    found = processes_with(home)
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    return [f"{pid} {command[:80]}" for pid, command in found.items() if pid not in ours]


def leftovers(home: Path) -> list[str]:
    """Return the processes of a fleet that was stopped."""
    return [f"{pid} {command[:80]}" for pid, command in processes_with(home).items()]


def judge_processes(while_running: Sequence[str], afterwards: Sequence[str]) -> list[Finding]:
    """Judge which processes outlived those that they belong to."""
    return [
        finding("no process is an orphan", while_running),
        finding("no process outlives the fleet", afterwards),
    ]
