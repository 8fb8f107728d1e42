"""The outbox: turns notices into deliveries, claims due deliveries, records attempts and the state of receivers.

A failing receiver is paused; a receiver that is gone (410) is disabled.
"""

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from time import monotonic
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.moves import id_from
from pecia_schemas.states import DeliveryState
from pecia_workers.ledger.database import fetch
from pecia_workers.outgoing.places import Places, Standing, Turn

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
    SET failures = 0, failing_since = NULL, failed_at = NULL, paused_until = NULL, well_at = now(),
        next_due = CASE WHEN next_due IS NOT NULL AND failures > 0 THEN now() ELSE next_due END
    WHERE receiver = :receiver AND standing <> 'well'
    """
)

_FORGET = text(
    """
    DELETE FROM receivers WHERE greatest(known_at, failed_at, well_at) < now() - :age
    AND coalesce(paused_until <= now(), true) AND next_due IS NULL AND receiver LIKE 'http%'
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
    """What an attempt shows about its receiver."""

    WELL = "well"
    FAILING = "failing"
    GONE = "gone"
    UNKNOWN = "unknown"
    """Not reached, for a reason on our side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A callback to attempt now."""

    id: UUID
    job_id: UUID | None
    """None: a test of an endpoint."""
    endpoint_id: UUID | None
    """None: the webhook that came with the job, signed by the fleet's secret."""
    url: str
    receiver: str
    """The endpoint, or scheme, host and port."""
    type: str
    body: Any
    """A `JobNotice`, as the row has it."""
    attempt: int
    """Counted from 1, at the claim; the fence of the recorded outcome."""
    turn: int
    """The same, counted from 1 again after a replay."""
    claimed_at: datetime
    """By the clock of Postgres."""
    secret: Any = None
    """The endpoint's signing secret, as stored."""
    former_secret: Any = None
    """The previous secret, while it is valid."""
    traceparent: str | None = None
    """The span that its job was submitted in."""
    taken: Turn
    """Identifies the place that it occupies."""
    _received: float = field(default_factory=monotonic)

    @property
    def now(self) -> datetime:
        """The time by the clock of Postgres, to within the delay of the claim's reply.

        This machine's clock may be wrong, and receivers refuse signatures with a wrong time.
        """
        return self.claimed_at + timedelta(seconds=monotonic() - self._received)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """The outcome of an attempt."""

    state: DeliveryState
    receiver: ReceiverState = ReceiverState.UNKNOWN
    status: int | None = None
    """HTTP status, if there was an answer."""
    error: str | None = None
    """A short code, never text of the receiver's."""
    retry_in: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A recorded attempt."""

    at: datetime
    """When it began."""
    begun: float
    """When it began, by this process's monotonic clock, in seconds."""
    duration: timedelta
    reply: str | None
    """The beginning of the answer's body, if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePolicy:
    """When a receiver is paused, and for how long."""

    after: int
    """Consecutive failed attempts."""
    first: timedelta
    """Length of the first pause; each further one is twice as long."""
    longest: timedelta = timedelta(hours=1)


_AT_A_TIME = 1_000

# The tenants for which notices wait, each by one look-up in the index.
_WAITING = text(
    """
    WITH RECURSIVE waiting AS (
        (SELECT CAST(tenant AS text) FROM notices ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT min(tenant) FROM notices WHERE notices.tenant > waiting.tenant)
        FROM waiting WHERE waiting.tenant IS NOT NULL
    )
    SELECT tenant FROM waiting WHERE tenant IS NOT NULL
    """
)

_SUBSCRIBERS = "disabled_at IS NULL AND (tenant = :tenant OR tenant IS NULL)"

# So many notices that, with all endpoints of the tenant, no more than `most` rows are written; one at least, whose
# further endpoints come next time. A job that is being erased takes its notices with it.
_FAN_OUT = text(
    f"""
    WITH oldest AS MATERIALIZED (
        SELECT notices.* FROM notices JOIN jobs ON jobs.id = notices.job_id
        WHERE notices.tenant = :tenant ORDER BY notices.at, notices.id
        LIMIT (SELECT greatest(1, :most / greatest(1, count(*))) FROM endpoints WHERE {_SUBSCRIBERS})
        FOR UPDATE OF notices SKIP LOCKED FOR KEY SHARE OF jobs SKIP LOCKED
    ), targets AS MATERIALIZED (
        SELECT oldest.id AS notice_id, oldest.job_id, type, body, at, endpoint.*
        FROM oldest CROSS JOIN LATERAL (
            SELECT id AS endpoint_id, url, coalesce(tenant, '') AS tenant FROM endpoints
            WHERE {_SUBSCRIBERS} AND oldest.type = ANY(events) AND created_at <= oldest.at
              AND (oldest.after IS NULL OR id > oldest.after)
            ORDER BY id LIMIT :most FOR KEY SHARE
        ) AS endpoint
    ), reached AS (
        SELECT notice_id, count(*) AS number, (array_agg(endpoint_id ORDER BY endpoint_id DESC))[1] AS last
        FROM targets GROUP BY notice_id
    ), moved AS (
        UPDATE notices SET after = last FROM reached WHERE notices.id = notice_id AND number = :most
    ), gone AS (
        DELETE FROM notices USING oldest
        WHERE notices.id = oldest.id
          AND oldest.id NOT IN (SELECT notice_id FROM reached WHERE number = :most)
    ), promised AS (
        INSERT INTO deliveries (id, job_id, type, url, endpoint_id, body, created_at, promised_at, queued)
        SELECT {id_from("notice_id", "endpoint_id")}, job_id, type, url, endpoint_id, body, at, at, true
        FROM targets
        ON CONFLICT (id) DO NOTHING
    ), queued AS (
        INSERT INTO receivers (receiver, next_due, tenant)
        SELECT DISTINCT CAST(endpoint_id AS text) AS receiver, now(), tenant FROM targets ORDER BY receiver
        ON CONFLICT (receiver) DO UPDATE
        SET next_due = greatest(now(), receivers.paused_until), tenant = excluded.tenant
        WHERE receivers.next_due IS NULL
    )
    SELECT count(*) FROM oldest
    """  # noqa: S608  constants
)

# What has become due joins its receiver's queue. Only those who promise, replay or record a try write here, by adding
# rows: no job's end waits for a receiver that gets notices of others too. Receivers are locked by name, so that two
# workers never wait for each other in a circle. A host that several tenants have called is none's: else one of them
# could take the places of another.
_QUEUE = text(
    """
    WITH due AS (
        SELECT id FROM deliveries WHERE state = 'pending' AND NOT queued AND next_at <= now()
        ORDER BY next_at LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
    ), joined AS (
        UPDATE deliveries SET queued = true FROM due WHERE deliveries.id = due.id
        RETURNING receiver, job_id, endpoint_id
    ), owned AS (
        SELECT receiver, array_agg(DISTINCT coalesce(
            CASE WHEN endpoint_id IS NULL THEN jobs.tenant ELSE endpoints.tenant END, '')) AS tenants
        FROM joined LEFT JOIN jobs ON jobs.id = job_id LEFT JOIN endpoints ON endpoints.id = endpoint_id
        GROUP BY receiver
    )
    INSERT INTO receivers (receiver, next_due, tenant)
    SELECT receiver, now(), CASE WHEN cardinality(tenants) = 1 THEN tenants[1] ELSE '' END FROM owned ORDER BY receiver
    ON CONFLICT (receiver) DO UPDATE
    SET next_due = coalesce(receivers.next_due, greatest(now(), receivers.paused_until)),
        tenant = CASE WHEN receivers.tenant = excluded.tenant OR receivers.receiver NOT LIKE 'http%'
                 THEN excluded.tenant ELSE '' END
    WHERE receivers.next_due IS NULL OR receivers.tenant NOT IN (excluded.tenant, '')
    """
)

# Of each tenant and standing those that have waited for longest: as many as can be served at once, and those that this
# worker serves already.
_TURNS = text(
    """
    WITH RECURSIVE tenants AS (
        (SELECT CAST(tenant AS text) FROM receivers WHERE next_due IS NOT NULL ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT min(tenant) FROM receivers WHERE next_due IS NOT NULL AND receivers.tenant > tenants.tenant)
        FROM tenants WHERE tenants.tenant IS NOT NULL
    )
    SELECT turn.receiver, turn.tenant, turn.standing
    FROM tenants CROSS JOIN unnest(CAST(:standings AS text[])) AS standings (standing)
    CROSS JOIN LATERAL (
        SELECT receiver, tenant, standing, next_due FROM receivers
        WHERE receivers.tenant = tenants.tenant AND receivers.standing = standings.standing
          AND next_due <= now() AND (:signs OR receiver NOT LIKE 'http%')
        ORDER BY next_due LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
    ) AS turn
    ORDER BY turn.next_due
    """
)

# A statement of its own, by its own clock: it sees all that was queued before the receivers were locked, and what is
# queued meanwhile waits for that lock. One for which more wait goes behind the others. A claim is a promise to record
# within `visibility`. If the worker dies, the row becomes due again.
_CLAIM = text(
    """
    WITH turns AS (
        SELECT receiver, next_due, room FROM receivers
        JOIN unnest(CAST(:receivers AS text[]), CAST(:rooms AS int[])) AS allotted (receiver, room) USING (receiver)
    ), next AS (
        SELECT one.id, one.endpoint_id, turns.receiver FROM turns
        CROSS JOIN LATERAL (
            SELECT id, endpoint_id, next_at FROM deliveries
            WHERE state = 'pending' AND deliveries.receiver = turns.receiver AND next_at <= statement_timestamp()
            ORDER BY next_at LIMIT room
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS one
        ORDER BY turns.next_due, one.next_at
    ), served AS (
        SELECT receiver, receiver IN (SELECT receiver FROM next) AS took, EXISTS (
            SELECT FROM deliveries
            WHERE state = 'pending' AND deliveries.receiver = turns.receiver AND next_at <= statement_timestamp()
              AND id NOT IN (SELECT id FROM next)
        ) AS more
        FROM turns
    ), moved AS (
        UPDATE receivers SET next_due = CASE WHEN NOT more THEN NULL WHEN took THEN now() ELSE next_due END
        FROM served WHERE receivers.receiver = served.receiver
    )
    UPDATE deliveries
    SET attempts = attempts + 1, queued = false, next_at = now() + :visibility
    FROM next LEFT JOIN endpoints ON endpoints.id = next.endpoint_id
    WHERE deliveries.id = next.id
    RETURNING deliveries.id, job_id, deliveries.endpoint_id, deliveries.url, deliveries.receiver, type, body,
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


async def fan_out(database: AsyncEngine) -> int:
    """Make deliveries of some waiting notices of each tenant; return how many notices were examined.

    Each tenant has its own transaction of bounded size, so that a crash neither repeats nor omits a notice.
    """
    notices = 0
    for (tenant,) in await fetch(database, _WAITING):
        async with database.begin() as connection:
            notices += (
                await connection.execute(_FAN_OUT, {"tenant": tenant, "most": _AT_A_TIME})
            ).scalar_one()
    return notices


async def claim_deliveries(
    database: AsyncEngine, places: Places, *, most: int = 64, signs: bool, visibility: timedelta
) -> list[ClaimedDelivery]:
    """Claim up to `most` due deliveries that have a place; each belongs to this caller alone for `visibility`.

    The caller occupies the places. `signs`: whether the fleet has a secret for webhooks that came with jobs.
    """
    async with database.begin() as connection:
        await connection.execute(_QUEUE, {"most": _AT_A_TIME})
    async with database.begin() as connection:
        choice = {"standings": list(Standing), "signs": signs, "most": most + places.taken}
        rows = (await connection.execute(_TURNS, choice)).all()
        turns = {row.receiver: Turn(row.receiver, row.tenant, Standing(row.standing)) for row in rows}
        rooms = places.allot(turns.values(), most=most)
        if not rooms:
            return []
        claim = {"receivers": list(rooms), "rooms": list(rooms.values()), "visibility": visibility}
        claimed = (await connection.execute(_CLAIM, claim)).mappings()
        return [ClaimedDelivery(**row, taken=turns[row["receiver"]]) for row in claimed]


async def record_outcome(
    database: AsyncEngine, delivery: ClaimedDelivery, outcome: DeliveryOutcome, tried: Try, pause: PausePolicy
) -> int | None:
    """Record an attempt and its outcome; return how many other deliveries ended because their receiver is gone.

    None: another worker has taken over the delivery, or it was erased. Enough failures pause the receiver; an answer
    clears them, and also the mark that its endpoint was gone, unless that mark was set during this attempt. A gone
    receiver's endpoint is disabled, and deliveries that wait for that URL end.
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
            await connection.execute(_RECOVERED, about)
        if outcome.receiver is ReceiverState.WELL and delivery.endpoint_id is not None:
            await connection.execute(_ENABLE, about | {"age": timedelta(seconds=monotonic() - tried.begun)})
        if outcome.receiver is not ReceiverState.GONE:
            return 0
        if delivery.endpoint_id is not None:
            await connection.execute(_DISABLE, about)
        return (await connection.execute(_END, about)).rowcount


async def give_up(database: AsyncEngine, *, age: timedelta) -> int:
    """End some deliveries that were made, or last replayed, longer ago than `age`; return how many.

    Also deletes the records of hosts whose last failure is that old: nothing waits for them.
    """
    async with database.begin() as connection:
        await connection.execute(_FORGET, {"age": age})
        return (await connection.execute(_GIVE_UP, {"age": age, "limit": _AT_A_TIME})).rowcount
