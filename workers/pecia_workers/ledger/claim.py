"""Claim in Postgres: who runs a part now. The attempt counted here is the fence of its commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from sqlalchemy import RowMapping, TextClause
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import Lane, PayloadRef, Stage, Task
from pecia_schemas.encryption import Keyring, unseal_task
from pecia_schemas.moves import moving
from pecia_schemas.tasks import task_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A part whose message this worker has."""

    part: UUID
    deaths: int = 0
    """Workers that died on it, by its message. One that died since makes the message stale: a newer one is there."""


Fence = tuple[UUID, int]
"""A part and its attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """A part that this worker runs until it commits, or is taken for dead."""

    id: UUID
    job_id: UUID
    stage: Stage
    ordinal: int
    """Page or segment, counted from 0."""
    attempt: int
    strikes: int
    """Attempts that failed before this one."""
    deaths: int
    """Workers that died on it."""
    lane: Lane
    start_s: float | None
    end_s: float | None
    """Where in the video it lies, in seconds, if it is a segment."""
    kind: str
    stored_task: Mapping[str, Any] = field(repr=False)
    queued_s: float
    """Seconds since it could first have run."""
    client: str = ""
    """Who submitted it."""
    tenant: str | None = None
    """For whom, if it came through the gateway."""
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the job was submitted with."""
    traceparent: str | None = None
    """The span that it was submitted in."""
    keys: Keyring = field(default=Keyring(), repr=False, compare=False)
    """What the task may be encrypted under."""

    @property
    def fence(self) -> Fence:
        """By which this run of the part is told from any other, also from an earlier one of the same worker."""
        return self.id, self.attempt

    @property
    def task(self) -> Task[Any]:
        """What was asked for. Read only here, so that a task of a newer version fails its own part alone.

        Raises `KeyError` or `pydantic.ValidationError` if this version does not understand it, `DecryptionError` if
        this worker's keys do not decrypt it.
        """
        return task_from_json(self.kind, unseal_task(self.stored_task, self.job_id, self.keys))

    @property
    def payload(self) -> PayloadRef:
        """The document it is a part of; not to be asked of an ingest that may have to fetch it first."""
        return cast("PayloadRef", self.task.source)  # a task that was cut has no other source


# A part that runs here already was claimed before, and the answer got lost. A queued part whose time has not come has
# been published too often: the relay does it again. A worker that was taken for dead claims nothing until it has
# registered anew.
_ALIVE = "NOT EXISTS (SELECT FROM workers WHERE name = :actor AND lost_at >= seen_at)"


def _claiming(chosen: str) -> TextClause:
    return moving(
        chosen,
        sets="attempt = attempt + 1, worker = :actor, started_at = now(), failure = NULL",
        begins=True,
        ends=False,
        answer="""
        SELECT moved.id, moved.job_id, moved.stage, moved.ordinal, moved.attempt, moved.strikes,
               moved.deaths, moved.lane, moved.start_s, moved.end_s,
               extract(epoch FROM now() - moved.run_at) AS queued_s, jobs.kind, jobs.task AS stored_task,
               jobs.client, jobs.tenant, jobs.metadata, jobs.traceparent
        FROM moved JOIN jobs ON jobs.id = moved.job_id
        """,
    )


_CLAIM = _claiming(
    f"""
    asked AS (
        SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:deaths AS int[])) AS asked (id, deaths)
    ), chosen AS (
        SELECT parts.id, parts.state AS former, 'running' AS state, CAST(NULL AS text) AS reason
        FROM parts JOIN asked USING (id)
        WHERE (parts.state = 'queued' AND parts.run_at <= now() AND parts.deaths <= asked.deaths
               OR parts.state = 'running' AND parts.worker = :actor)
          AND {_ALIVE}
        ORDER BY parts.id
        FOR NO KEY UPDATE OF parts
    )
    """  # noqa: S608  a constant of this module
)

_CLAIM_WAITING = _claiming(
    f"""
    chosen AS (
        SELECT id, state AS former, 'running' AS state, CAST(NULL AS text) AS reason FROM parts
        WHERE state = 'queued' AND lane = :lane AND run_at <= now() AND deaths = 0
          AND stage = ANY(CAST(:stages AS text[])) AND id <> ALL(CAST(:without AS uuid[])) AND {_ALIVE}
        ORDER BY run_at, id LIMIT :slots FOR NO KEY UPDATE SKIP LOCKED
    )
    """  # noqa: S608  a constant of this module
)


async def claim_parts(
    database: AsyncEngine, worker: str, requests: Sequence[ClaimRequest], keys: Keyring
) -> list[ClaimedPart | None]:
    """Return each part that is now this worker's, None for those that are cancelled, done or another worker's."""
    asked = {
        "ids": [one.part for one in requests],
        "deaths": [one.deaths for one in requests],
        "actor": worker,
    }
    async with database.begin() as connection:
        rows = await connection.execute(_CLAIM, asked)
        claimed = {row["id"]: _part_of(row, keys) for row in rows.mappings()}
    return [claimed.get(request.part) for request in requests]


async def claim_waiting(
    database: AsyncEngine,
    worker: str,
    stages: Collection[Stage],
    slots: int,
    *,
    without: Collection[UUID] = (),
    keys: Keyring,
) -> list[ClaimedPart]:
    """Return up to so many parts of these stages that are now this worker's: the first lane first, the oldest first.

    Without a message: for a Redis that is away. Parts on which a worker died are left out, and those in `without`.
    """
    claimed: list[ClaimedPart] = []
    for lane in Lane:
        asked = {"stages": list(stages), "without": list(without), "actor": worker, "lane": lane}
        async with database.begin() as connection:
            rows = await connection.execute(_CLAIM_WAITING, asked | {"slots": slots - len(claimed)})
            claimed += [_part_of(row, keys) for row in rows.mappings()]
        if len(claimed) == slots:
            break
    return claimed


def _part_of(row: RowMapping, keys: Keyring) -> ClaimedPart:
    typed = {
        "stage": Stage(row["stage"]),
        "lane": Lane(row["lane"]),
        "queued_s": max(0.0, float(row["queued_s"])),
    }
    return ClaimedPart(**{**row, **typed}, keys=keys)
