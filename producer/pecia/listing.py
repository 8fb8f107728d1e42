"""Which jobs a caller wants to see, in SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pecia.records import Listing

_CLOCK_SKEW = timedelta(days=1)  # ids carry the clock of the client that made them
_FIRST_IDS = datetime.fromtimestamp(0, UTC) + _CLOCK_SKEW  # and no time before


def conditions(listing: Listing, tenant: str | None) -> dict[str, dict[str, Any]]:
    """Return the conditions on jobs, in SQL, each with its parameters."""
    found: dict[str, dict[str, Any]] = {}
    if tenant is not None:
        found["jobs.tenant = :tenant"] = {"tenant": tenant}
    if listing.batch is not None:
        found["jobs.batch = :batch"] = {"batch": listing.batch}
    if listing.prefix:
        found["jobs.id BETWEEN :lowest AND :highest"] = range_of(listing.prefix)
    if listing.part is not None:
        found["jobs.id = (SELECT job_id FROM parts WHERE id = :part)"] = {"part": listing.part}
    if listing.states:
        found["jobs.state = ANY(CAST(:states AS text[]))"] = {"states": list(listing.states)}
    if listing.verdicts:
        found[
            """EXISTS (
                SELECT FROM parts AS page WHERE page.job_id = jobs.id AND page.stage = 'read'
                  AND page.verdict = ANY(CAST(:with_verdicts AS text[])))"""
        ] = {"with_verdicts": list(listing.verdicts)}
    if listing.kind is not None:
        found["jobs.kind = :kind"] = {"kind": listing.kind}
    if listing.metadata:
        found["jobs.metadata @> CAST(:metadata AS jsonb)"] = {"metadata": json.dumps(dict(listing.metadata))}
    return found if listing.since is None else found | _since(listing.since)


def _since(since: datetime) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"jobs.created_at >= :since": {"since": since}}
    if since > _FIRST_IDS:
        found["jobs.id >= :oldest"] = {"oldest": _oldest_id(since - _CLOCK_SKEW)}
    return found


def range_of(prefix: str) -> dict[str, UUID]:
    """Return the least and the greatest id that begins so: the primary key finds what lies between them."""
    digits = prefix.replace("-", "")
    return {"lowest": UUID(digits.ljust(32, "0")), "highest": UUID(digits.ljust(32, "f"))}


def sql(wanted: Mapping[str, Mapping[str, Any]]) -> str:
    """Return SQL that is true where all of the conditions are."""
    return " AND ".join(wanted) or "true"


def given(wanted: Mapping[str, Mapping[str, Any]], **others: Any) -> dict[str, Any]:
    """Return the parameters of all the conditions, and the others."""
    return {name: value for parameters in wanted.values() for name, value in parameters.items()} | others


def _oldest_id(since: datetime) -> UUID:
    """Return the least UUIDv7 of that moment: it lets the primary key end the search."""
    return UUID(int=int(since.timestamp() * 1000) << 80)
