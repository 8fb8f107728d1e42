"""Publication: which queued parts Redis should hold, which are due, and which Redis has lost.

Redis holds a bounded window of each stage and lane; the relay fills it from the parts queued here. Parts that were
claimed before come first, then flow after flow with equal shares. No statement waits for a row that a worker has
locked: the next run finds it.
"""

import json
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane, Stage
from pecia_workers.ledger.database import change, fetch
from pecia_workers.protocol.parts import Fence, ListSpace

_RELAY_LOCK = 0x7065_6369_61  # "pecia": one relay at a time, in whichever process
_ROWS_PER_FETCH = 5_000
_LOCK = text("SELECT pg_try_advisory_xact_lock(:key)")
REQUESTED = "unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS requested (id, attempt)"
"""SQL: the parts and attempts of a statement, from the parameters that `requested` returns."""


def _set_unlocked(sets: str, chosen: str) -> TextClause:
    """Return SQL that sets columns of the chosen parts and skips those locked by another transaction."""
    return text(
        f"""
    WITH chosen AS ({chosen} FOR NO KEY UPDATE OF parts SKIP LOCKED)
    UPDATE parts SET {sets} FROM chosen WHERE parts.id = chosen.id
    """  # noqa: S608  constants of this module
    )


# Jobs with a time of their own are out of the relay's way until then.
_RIPEN = _set_unlocked(
    "early = false",
    "SELECT id FROM parts WHERE state = 'queued' AND early AND run_at <= now() ORDER BY run_at LIMIT :limit",
)

# Looks at as many flows as there is room for, one index entry each, however much waits in them.
_DUE = text(
    """
    WITH lists AS (
        SELECT * FROM jsonb_to_recordset(CAST(:lists AS jsonb)) AS lists (
            stage text, lane text, parts int, turn int, after uuid)
    )
    SELECT due.id, cost, attempt, deaths, lists.stage, lists.lane, coalesce(due.flow, job_id) AS flow,
           (SELECT traceparent FROM jobs WHERE jobs.id = job_id) AS traceparent
    FROM lists CROSS JOIN LATERAL ((
        SELECT id, job_id, flow, cost, attempt, deaths FROM parts
        WHERE state = 'queued' AND published_at IS NULL AND attempt > 0
          AND parts.stage = lists.stage AND parts.lane = lists.lane AND run_at <= now()
        ORDER BY run_at, id LIMIT lists.parts
    ) UNION ALL (
        WITH RECURSIVE walk AS (
            SELECT lists.after AS flow, 0 AS flows
            UNION ALL
            SELECT next.flow, flows + 1 FROM walk CROSS JOIN LATERAL (
                SELECT coalesce(parts.flow, job_id) AS flow FROM parts
                WHERE state = 'queued' AND published_at IS NULL AND attempt = 0 AND NOT early
                  AND parts.stage = lists.stage AND parts.lane = lists.lane AND coalesce(parts.flow, job_id) > walk.flow
                ORDER BY coalesce(parts.flow, job_id) LIMIT 1
            ) AS next
            WHERE flows < lists.parts
        )
        SELECT turns.* FROM walk CROSS JOIN LATERAL (
            SELECT id, job_id, parts.flow, cost, attempt, deaths FROM parts
            WHERE state = 'queued' AND published_at IS NULL AND attempt = 0 AND NOT early
              AND parts.stage = lists.stage AND parts.lane = lists.lane AND coalesce(parts.flow, job_id) = walk.flow
              AND run_at <= now()
            ORDER BY run_at, id
            LIMIT least(lists.turn, (SELECT 1 + (lists.parts - 1) / greatest(1, max(flows)) FROM walk))
        ) AS turns
        WHERE walk.flows > 0
    )) AS due
    """
)

# Since its message went out, a part may have been claimed and queued for another attempt: the attempt shows it.
_MARK = _set_unlocked(
    "published_at = now()",
    f"SELECT id FROM parts JOIN {REQUESTED} USING (id, attempt) WHERE parts.state = 'queued'",  # noqa: S608
)

