"""The outbox: claims promised callbacks that are due, records what became of each try, and how receivers are.

A receiver that fails is paused, nothing more is sent to one that is gone.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from time import monotonic
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.states import DeliveryState

# Tries that were in flight when the pause began make it no longer.
_FAILED = text(
    """
    INSERT INTO receivers AS known (receiver, failures, failing_since, failed_at, paused_until)
    VALUES (:receiver, 1, now(), now(), CASE WHEN CAST(:after AS int) <= 1 THEN now() + CAST(:first AS interval) END)
    ON CONFLICT (receiver) DO UPDATE
    SET failures = known.failures + 1, failing_since = coalesce(known.failing_since, now()), failed_at = now(),
        (paused_until, next_due) = (
            SELECT until, CASE WHEN known.next_due IS NOT NULL THEN coalesce(until, known.next_due) END
            FROM (SELECT CASE WHEN known.failures + 1 >= :after THEN now() + least(
                CAST(:first AS interval) * power(2, least(known.failures + 1 - :after, 30)),
                CAST(:longest AS interval)) END AS until) AS pause)
    WHERE coalesce(known.paused_until <= now(), true)
    """
)

_RECOVERED = text(
    """
    UPDATE receivers
    SET failures = 0, failing_since = NULL, failed_at = NULL, paused_until = NULL,
        next_due = CASE WHEN next_due IS NOT NULL THEN now() END
    WHERE receiver = :receiver AND failures > 0
    """
)

_IDLE = text("DELETE FROM receivers WHERE receiver = :receiver AND failures = 0 AND next_due IS NULL")

_FORGET = text(
    """
    DELETE FROM receivers WHERE failed_at < now() - :age AND coalesce(paused_until <= now(), true)
    AND next_due IS NULL AND receiver LIKE 'http%'
    """
)

# A try that began before the endpoint said that it is gone is no news.
_ENABLE = text(
    "UPDATE endpoints SET disabled_at = NULL WHERE id = :endpoint AND disabled_at < clock_timestamp() - :age"
)

_DISABLE = text("UPDATE endpoints SET disabled_at = now() WHERE id = :endpoint AND disabled_at IS NULL")

# A delivery that another transaction has locked is being tried, and ends by its own answer.
_END = text(
    """
    UPDATE deliveries SET state = 'dead', last_error = 'endpoint_gone', finished_at = now()
    WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'pending' AND receiver = :receiver AND url = :url
        FOR NO KEY UPDATE SKIP LOCKED
    )
    """
)


class ReceiverState(StrEnum):
    """What a try shows of its receiver."""

    WELL = "well"
    FAILING = "failing"
    GONE = "gone"
    UNKNOWN = "unknown"
    """It was not reached, for a reason on our side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A callback to try now."""

    id: UUID
    job_id: UUID | None
    """None: a test of an endpoint."""
    endpoint_id: UUID | None
    """None: the webhook that came with the job, signed by the fleet's secret."""
    url: str
    receiver: str
    """The endpoint, or scheme, host and port."""
    body: dict[str, Any]
    attempt: int
    """Counted from 1, at the claim; the fence of what is recorded."""
    turn: int
    """The same, but counted anew after a replay."""
    claimed_at: datetime
    """By the clock of Postgres."""
    secret: Any = None
    """The endpoint's, as it is stored."""
    former_secret: Any = None
    """The one before, while it is valid."""
    traceparent: str | None = None
    """The span that its job was submitted in."""
    _received: float = field(default_factory=monotonic)

    @property
    def now(self) -> datetime:
        """The time by the clock of Postgres, as far as a reply to the claim may be late.

        This machine's may be wrong: a receiver refuses a signature of another hour.
        """
        return self.claimed_at + timedelta(seconds=monotonic() - self._received)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """What became of a try."""

    state: DeliveryState
    receiver: ReceiverState = ReceiverState.UNKNOWN
    status: int | None = None
    """HTTP status, if there was an answer."""
    error: str | None = None
    """A short code, never text of the receiver's."""
    retry_in: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A try, as it is kept."""

    at: datetime
    """When it began."""
    begun: float
    """The same on this process's monotonic clock, in seconds."""
    duration: timedelta
    reply: str | None
    """The beginning of the answer's body, if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryCapacity:
    """What a worker can take now."""

    deliveries: int
    each: int
    """Deliveries to one receiver at a time."""
    busy: Mapping[str, int]
    """How many are in flight to each receiver."""
    signs: bool
    """Whether the fleet has a secret, for webhooks that came with jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePolicy:
    """When a receiver is paused, and for how long."""

    after: int
    """Tries that fail, one after the other."""
    first: timedelta
    """Length of the first pause; each further one is twice as long."""
    longest: timedelta = timedelta(hours=1)


