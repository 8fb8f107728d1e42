"""How documents leave the payload store, though somebody may hand in the same content at that very moment.

A job holds its payload until it releases it (`jobs.payload_released_at`); payloads are shared by content. What was
released is noted in `discarded_payloads`, in the same transaction. Whoever removes it then, upkeep or the client that
purges, takes the payload's lock, looks whether a job holds it, removes it and notes that, in one transaction. A submit
stores its documents first; it writes its jobs while it shares their locks, and looks again for those that were removed
within the last day. So a removal comes before that look, or sees the job.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

_LOCKS = 0x7065_6369  # "peci": the first key of all these advisory locks
_BUCKET = "hashtext({}) & 63"  # few enough for a submit of many documents to share them all

MEMORY = timedelta(days=1)
"""How long a removal is remembered: longer than any submit takes."""

SHARE_LOCKS = text(
    f"""
    SELECT pg_advisory_xact_lock_shared({_LOCKS}, bucket)
    FROM (SELECT DISTINCT {_BUCKET.format("payload")} AS bucket FROM unnest(CAST(:payloads AS text[])) AS payload)
         AS buckets
    """  # noqa: S608  constants of this module
)
"""Takes `payloads`; keeps all of them from being removed until the transaction ends."""

REMOVED_LATELY = text(
    "SELECT payload FROM discarded_payloads WHERE payload = ANY(CAST(:payloads AS text[])) AND erased_at IS NOT NULL"
)
"""Takes `payloads`; returns those that were removed within `MEMORY`, and may have been stored again since."""

UNHELD = text(
    """
    SELECT DISTINCT asked.payload FROM unnest(CAST(:payloads AS text[])) AS asked (payload)
    WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.payload = asked.payload AND payload_released_at IS NULL)
    """
)
"""Takes `payloads`; returns those that no job holds."""

DISCARD = text(
    """
    INSERT INTO discarded_payloads (payload, discarded_at)
    SELECT DISTINCT payload, now() FROM unnest(CAST(:payloads AS text[])) AS payload
    WHERE payload <> '' ORDER BY payload
    ON CONFLICT (payload) DO UPDATE SET discarded_at = excluded.discarded_at
    """
)
"""Takes `payloads`; notes that they were released. Others may hold them: whoever removes them looks."""

WAITING = text(
    "SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL ORDER BY discarded_at LIMIT :limit"
)
"""Returns up to `limit` payloads that may have to be removed."""

LOCK = text(f"SELECT pg_advisory_xact_lock({_LOCKS}, {_BUCKET.format('CAST(:payload AS text)')})")
"""Takes `payload`; waits until no submit shares its lock. To be taken before anything else is locked."""

STILL_HELD = text(
    """
    SELECT EXISTS (
        SELECT FROM jobs WHERE jobs.payload = discarded.payload AND payload_released_at IS NULL
    ) FROM discarded_payloads AS discarded
    WHERE payload = :payload AND discarded_at IS NOT NULL
    FOR UPDATE OF discarded SKIP LOCKED
    """
)
"""Takes `payload`, locked; returns whether a job holds it, nothing if somebody else sees to it."""

SETTLE = text(
    """
    UPDATE discarded_payloads
    SET discarded_at = NULL, erased_at = CASE WHEN :removed THEN clock_timestamp() ELSE erased_at END
    WHERE payload = :payload
    """
)
"""Takes `payload` and whether it was `removed`; it waits no longer."""

FORGET = text(
    """
    DELETE FROM discarded_payloads
    WHERE discarded_at IS NULL AND coalesce(erased_at, '-infinity') < now() - CAST(:memory AS interval)
    """
)
"""Takes `memory`; drops what was settled that long ago."""