# A worker that died, or stopped without Redis, may have had parts between Redis and Postgres.
_EXPECTED = text(
    """
    SELECT count(*) AS parts, now() - :grace AS before,
           EXISTS (SELECT FROM workers WHERE greatest(lost_at, stopped_at) > now() - :lately) AS in_doubt
    FROM parts WHERE state = 'queued' AND published_at < now() - :grace
    """
)

_PUBLISHED = text(
    "SELECT CAST(id AS text) FROM parts WHERE state = 'queued' AND published_at < :before ORDER BY published_at"
)

_UNMARK = _set_unlocked(
    "published_at = NULL",
    """SELECT id FROM parts
       WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'queued' AND published_at < :before""",
)

# A job that was given a flow which is deleted here keeps its id; only those that come later take turns of their own.
_FORGET_FLOWS = text(
    """
    DELETE FROM flows WHERE NOT EXISTS (
        SELECT FROM jobs WHERE jobs.flow = flows.id AND jobs.state IN ('queued', 'running'))
    """
)


async def is_free(connection: AsyncConnection) -> bool:
    """Return whether no other relay runs; if so, exclude others until the transaction ends."""
    return bool((await connection.execute(_LOCK, {"key": _RELAY_LOCK})).scalar_one())


async def due_parts(
    connection: AsyncConnection, spaces: Sequence[ListSpace]
) -> list[tuple[PartMessage, int]]:
    """Return the parts to publish, each with the number of its attempts so far."""
    await connection.execute(_RIPEN, {"limit": _ROWS_PER_FETCH})
    lists = json.dumps([asdict(space) for space in spaces], default=str)
    return [
        (
            PartMessage(
                part=row.id,
                stage=Stage(row.stage),
                lane=Lane(row.lane),
                cost=row.cost,
                flow=row.flow,
                deaths=row.deaths,
                traceparent=row.traceparent,
            ),
            row.attempt,
        )
        for row in await connection.execute(_DUE, {"lists": lists})
    ]


async def mark_published(connection: AsyncConnection, parts: Sequence[Fence]) -> None:
    """Record that messages of these parts were published."""
    if parts:
        await connection.execute(_MARK, requested(parts))


@dataclass(frozen=True, slots=True)
class Expected:
    """How many parts Redis should hold that were published `before` a moment, and whether to doubt the count."""

    parts: int
    before: datetime
    """By Postgres's clock."""
    in_doubt: bool
    """Whether a worker ended so recently that it may have had parts that are in neither Redis nor Postgres's count."""


async def expected_in_redis(database: AsyncEngine, *, grace: timedelta, lately: timedelta) -> Expected:
    """Count the parts published longer than `grace` ago that Redis should hold; in doubt if a worker ended `lately`."""
    (row,) = await fetch(database, _EXPECTED, grace=grace, lately=lately)
    return Expected(parts=row.parts, before=row.before, in_doubt=row.in_doubt)


async def unpublish(database: AsyncEngine, parts: Collection[str], *, before: datetime) -> None:
    """Mark parts that were published before that moment for the relay to publish again."""
    ids = list(parts)
    async with database.begin() as connection:
        for start in range(0, len(ids), _ROWS_PER_FETCH):
            some = ids[start : start + _ROWS_PER_FETCH]
            await connection.execute(_UNMARK, {"ids": some, "before": before})


async def find_missing(database: AsyncEngine, present: AbstractSet[str], before: datetime) -> list[str]:
    """Return the parts that were published before that moment, are queued, and are not `present`."""
    async with database.connect() as connection:
        streaming = await connection.execution_options(yield_per=_ROWS_PER_FETCH)
        published = (await streaming.stream(_PUBLISHED, {"before": before})).scalars()
        return [part async for part in published if part not in present]


async def forget_flows(database: AsyncEngine) -> int:
    """Forget the flows whose jobs are over; return how many."""
    return await change(database, _FORGET_FLOWS)


def requested(parts: Sequence[Fence]) -> dict[str, Any]:
    """Return the parameters of `REQUESTED`."""
    return {"ids": [part for part, _ in parts], "attempts": [attempt for _, attempt in parts]}
