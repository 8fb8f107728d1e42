"""Removal of documents from the payload store, safe against clients that submit the same content concurrently.

A job holds its payload until it releases it (`jobs.payload_released_at`); payloads are shared by content. The
transaction that releases a payload records it in `discarded_payloads`. Upkeep, or a purging client, removes it later:
in one transaction it takes the payload's lock, checks whether a job holds it, removes it and records that. A submit
stores its documents first. It writes its jobs while it shares the payloads' locks, and checks again for payloads
released within the last day. So a removal comes before that check or sees the job, even if it crashed after removing.

There are few locks, each for all payloads of one bucket. To remove many payloads, take the locks bucket by bucket.
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
"""Takes `payloads`; prevents their removal until the transaction ends, by locks that submits share.

Returns the payloads released within `MEMORY`: they may have been removed, or stored again.
"""

UNHELD = text(
    """
    SELECT DISTINCT requested.payload FROM unnest(CAST(:payloads AS text[])) AS requested (payload)
    WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.payload = requested.payload AND payload_released_at IS NULL)
    """
)
"""Takes `payloads`; returns the payloads that no job holds."""

DISCARD = text(
    """
    INSERT INTO discarded_payloads (payload, discarded_at, erased_at)
    SELECT DISTINCT payload, now(), now() FROM unnest(CAST(:payloads AS text[])) AS payload
    WHERE payload <> '' ORDER BY payload
    ON CONFLICT (payload) DO UPDATE SET discarded_at = excluded.discarded_at, erased_at = excluded.erased_at
    """
)
"""Takes `payloads`; records that they were released. Other jobs may hold them: the removal checks."""

WAITING = text(
    f"""
    SELECT {_BUCKET.format("payload")} AS bucket, array_agg(payload) AS payloads FROM (
        SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL ORDER BY discarded_at LIMIT :limit
    ) AS oldest
    GROUP BY bucket ORDER BY bucket
    """  # noqa: S608  constants of this module
)
"""Returns up to `limit` payloads to be checked for removal, grouped by bucket."""

LOCK = text(
    f"""
    SELECT pg_advisory_xact_lock({_LOCKS}, {_BUCKET.format("payload")}) FROM unnest({_PAYLOADS}) AS payload LIMIT 1
    """  # noqa: S608  constants of this module
)
"""Takes `payloads` of one bucket; waits until no submit shares its lock. Take it before any other lock."""

STILL_HELD = text(
    f"""
    SELECT payload, {_HELD} WHERE payload = ANY({_PAYLOADS}) AND discarded_at IS NOT NULL
    ORDER BY payload FOR UPDATE OF discarded SKIP LOCKED
    """
)
"""Takes locked `payloads`; returns each with whether a job holds it. Skips payloads that others are processing."""

SETTLED = text(f"SELECT {_HELD} WHERE payload = ANY({_PAYLOADS}) AND discarded_at IS NULL")
"""Takes a locked payload; returns whether a job holds it, or no row if it still waits for removal."""

SETTLE = text(
    "UPDATE discarded_payloads SET discarded_at = NULL, erased_at = clock_timestamp()"
    " WHERE payload = ANY(CAST(:payloads AS text[]))"
)
"""Takes `payloads` that were removed or are held; ends their wait."""

FORGET = text(
    "DELETE FROM discarded_payloads WHERE discarded_at IS NULL AND erased_at < now() - CAST(:memory AS interval)"
)
"""Takes `memory`; deletes records that were settled longer ago."""
