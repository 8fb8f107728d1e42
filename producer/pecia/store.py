"""Every SQL statement of the client: what it writes when it submits, and what it reads while it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Executable, Table, and_, func, insert, select, true, update
from sqlalchemy.dialects.postgresql import insert as upsert

from pecia.audit import AuditAction, note_read
from pecia.database import Database
from pecia.errors import (
    DatabaseUnavailableError,
    IdempotencyConflictError,
    InvalidSettingError,
    PayloadStoreUnavailableError,
)
from pecia.submission import NewJob
from pecia.view import JobView
from pecia_schemas import discards
from pecia_schemas.duty import UNSERVED, Lack
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import Failure
from pecia_schemas.flows import FLOW_OF
from pecia_schemas.states import JobState, PartState, Stage
from pecia_schemas.tables import JobEventRow, JobRow, PartRow, ResultRow

_jobs = cast("Table", JobRow.__table__)
_parts = cast("Table", PartRow.__table__)
_results = cast("Table", ResultRow.__table__)
_events = cast("Table", JobEventRow.__table__)

_VIEW = [
    _jobs.c.id,
    _jobs.c.kind,
    _jobs.c.lane,
    _jobs.c.state,
    _jobs.c.metadata,
    _jobs.c.total,
    _jobs.c.done,
    _jobs.c.failed,
    _jobs.c.cancelled,
    _jobs.c.failure,
    _jobs.c.created_at,
    _jobs.c.started_at,
    _jobs.c.finished_at,
    _jobs.c.erased_at,
]

_CLOCK_SKEW = timedelta(days=1)  # ids carry the clock of the client that made them


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A job in the database; `created` is False if its key named it before."""

    view: JobView
    created: bool
    flow: UUID
    """With what it takes turns as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which jobs a caller wants to see. Empty fields mean any."""

    states: Collection[JobState] = ()
    kind: str | None = None
    metadata: Mapping[str, str] | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """How a part ended: with `content`, with a `failure`, or, cancelled, with neither."""

    stage: Stage
    ordinal: int
    content: Mapping[str, Any] | None
    failure: Failure | None


