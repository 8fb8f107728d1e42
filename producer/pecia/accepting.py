"""How jobs are written: the work of one transaction, for a client of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from pecia.errors import DatabaseUnavailableError, IdempotencyConflictError, PayloadStoreUnavailableError
from pecia.submission import NewJob
from pecia.view import VIEW, JobView
from pecia_schemas import discards
from pecia_schemas.flows import FLOW_OF
from pecia_schemas.states import JobState
from pecia_schemas.tables import JobEventRow, JobRow, PartRow

_jobs = cast("Table", JobRow.__table__)
_parts = cast("Table", PartRow.__table__)
_events = cast("Table", JobEventRow.__table__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A job in the database; `created` is False if its key named it before."""

    view: JobView
    created: bool
    flow: UUID
    """With what it takes turns as one."""


def accept(
    connection: Connection, batch: Sequence[NewJob], is_stored: Callable[[str], bool]
) -> list[Accepted]:
    """Write the jobs, all or none; those whose key is known already are read back instead.

    `is_stored` tells whether a payload is in the store, if it was removed lately. Raises `IdempotencyConflictError`
    if a key names a job for another task, `PayloadStoreUnavailableError` if a document was removed meanwhile.
    """
    _keep_payloads(connection, batch, is_stored)
    flows = _flows(connection, batch)
    # In the order of keys, so that two clients with the same keys wait for each other only one way round.
    ordered = sorted(batch, key=lambda new: new.key)
    inserting = upsert(_jobs).on_conflict_do_nothing(index_elements=["idempotency_key"]).returning(*VIEW)
    jobs = [{**new.job, "flow": flows.get(new.id)} for new in ordered]
    rows = connection.execute(inserting, jobs).mappings()
    views = {row["id"]: JobView.of(dict(row)) for row in rows}
    created = [new for new in batch if new.id in views]
    if created:
        connection.execute(insert(_parts), [dict(new.part) for new in created])
        connection.execute(insert(_events), [_first_event(new) for new in created])
    repeated = [new for new in batch if new.id not in views]
    known = _known(connection, repeated)
    _discard_unheld(connection, repeated)
    return [
        Accepted(view=view, created=view.id == new.id, flow=flows.get(new.id, new.id))
        for new, view in ((new, views.get(new.id) or known[new.key]) for new in batch)
    ]


def _flows(connection: Connection, batch: Sequence[NewJob]) -> dict[UUID, UUID]:
    """Return the flow of each job that takes turns with others."""
    digests = {new.turns for new in batch if new.turns is not None}
    flows = {digest: connection.execute(FLOW_OF, {"digest": digest}).scalar() for digest in sorted(digests)}
    return {new.id: flow for new in batch if new.turns is not None and (flow := flows[new.turns])}


def _keep_payloads(connection: Connection, batch: Sequence[NewJob], is_stored: Callable[[str], bool]) -> None:
    """Keep the documents of the jobs in the store until their rows are there to hold them."""
    payloads = {"payloads": [new.job["payload"] for new in batch]}
    connection.execute(discards.SHARE_LOCKS, payloads)
    removed = connection.execute(discards.REMOVED_LATELY, payloads).scalars().all()
    if not all(is_stored(payload) for payload in removed):
        raise PayloadStoreUnavailableError(
            "A document with the same content was erased at this very moment: submit again."
        )


def _discard_unheld(connection: Connection, repeated: Sequence[NewJob]) -> None:
    """Let go of documents that were stored for jobs that have no use for them any more."""
    if not repeated:
        return
    payloads = [new.job["payload"] for new in repeated]
    unheld = connection.execute(discards.UNHELD, {"payloads": payloads}).scalars().all()
    if unheld:
        connection.execute(discards.DISCARD, {"payloads": unheld})


def _first_event(new: NewJob) -> dict[str, Any]:
    return {"job_id": new.id, "state": JobState.QUEUED, "actor": f"client:{new.job['client']}"}


def _known(connection: Connection, repeated: Iterable[NewJob]) -> dict[str, JobView]:
    """Return the jobs that bear these keys already."""
    digests = {new.key: new.digests for new in repeated}
    if not digests:
        return {}
    query = select(*VIEW, _jobs.c.idempotency_key, _jobs.c.task_digest)
    rows = connection.execute(query.where(_jobs.c.idempotency_key.in_(digests))).mappings().all()
    if len(rows) < len(digests):
        raise DatabaseUnavailableError("A job with this key was deleted at this very moment: submit again.")
    for row in rows:
        if row["task_digest"] not in digests[row["idempotency_key"]]:
            raise IdempotencyConflictError(row["id"])
    return {row["idempotency_key"]: JobView.of(dict(row)) for row in rows}
