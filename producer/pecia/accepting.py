"""How jobs are written: the work of one transaction, for a client of either kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from pecia.errors import (
    DatabaseUnavailableError,
    IdempotencyConflictError,
    InvalidSourceError,
    PayloadStoreUnavailableError,
    SubmitError,
    UnsignedCallbackWarning,
)
from pecia.handles import COLUMNS, Accepted, JobView, progress
from pecia.statements import Connection
from pecia.submission import NewJob
from pecia_schemas.duty import UNSIGNED
from pecia_schemas.encryption import Keyring, unseal_label
from pecia_schemas.states import JobState, Lane

_UNSIGNED = f"SELECT {UNSIGNED}"

_KNOWN = f"""
    SELECT {COLUMNS}, idempotency_key, task_digest, tenant FROM jobs WHERE idempotency_key = ANY(CAST(:keys AS text[]))
"""  # noqa: S608  a constant

# A value that another client writes at this very moment is not seen: then the job takes turns alone.
_FLOW_OF = """
    WITH known AS (
        SELECT id FROM flows WHERE digest = :digest
    ), made AS (
        INSERT INTO flows (digest) SELECT :digest WHERE NOT EXISTS (SELECT FROM known)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT id FROM known UNION ALL SELECT id FROM made
"""

# In the order of keys, so that two clients with the same keys wait for each other only one way round.
_CREATE = """
    WITH asked AS (
        SELECT * FROM jsonb_to_recordset(CAST(%(rows)s AS jsonb)) AS asked (
            id uuid, kind text, flow uuid, digest text, payload text, key text, total int, part uuid, stage text,
            cost int, width int, height int, traceparent text, task jsonb, label jsonb, metadata jsonb)
    ), shared AS (
        SELECT lane, client, tenant, batch, webhook, held,
               coalesce(not_before, now() + not_before_in) AS not_before,
               coalesce(expires, now() + expires_in) AS expires_at
        FROM jsonb_to_record(CAST(%(shared)s AS jsonb)) AS shared (
            lane text, client text, tenant text, batch uuid, webhook jsonb, held bool,
            not_before timestamptz, not_before_in interval, expires timestamptz, expires_in interval)
    ), released AS MATERIALIZED (
        SELECT hold_payloads((SELECT array_agg(DISTINCT payload) FROM asked)) AS payload FROM shared WHERE NOT held
    ), made AS (
        INSERT INTO jobs (id, kind, lane, flow, task, task_digest, payload, idempotency_key, client, tenant, batch,
                          label, metadata, webhook, total, not_before, expires_at, traceparent)
        SELECT id, kind, lane, flow, task, digest, payload, key, client, tenant, batch, label, metadata, webhook,
               total, not_before, expires_at, traceparent
        FROM asked, shared WHERE NOT EXISTS (SELECT FROM released) ORDER BY key COLLATE "C"
        ON CONFLICT (idempotency_key) DO NOTHING
        RETURNING id, created_at
    ), first_parts AS (
        INSERT INTO parts (id, job_id, stage, ordinal, lane, flow, cost, width, height, run_at, early, published_at)
        SELECT part, id, stage, 0, lane, asked.flow, cost, width, height, coalesce(not_before, now()),
               not_before IS NOT NULL, CASE WHEN not_before IS NULL THEN now() END
        FROM asked JOIN made USING (id), shared
    ), first_events AS (
        INSERT INTO job_events (job_id, state, actor) SELECT id, 'queued', 'client:' || client FROM made, shared
    )
    SELECT id, created_at, CAST(NULL AS text) AS released FROM made
    UNION ALL SELECT NULL, NULL, payload FROM released
    """
"""For the driver as it is. Writes jobs with their first parts and events; returns those whose keys were free.

Unless their payloads are `held` by this transaction, it holds them. If some were `released` lately it returns these
instead and writes nothing: then the caller looks what is still there.

The caller publishes the parts that do not wait for a time; they are marked already, which saves a transaction each.
"""


def accept_one(connection: Connection, new: NewJob, keys: Keyring) -> Accepted | None:
    """Write a job that `is_simple` by one statement; None if its key is known, or its payload was released lately."""
    created, _ = _insert(connection, [new], {}, held=False)
    if (created_at := created.get(new.id)) is None:
        return None
    view = view_of(new, MappingProxyType(new.job["metadata"]), created_at, keys)
    return Accepted(view=view, created=True, flow=new.id)


def accept(
    connection: Connection, batch: Sequence[NewJob], keys: Keyring, is_stored: Callable[[str], bool]
) -> list[Accepted | SubmitError]:
    """Write the jobs and return what became of each; those whose key is known already are read back instead.

    Lane, client, tenant, batch, webhook and times are the same for all of them. `is_stored` tells whether a payload
    is in the store, if it was removed lately. An `IdempotencyConflictError` stands for a job whose key names another
    task, an `InvalidSourceError` for one whose document was in the store and was removed. Raises
    `PayloadStoreUnavailableError` if a document was removed after this submit had stored it.
    """
    flows = _flows(connection, batch)
    created, released = _insert(connection, batch, flows, held=False)
    gone = {payload for payload in released if not is_stored(payload)}
    if any(new.deposited and new.job["payload"] in gone for new in batch):
        raise PayloadStoreUnavailableError(
            "A document with the same content was erased at this very moment: submit again."
        )
    there = [new for new in batch if new.job["payload"] not in gone]
    if released:
        created, _ = _insert(connection, there, flows, held=True)
    repeated = [new for new in there if new.id not in created]
    if batch[0].job.get("webhook") and connection.execute(_UNSIGNED, {}).scalar():
        warnings.warn(UnsignedCallbackWarning(), stacklevel=2)
    known = _known(connection, repeated, batch[0].job["tenant"], keys)
    _discard_unheld(connection, repeated)
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def outcome(new: NewJob) -> Accepted | SubmitError:
        if new.job["payload"] in gone:
            return InvalidSourceError(
                "The document is not in the payload store any more: submit the file itself."
            )
        flow = flows.get(new.turns) or new.id
        if created_at := created.get(new.id):
            pairs = new.job["metadata"]
            metadata = shared.setdefault(tuple(pairs.items()), MappingProxyType(pairs))
            view = view_of(new, metadata, created_at, keys)
            return Accepted(view=view, created=True, flow=flow)
        digest, view = known[new.key]
        if digest not in new.digests:
            return IdempotencyConflictError(view.id)
        return Accepted(view=view, created=view.id == new.id, flow=flow)

    return [outcome(new) for new in batch]


def _flows(connection: Connection, batch: Sequence[NewJob]) -> dict[bytes | None, UUID | None]:
    """Return with what jobs take turns as one, by the digest of it; those without one go each by itself."""
    digests = sorted({new.turns for new in batch if new.turns is not None})
    if not digests:
        return {}
    return {digest: connection.execute(_FLOW_OF, {"digest": digest}).scalar() for digest in digests}


def _insert(
    connection: Connection, batch: Sequence[NewJob], flows: Mapping[bytes | None, UUID | None], *, held: bool
) -> tuple[dict[UUID, datetime], set[str]]:
    """Write jobs, first parts and first events in one statement; return which jobs were new, and since when.

    If their payloads are not held yet and some were released lately, return these instead: nothing is written.
    """
    if not batch:
        return {}, set()
    shared = _shared(batch[0].job) | {"held": held}
    rows = [_row_of(new, flows.get(new.turns)) for new in batch]
    said = [{name: value for name, value in row.items() if value is not None} for row in rows]
    asked = {"rows": to_json(said).decode(), "shared": to_json(shared).decode()}
    written = connection.execute_as_is(_CREATE, asked).all()
    created = {row.id: row.created_at for row in written if row.released is None}
    return created, {row.released for row in written if row.released is not None}


def _shared(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the jobs of a batch have in common."""
    return {
        **{name: job[name] for name in ("lane", "client", "tenant")},
        "batch": job["batch"],
        **_of_time("not_before", job["not_before"]),
        **_of_time("expires", job["expires"]),
        "webhook": job.get("webhook"),
    }


def _of_time(name: str, time: datetime | timedelta | None) -> dict[str, str | None]:
    """Return a time as the statement takes it: a point, or a distance from Postgres's `now()`."""
    if isinstance(time, timedelta):
        return {f"{name}_in": f"{time // timedelta(microseconds=1)} microseconds"}
    return {name: time.isoformat() if time else None}


def _row_of(new: NewJob, flow: UUID | None) -> dict[str, Any]:
    job, part = new.job, new.part
    return {
        "id": job["id"],
        "kind": job["kind"],
        "flow": flow,
        "digest": job["task_digest"],
        "payload": job["payload"],
        "key": job["idempotency_key"],
        "total": job["total"],
        "part": part["id"],
        "stage": part["stage"],
        "cost": part["cost"],
        "width": part["width"],
        "height": part["height"],
        "traceparent": job["traceparent"],
        "task": job["task"],
        "label": job["label"],
        "metadata": job["metadata"],
    }


def view_of(new: NewJob, metadata: Mapping[str, str], created_at: datetime, keys: Keyring) -> JobView:
    """Return the view of a row that was written this moment, without reading it back."""
    return JobView(
        id=new.id,
        kind=new.job["kind"],
        lane=Lane(new.job["lane"]),
        state=JobState.QUEUED,
        progress=progress(new.job["total"], 0, 0, 0),
        failure=None,
        label=unseal_label(new.job["label"], new.id, keys),
        batch=new.job["batch"],
        metadata=metadata,
        submitted_at=created_at,
        started_at=None,
        finished_at=None,
        erased_at=None,
    )


def _discard_unheld(connection: Connection, repeated: Sequence[NewJob]) -> None:
    """Let go of documents that were stored for jobs that have no use for them any more."""
    if not repeated:
        return
    from pecia_schemas import discards  # noqa: PLC0415  brings SQLAlchemy, slow to load

    payloads = [new.job["payload"] for new in repeated]
    unheld = connection.execute(discards.UNHELD, {"payloads": payloads}).scalars()
    if unheld:
        connection.execute(discards.DISCARD, {"payloads": unheld})


def _known(
    connection: Connection, repeated: Iterable[NewJob], tenant: str | None, keys: Keyring
) -> dict[str, tuple[str, JobView]]:
    """Return the jobs that have these keys already, each with the digest of its task; of another tenant without."""
    known = {new.key for new in repeated}
    if not known:
        return {}
    rows = connection.execute(_KNOWN, {"keys": list(known)}).mappings().all()
    if len(rows) < len(known):
        raise DatabaseUnavailableError("A job with this key was deleted at this very moment: submit again.")
    return {
        row["idempotency_key"]: (row["task_digest"] if row["tenant"] == tenant else "", JobView.of(row, keys))
        for row in rows
    }
