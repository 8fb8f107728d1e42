"""How documents leave the payload store, though a client may submit the same content at that very moment.

A job holds its payload until it releases it (`jobs.payload_released_at`); payloads are shared by content. What was
released is noted in `discarded_payloads`, in the same transaction. Upkeep, or the client that purges, removes it then:
it takes the payload's lock, looks whether a job holds it, removes it and notes that, in one transaction. A submit
stores its documents first; it writes its jobs while it shares their locks, and looks again for those that were released
within the last day. So a removal comes before that look, or sees the job; also if it crashed after it removed.

Locks are few, and each is for all payloads of one bucket: what removes many takes them bucket by bucket.
"""

from datetime import timedelta

from sqlalchemy import text

_LOCKS = 0x7065_6369  # "peci": the first key of all these advisory locks
_BUCKET = "hashtext({}) & 63"  # few enough for a submit of many documents to share them all
_PAYLOADS = "CAST(:payloads AS text[])"

_HELD = """
    EXISTS (SELECT FROM jobs WHERE jobs.payload = discarded.payload AND payload_released_at IS NULL) AS held
    FROM discarded_payloads AS discarded
"""

MEMORY = timedelta(days=1)
"""How long a removal is remembered: longer than any submit takes."""

HOLD = text("SELECT hold_payloads(CAST(:payloads AS text[]))")
"""Takes `payloads`; keeps all of them from being removed until the transaction ends, by locks that submits share.

Returns those that were released within `MEMORY`: they may have been removed, or stored again.
"""

UNHELD = text(
    """
    SELECT DISTINCT requested.payload FROM unnest(CAST(:payloads AS text[])) AS requested (payload)
    WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.payload = requested.payload AND payload_released_at IS NULL)
    """
)
"""Takes `payloads`; returns those that no job holds."""

DISCARD = text(
    """
    INSERT INTO discarded_payloads (payload, discarded_at, erased_at)
    SELECT DISTINCT payload, now(), now() FROM unnest(CAST(:payloads AS text[])) AS payload
    WHERE payload <> '' ORDER BY payload
    ON CONFLICT (payload) DO UPDATE SET discarded_at = excluded.discarded_at, erased_at = excluded.erased_at
    """
)
"""Takes `payloads`; notes that they were released. Others may hold them: the removal checks."""

WAITING = text(
    f"""
    SELECT {_BUCKET.format("payload")} AS bucket, array_agg(payload) AS payloads FROM (
        SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL ORDER BY discarded_at LIMIT :limit
    ) AS oldest
    GROUP BY bucket ORDER BY bucket
    """  # noqa: S608  constants of this module
)
"""Returns up to `limit` payloads that may have to be removed, bucket by bucket."""

LOCK = text(
    f"""
    SELECT pg_advisory_xact_lock({_LOCKS}, {_BUCKET.format("payload")}) FROM unnest({_PAYLOADS}) AS payload LIMIT 1
    """  # noqa: S608  constants of this module
)
"""Takes `payloads` of one bucket; waits until no submit shares its lock. To be taken before anything else is locked."""

STILL_HELD = text(
    f"""
    SELECT payload, {_HELD} WHERE payload = ANY({_PAYLOADS}) AND discarded_at IS NOT NULL
    ORDER BY payload FOR UPDATE OF discarded SKIP LOCKED
    """
)
"""Takes `payloads`, locked; returns each with whether a job holds it; not those on which others work."""

SETTLED = text(f"SELECT {_HELD} WHERE payload = ANY({_PAYLOADS}) AND discarded_at IS NULL")
"""Takes a payload, locked; returns whether a job holds it, nothing if it still waits to be removed."""

SETTLE = text(
    "UPDATE discarded_payloads SET discarded_at = NULL, erased_at = clock_timestamp()"
    " WHERE payload = ANY(CAST(:payloads AS text[]))"
)
"""Takes `payloads` that were removed, or are held; they wait no longer."""

FORGET = text(
    "DELETE FROM discarded_payloads WHERE discarded_at IS NULL AND erased_at < now() - CAST(:memory AS interval)"
)
"""Takes `memory`; drops records that were settled that long ago."""
