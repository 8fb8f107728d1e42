"""Parts as the ledger hands them out; apart from `samples.py`, for the ledger loads SQLAlchemy."""

from typing import Any

from pecia_schemas.states import Lane, Stage, new_id
from pecia_workers.protocol.parts import ClaimedPart


def claimed_part(**changes: Any) -> ClaimedPart:
    """Return the first attempt at an urgent page."""
    usual: dict[str, Any] = {
        "id": new_id(),
        "job_id": new_id(),
        "stage": Stage.READ,
        "ordinal": 0,
        "attempt": 1,
        "strikes": 0,
        "deaths": 0,
        "lane": Lane.URGENT,
        "start_s": None,
        "end_s": None,
        "kind": "document.read",
        "stored_task": {},
        "queued_s": 1.5,
    }
    return ClaimedPart(**(usual | changes))
