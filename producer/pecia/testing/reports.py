"""What a client may ask for beside its jobs, in memory: figures, dead parts, the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pecia.audit import Place, TrailPages
from pecia.dead import CODES, DeadParts
from pecia.errors import InvalidOptionError
from pecia.records import AuditAction, AuditEntry, DeadPart, Percentiles, Usage, UsageFigures
from pecia.statements import D_co, transaction
from pecia.testing.memory import Memory
from pecia.testing.records import PartRecord
from pecia.usage import Accounts
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage
from pecia_schemas.states import JobState, PartState, Stage

_METADATA = "metadata:"
_GROUPS: dict[str, Callable[[PartRecord], str | None]] = {
    "document_type": lambda part: part.job.task.get("document_type"),
    "kind": lambda part: part.job.kind,
    "lane": lambda part: part.lane,
    "engine": lambda part: part.spent.engine if part.spent else None,
}
_PAGE = 500


class MemoryAccounts(Accounts[D_co]):
    """The accounts of all parts of a fake fleet."""

    @transaction
    def since(self, memory: Memory, moment: datetime | None, by: str | None) -> Usage:
        """Return the sums over the parts that have ended since. Raises `InvalidOptionError` for an unknown `by`."""
        name_of = _name_by(by)
        worked = [
            part
            for job in memory.jobs.values()
            for part in job.parts
            if part.spent and part.finished_at and (moment is None or part.finished_at >= moment)
        ]
        names = {name_of(part) for part in worked} if by else set()
        return Usage(
            since=moment,
            by=by,
            total=_figures(None, worked),
            groups=tuple(
                _figures(name, [part for part in worked if name_of(part) == name])
                for name in sorted(names, key=lambda name: (name is None, name or ""))
            ),
        )

    @transaction
    def of_job(self, memory: Memory, job_id: UUID) -> UsageFigures:
        """Return the sums over one job's parts."""
        jobs = memory.known([job_id])
        return _figures(None, [part for job in jobs for part in job.parts if part.spent])


def _name_by(by: str | None) -> Callable[[PartRecord], str | None]:
    if by is None:
        return lambda _part: None
    if by in _GROUPS:
        return _GROUPS[by]
    key = by.removeprefix(_METADATA)
    if key in ("", by):
        raise InvalidOptionError(f"Usage is told apart by {', '.join(_GROUPS)} or {_METADATA}KEY.")
    return lambda part: part.job.metadata.get(key)


def _figures(name: str | None, parts: Sequence[PartRecord]) -> UsageFigures:
    spent = [part.spent for part in parts if part.spent]
    done = [part.stage for part in parts if part.state is PartState.DONE]
    saved = [one.saved for one in spent if one.saved is not None]
    timings = [one.timings for one in spent]
    return UsageFigures(
        name=name,
        jobs=len({part.job.id for part in parts}),
        parts=len(parts),
        pages=done.count(Stage.READ),
        segments=done.count(Stage.CAPTION),
        reused=len(saved),
        saved=sum(saved),
        tokens=sum((one.usage for one in spent), TokenUsage()),
        decode_s=sum(one.decode for one in timings),
        engine_s=sum(one.engine for one in timings),
        queued_s=_percentiles(one.queued for one in timings),
        first_token_s=_percentiles(one.first_token for one in timings if one.first_token is not None),
    )


def _percentiles(seconds: Iterable[float]) -> Percentiles | None:
    ordered = sorted(seconds)
    return Percentiles(p50=_percentile(ordered, 0.5), p95=_percentile(ordered, 0.95)) if ordered else None


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile between its neighbours, as Postgres's `percentile_cont` does."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class MemoryDeadParts(DeadParts[D_co]):
    """What a fake fleet has given up although the document may be fine."""

    @transaction
    def latest(
        self,
        memory: Memory,
        *,
        job_id: UUID | None,
        code: FailureCode | str | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[DeadPart]:
        """Return those that failed last first. Raises `InvalidOptionError` for a code that is final."""
        if code is not None and code not in CODES:
            raise InvalidOptionError(f"What is dead failed with one of {', '.join(CODES)}; {code} is final.")
        found = [
            part
            for part in _dead(memory)
            if code in (None, part.failure.code)
            and job_id in (None, part.job_id)
            and (since is None or part.failed_at >= since)
        ]
        found.sort(key=lambda part: part.id)
        return sorted(found, key=lambda part: part.failed_at, reverse=True)[:limit]

    @transaction
    def one(self, memory: Memory, part_id: UUID) -> DeadPart:
        """Return the part with its events. Raises `InvalidOptionError` if it is not one of them."""
        (part,) = _chosen(memory, [part_id])
        told = [event for event in memory.events(part.job_id) if event.part_id == part_id]
        return part.model_copy(update={"events": tuple(told)})

    @transaction
    def chosen(self, memory: Memory, part_ids: Collection[UUID]) -> list[DeadPart]:
        """Return the parts. Raises `InvalidOptionError` if there is one among them that is not dead."""
        return _chosen(memory, part_ids)


def _chosen(memory: Memory, part_ids: Collection[UUID]) -> list[DeadPart]:
    parts = {part.id: part for part in _dead(memory)}
    for missing in set(part_ids) - set(parts):
        raise InvalidOptionError(f"There is no dead part {missing}; `pecia dead list` shows those there are.")
    return [parts[part_id] for part_id in sorted(set(part_ids))]


def _dead(memory: Memory) -> list[DeadPart]:
    return [
        _as_dead(part)
        for job in memory.jobs.values()
        if job.state not in (JobState.CANCELLED, JobState.EXPIRED) and job.erased_at is None
        for part in job.parts
        if part.state is PartState.FAILED and part.failure and part.failure.code in CODES
    ]


def _as_dead(part: PartRecord) -> DeadPart:
    row: dict[str, Any] = {
        "id": part.id,
        "job_id": part.job.id,
        "job_state": part.job.state,
        "kind": part.job.kind,
        "stage": part.stage,
        "ordinal": part.ordinal,
        "lane": part.lane,
        "failure": part.failure,
        "attempts": part.attempt,
        "strikes": 0,
        "deaths": 0,
        "worker": part.worker,
        "failed_at": part.finished_at,
    }
    return DeadPart.of(row)


class MemoryTrailPages(TrailPages[D_co]):
    """What a fake fleet remembers of reading and erasing."""

    @transaction
    def page(
        self, memory: Memory, place: Place, *, job_id: UUID | None, client: str | None, since: datetime | None
    ) -> tuple[list[AuditEntry], Place]:
        """Return the entries that fit and follow the place, newest first, and the place after them."""
        actor = client and f"client:{client}"
        end = len(memory.trail) if place.id is None else place.id
        found = [
            (index, entry)
            for index, entry in enumerate(memory.trail[:end])
            if job_id in (None, entry.job_id)
            and actor in (None, entry.actor)
            and (not since or entry.at >= since)
        ][-_PAGE:]
        entries = [
            AuditEntry(
                at=entry.at,
                job_id=entry.job_id,
                actor=entry.actor,
                action=AuditAction(entry.action),
                reason=entry.reason,
                counts=entry.counts,
            )
            for _, entry in reversed(found)
        ]
        return entries, Place(id=found[0][0]) if found else place
