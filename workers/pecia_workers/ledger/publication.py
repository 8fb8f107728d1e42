"""What Postgres believes to be in Redis: marks parts as published, takes the mark back if they are not there.

Redis holds a bounded window of each stage and lane; the relay fills it from what waits here. Parts that were claimed
before come first, then flow after flow, each with as much as the others. No statement here waits for a row that a
worker holds: it comes again with the next look.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pecia_schemas import Lane, Stage, tracing
from pecia_schemas.messages import PartMessage
from pecia_workers.ledger.database import change, fetch
from pecia_workers.queue.bus import NO_FLOW, Bus, Room

_RELAY_LOCK = 0x7065_6369_61  # "pecia": one relay at a time, in whichever process
_ROWS_PER_FETCH = 5_000

_LOCK = text("SELECT pg_try_advisory_xact_lock(:key)")

# Jobs with a time of their own are out of the relay's way until then.
_RIPEN = text(
    """
    WITH ripe AS (
        SELECT id FROM parts WHERE state = 'queued' AND early AND run_at <= now()
        ORDER BY run_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE parts SET early = false FROM ripe WHERE parts.id = ripe.id
    """
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

# Since its message went out, a part may have been claimed and queued for another attempt: the attempt tells.
_MARK = text(
    """
    WITH published AS (
        SELECT parts.id FROM parts
        JOIN unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS asked (id, attempt) USING (id)
        WHERE parts.state = 'queued' AND parts.attempt = asked.attempt
        FOR NO KEY UPDATE OF parts SKIP LOCKED
    )
    UPDATE parts SET published_at = now() FROM published WHERE parts.id = published.id
    """
)

_EXPECTED = text(
    """
    SELECT count(*) AS parts, now() - :grace AS before
    FROM parts WHERE state = 'queued' AND published_at < now() - :grace
    """
)

_PUBLISHED = text(
    "SELECT CAST(id AS text) FROM parts WHERE state = 'queued' AND published_at < :before ORDER BY published_at"
)

_UNMARK = text(
    """
    WITH missing AS (
        SELECT id FROM parts
        WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'queued' AND published_at < :before
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE parts SET published_at = NULL FROM missing WHERE parts.id = missing.id
    """
)


# A job that was given a flow which is deleted here keeps its id; only those that come later take turns of their own.
_FORGET_FLOWS = text(
    """
    DELETE FROM flows WHERE NOT EXISTS (
        SELECT FROM jobs WHERE jobs.flow = flows.id AND jobs.state IN ('queued', 'running'))
    """
)


def _trace_sent(messages: Sequence[PartMessage], began: int) -> None:
    """Record in each job's trace that parts of it were published."""
    ended = time.time_ns()
    for traceparent, number in Counter(message.traceparent for message in messages).items():
        if traceparent:
            about = tracing.messaging("send", number)
            kind = tracing.Kind.PRODUCER
            tracing.past("send", about, kind=kind, began=began, ended=ended, below=traceparent)


async def relay_due(database: AsyncEngine, bus: Bus, *, limit: int) -> int:
    """Publish up to `limit` parts of each list that are due; return how many. 0 while another relay is at it.

    Published first, marked after: whatever dies in between, a part is published twice, which is harmless, not lost.
    """
    rooms = [room for room in await bus.rooms(most=limit) if room.parts]
    async with database.begin() as connection:
        if not (await connection.execute(_LOCK, {"key": _RELAY_LOCK})).scalar_one():
            return 0
        await connection.execute(_RIPEN, {"limit": _ROWS_PER_FETCH})
        due = await _due(connection, rooms)
        if not due and any(room.after != NO_FLOW for room in rooms):
            await bus.relay((), [(room, frozenset()) for room in rooms])  # begins anew
            rooms = [replace(room, after=NO_FLOW) for room in rooms]
            due = await _due(connection, rooms)
        flows: defaultdict[tuple[str, str], set[UUID]] = defaultdict(set)
        for row in due:
            if row["attempt"] == 0:
                flows[row["stage"], row["lane"]].add(row["flow"])
        began, messages = time.time_ns(), [_message_of(row) for row in due]
        refused = await bus.relay(messages, [(room, flows[room.stage, room.lane]) for room in rooms])
        _trace_sent(messages, began)
        left = {message.part for message in refused}
        marked = [(row["id"], row["attempt"]) for row in due if row["id"] not in left]
        if marked:
            ids, attempts = zip(*marked, strict=True)
            await connection.execute(_MARK, {"ids": list(ids), "attempts": list(attempts)})
        return len(marked)


async def _due(connection: AsyncConnection, rooms: Sequence[Room]) -> Sequence[RowMapping]:
    lists = json.dumps([asdict(room) for room in rooms], default=str)
    return (await connection.execute(_DUE, {"lists": lists})).mappings().all()


def _message_of(row: RowMapping) -> PartMessage:
    return PartMessage(
        part=row["id"],
        stage=Stage(row["stage"]),
        lane=Lane(row["lane"]),
        cost=row["cost"],
        flow=row["flow"],
        deaths=row["deaths"],
        traceparent=row["traceparent"],
    )


async def expected_in_redis(database: AsyncEngine, *, grace: timedelta) -> tuple[int, datetime]:
    """Return how many parts Redis should hold that were published before a moment: `grace` ago, by Postgres's clock."""
    (row,) = await fetch(database, _EXPECTED, grace=grace)
    return row.parts, row.before


async def unpublish_missing(database: AsyncEngine, present: AbstractSet[str], *, before: datetime) -> int:
    """Hand parts to the relay again that were published before that moment and are not `present`; return how many."""
    missing = await find_missing(database, present, before)
    async with database.begin() as connection:
        for start in range(0, len(missing), _ROWS_PER_FETCH):
            ids = missing[start : start + _ROWS_PER_FETCH]
            await connection.execute(_UNMARK, {"ids": ids, "before": before})
    return len(missing)


async def forget_flows(database: AsyncEngine) -> int:
    """Forget the flows whose jobs are over; return how many."""
    return await change(database, _FORGET_FLOWS)


async def find_missing(database: AsyncEngine, present: AbstractSet[str], before: datetime) -> list[str]:
    """Return the parts that were published before that moment, are queued, and are not `present`."""
    async with database.connect() as connection:
        streaming = await connection.execution_options(yield_per=_ROWS_PER_FETCH)
        published = (await streaming.stream(_PUBLISHED, {"before": before})).scalars()
        return [part async for part in published if part not in present]