_AT_A_TIME = 1_000

# What has become due joins its receiver's queue. Only those who promise, replay or record a try write here, by adding
# rows: no job's end waits for a receiver that gets notices of others too. Receivers are locked by name, so that two
# workers never wait for each other in a circle.
_QUEUE = text(
    """
    WITH due AS (
        SELECT id FROM deliveries WHERE state = 'pending' AND NOT queued AND next_at <= now()
        ORDER BY next_at LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
    ), joined AS (
        UPDATE deliveries SET queued = true FROM due WHERE deliveries.id = due.id RETURNING receiver
    )
    INSERT INTO receivers (receiver, next_due) SELECT DISTINCT receiver, now() FROM joined ORDER BY receiver
    ON CONFLICT (receiver) DO UPDATE SET next_due = greatest(now(), receivers.paused_until)
    WHERE receivers.next_due IS NULL
    """
)

# As many as can be served at once, and those that this worker serves already: they may have no room.
_TURNS = text(
    """
    SELECT receiver FROM receivers WHERE next_due <= now() AND (:signs OR receiver NOT LIKE 'http%')
    ORDER BY next_due LIMIT :receivers FOR NO KEY UPDATE SKIP LOCKED
    """
)

# A statement of its own, by its own clock: it sees all that was queued before the receivers were locked, and what is
# queued meanwhile waits for that lock. A failing receiver is tried by one delivery; one for which more wait goes behind
# the others; the row of one for which none wait goes, if it is well. A claim is a promise to record within
# `visibility`. If the worker dies, the row becomes due again.
_CLAIM = text(
    """
    WITH turns AS (
        SELECT receiver, next_due, CASE WHEN paused_until IS NULL THEN CAST(:each AS int) ELSE 1 END
               - coalesce(busy.number, 0) AS room
        FROM receivers
        LEFT JOIN unnest(CAST(:busy AS text[]), CAST(:numbers AS int[])) AS busy (receiver, number) USING (receiver)
        WHERE receiver = ANY(CAST(:turns AS text[]))
    ), next AS (
        SELECT one.id, one.endpoint_id, turns.receiver FROM turns
        CROSS JOIN LATERAL (
            SELECT id, endpoint_id, next_at FROM deliveries
            WHERE state = 'pending' AND deliveries.receiver = turns.receiver AND next_at <= statement_timestamp()
            ORDER BY next_at LIMIT greatest(room, 0)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS one
        ORDER BY turns.next_due, one.next_at LIMIT :limit
    ), served AS (
        SELECT receiver, receiver IN (SELECT receiver FROM next) AS took, EXISTS (
            SELECT FROM deliveries
            WHERE state = 'pending' AND deliveries.receiver = turns.receiver AND next_at <= statement_timestamp()
              AND id NOT IN (SELECT id FROM next)
        ) AS more
        FROM turns WHERE room > 0
    ), gone AS (
        DELETE FROM receivers USING served
        WHERE receivers.receiver = served.receiver AND failures = 0 AND NOT more
    ), moved AS (
        UPDATE receivers SET next_due = CASE WHEN NOT more THEN NULL WHEN took THEN now() ELSE next_due END
        FROM served WHERE receivers.receiver = served.receiver AND (failures > 0 OR more)
    )
    UPDATE deliveries
    SET attempts = attempts + 1, queued = false, next_at = now() + :visibility
    FROM next LEFT JOIN endpoints ON endpoints.id = next.endpoint_id
    WHERE deliveries.id = next.id
    RETURNING deliveries.id, job_id, deliveries.endpoint_id, deliveries.url, deliveries.receiver, body,
              attempts AS attempt, attempts - replayed_after AS turn, clock_timestamp() AS claimed_at,
              endpoints.secret,
              CASE WHEN endpoints.former_until > now() THEN endpoints.former_secret END AS former_secret,
              (SELECT traceparent FROM jobs WHERE jobs.id = deliveries.job_id) AS traceparent
    """
)