class Store:
    """The rows of jobs, as a client sees and writes them; what is encrypted is decrypted on its way."""

    def __init__(self, database: Database, keys: Keyring, *, client: str) -> None:
        self._database = database
        self._keys = keys
        self._client = client

    def accept(self, batch: Sequence[NewJob], *, is_stored: Callable[[str], bool]) -> list[Accepted]:
        """Write the jobs, all or none; those whose key is known already are read back instead.

        `is_stored` tells whether a payload is in the store, if it was removed lately. Raises `IdempotencyConflictError`
        if a key names a job for another task, `PayloadStoreUnavailableError` if a document was removed meanwhile.
        """
        return self._database.transaction(lambda connection: _accept(connection, batch, is_stored))

    def mark_published(self, part_ids: Collection[UUID]) -> None:
        """Note that these parts, never tried before, are in Redis.

        Parts that somebody holds at this moment are left to them; those that were tried meanwhile, to the relay.
        """
        free = (
            select(_parts.c.id)
            .where(
                _parts.c.id.in_(part_ids),
                _parts.c.state == PartState.QUEUED,
                _parts.c.published_at.is_(None),
                _parts.c.strikes + _parts.c.deaths == 0,
            )
            .with_for_update(skip_locked=True, key_share=True)
        )
        mark = update(_parts).where(_parts.c.id.in_(free)).values(published_at=func.now())
        self._database.transaction(lambda connection: connection.execute(mark))

    def views(self, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return what is known about each of the jobs that exist."""
        rows = self._rows(select(*_VIEW).where(_jobs.c.id.in_(job_ids)))
        return {row["id"]: JobView.of(row) for row in rows}

    def page(self, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        newest = select(*_VIEW).where(_wanted(listing)).order_by(_jobs.c.id.desc()).limit(size)
        if before is not None:
            newest = newest.where(_jobs.c.id < before)
        return [JobView.of(row) for row in self._rows(newest)]

    def lacking(self, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts wait for in vain, because no worker on duty can do it."""
        return [Lack(**row) for row in self._rows(UNSERVED.bindparams(job_ids=list(job_ids)))]

    def outcomes(
        self,
        job_id: UUID,
        *,
        skip: Collection[int] = (),
        limit: int | None = None,
        read_as: AuditAction | None = None,
    ) -> list[PartOutcome]:
        """Return the parts that have ended, in order, without those whose ordinal is to be skipped.

        `read_as` notes who has read them, if there is anything to read. Raises `JobErasedError` if it was erased,
        `InvalidSettingError` if a result is encrypted and cannot be decrypted with the keys that there are.
        """
        ended = (
            select(_parts.c.id, _parts.c.stage, _parts.c.ordinal, _parts.c.failure, _results.c.content)
            .join(_results, _results.c.part_id == _parts.c.id, isouter=True)
            .where(
                _parts.c.job_id == job_id,
                _parts.c.stage != Stage.INGEST,
                _parts.c.state.not_in((PartState.QUEUED, PartState.RUNNING)),
            )
            .order_by(_parts.c.ordinal)
            .limit(limit)
        )
        if skip:
            ended = ended.where(_parts.c.ordinal.not_in(skip))

        def read(connection: Connection) -> list[Mapping[str, Any]]:
            rows: list[Mapping[str, Any]] = [dict(row) for row in connection.execute(ended).mappings()]
            if read_as is AuditAction.RESULT or (read_as and any(row["content"] for row in rows)):
                note_read(connection, job_id, client=self._client, what=read_as)
            return rows

        return [_outcome(row, self._keys) for row in self._database.transaction(read)]

    def first_unfinished(self, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change; None if there is none. 0 until the document is cut."""
        lowest = select(func.min(_parts.c.ordinal).label("ordinal")).where(
            _parts.c.job_id == job_id, _parts.c.state.in_((PartState.QUEUED, PartState.RUNNING))
        )
        ordinal: int | None = self._rows(lowest)[0]["ordinal"]
        return ordinal

    def events(self, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those to be skipped."""
        told = (
            select(_events)
            .where(_events.c.job_id == job_id, _events.c.sequence > after)
            .order_by(_events.c.sequence)
        )
        return [JobEvent.model_validate(dict(row)) for row in self._rows(told) if row["sequence"] not in skip]

    def _rows(self, query: Executable) -> list[Mapping[str, Any]]:
        def read(connection: Connection) -> list[Mapping[str, Any]]:
            return [dict(row) for row in connection.execute(query).mappings()]

        return self._database.transaction(read)


def _accept(
    connection: Connection, batch: Sequence[NewJob], is_stored: Callable[[str], bool]
) -> list[Accepted]:
    """Insert in the order of keys, so that two clients with the same keys wait for each other only one way round."""
    _keep_payloads(connection, batch, is_stored)
    flows = _flows(connection, batch)
    ordered = sorted(batch, key=lambda new: new.key)
    inserting = upsert(_jobs).on_conflict_do_nothing(index_elements=["idempotency_key"]).returning(*_VIEW)
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
    query = select(*_VIEW, _jobs.c.idempotency_key, _jobs.c.task_digest)
    rows = connection.execute(query.where(_jobs.c.idempotency_key.in_(digests))).mappings().all()
    if len(rows) < len(digests):
        raise DatabaseUnavailableError("A job with this key was deleted at this very moment: submit again.")
    for row in rows:
        if row["task_digest"] not in digests[row["idempotency_key"]]:
            raise IdempotencyConflictError(row["id"])
    return {row["idempotency_key"]: JobView.of(dict(row)) for row in rows}


def _wanted(listing: Listing) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [true()]
    if listing.states:
        conditions.append(_jobs.c.state.in_(listing.states))
    if listing.kind is not None:
        conditions.append(_jobs.c.kind == listing.kind)
    if listing.metadata:
        conditions.append(_jobs.c.metadata.contains(dict(listing.metadata)))
    if listing.since is not None:
        conditions.append(_jobs.c.created_at >= listing.since)
        conditions.append(_jobs.c.id >= _oldest_id(listing.since - _CLOCK_SKEW))
    return and_(*conditions)


def _oldest_id(since: datetime) -> UUID:
    """Return the least UUIDv7 of that moment: it lets the primary key end the search."""
    return UUID(int=max(0, int(since.timestamp() * 1000)) << 80)


def _outcome(row: Mapping[str, Any], keys: Keyring) -> PartOutcome:
    failure = Failure.model_validate(row["failure"]) if row["failure"] else None
    try:
        content = keys.unseal(row["content"], row["id"])
    except DecryptionError as error:
        raise InvalidSettingError(f"A result cannot be read. {error}") from None
    return PartOutcome(stage=Stage(row["stage"]), ordinal=row["ordinal"], content=content, failure=failure)