_LOCK = text("SELECT FROM deliveries WHERE id = :id FOR NO KEY UPDATE")

_KEEP = text(
    """
    INSERT INTO delivery_attempts (delivery_id, number, at, duration_s, status, error, reply)
    VALUES (:id, :attempt, :at, :duration_s, :status, :error, :reply)
    ON CONFLICT DO NOTHING
    """
)

# What arrived has arrived, even if it was given up meanwhile.
_RECORD = text(
    """
    UPDATE deliveries
    SET state = :state, last_status = :status, last_error = :error, next_at = now() + :retry_in,
        finished_at = CASE WHEN :state = 'pending' THEN NULL ELSE now() END
    WHERE id = :id AND attempts = :attempt AND (state = 'pending' OR CAST(:state AS text) = 'delivered')
    """
)

_GIVE_UP = text(
    """
    UPDATE deliveries SET state = 'dead', last_error = 'given_up', finished_at = now()
    WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'pending' AND promised_at < now() - :age
        ORDER BY promised_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    )
    """
)


async def claim_deliveries(
    database: AsyncEngine, capacity: DeliveryCapacity, *, visibility: timedelta
) -> list[ClaimedDelivery]:
    """Return deliveries that are due and for which there is room, each to this caller alone for `visibility`."""
    turns = {"signs": capacity.signs, "receivers": capacity.deliveries + len(capacity.busy)}
    async with database.begin() as connection:
        await connection.execute(_QUEUE, {"most": _AT_A_TIME})
    async with database.begin() as connection:
        receivers = (await connection.execute(_TURNS, turns)).scalars().all()
        if not receivers:
            return []
        free = {
            "turns": receivers,
            "limit": capacity.deliveries,
            "each": capacity.each,
            "visibility": visibility,
        }
        busy = {"busy": list(capacity.busy), "numbers": list(capacity.busy.values())}
        rows = await connection.execute(_CLAIM, free | busy)
        return [ClaimedDelivery(**row) for row in rows.mappings()]


async def record_outcome(
    database: AsyncEngine, delivery: ClaimedDelivery, outcome: DeliveryOutcome, tried: Try, pause: PausePolicy
) -> int | None:
    """Write down a try and what became of it; return how many other deliveries died with it, their receiver being gone.

    None: another worker has taken the delivery over meanwhile, or it was erased. After enough failures the receiver is
    paused; they are forgotten once it answers, and that its endpoint was gone, unless that was said during this try. If
    it is gone, its endpoint is disabled, and what waits for that URL ends.
    """
    written = {"id": delivery.id, "attempt": delivery.attempt, **asdict(outcome), **asdict(tried)}
    about = {
        "receiver": delivery.receiver,
        "url": delivery.url,
        "endpoint": delivery.endpoint_id,
        **asdict(pause),
    }
    async with database.begin() as connection:
        if (await connection.execute(_LOCK, written)).one_or_none() is None:
            return None
        await connection.execute(_KEEP, written | {"duration_s": tried.duration.total_seconds()})
        if (await connection.execute(_RECORD, written)).rowcount != 1:
            return None
        if outcome.receiver is ReceiverState.FAILING:
            await connection.execute(_FAILED, about)
        elif outcome.receiver is not ReceiverState.UNKNOWN:
            recovered = await connection.execute(_RECOVERED, about)
            if recovered.rowcount:
                await connection.execute(_IDLE, about)
        if outcome.receiver is ReceiverState.WELL and delivery.endpoint_id is not None:
            await connection.execute(_ENABLE, about | {"age": timedelta(seconds=monotonic() - tried.begun)})
        if outcome.receiver is not ReceiverState.GONE:
            return 0
        if delivery.endpoint_id is not None:
            await connection.execute(_DISABLE, about)
        return (await connection.execute(_END, about)).rowcount


async def give_up(database: AsyncEngine, *, age: timedelta) -> int:
    """End some deliveries that were promised, or replayed last, longer ago than `age`; return how many.

    Hosts that failed so long ago for the last time are forgotten: nothing waits for them.
    """
    async with database.begin() as connection:
        await connection.execute(_FORGET, {"age": age})
        return (await connection.execute(_GIVE_UP, {"age": age, "limit": _AT_A_TIME})).rowcount
