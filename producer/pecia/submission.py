"""Storage of a submit for both kinds of client: tasks become rows of jobs, which one transaction writes.

Tasks are handled in steps: one step is prepared (`waiting.prepare`) while the step before is written and published.
A refused task does not affect the others; an error about an entire step ends the call, with the jobs accepted so far.
A job's trace begins in the span of its task.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from pydantic_core import to_json

from pecia import errors
from pecia.errors import QueueFullError, SubmitError, SubmitManyError, UnavailableError
from pecia.handles import COLUMNS, WRAPPED, Accepted, GroupHandle, JobView, progress
from pecia.request import Item, Options
from pecia.sources import StoredSource
from pecia.store import Connection
from pecia_schemas import tracing
from pecia_schemas.encryption import JOB_KEY, DecryptionError, Keyring, seal_label, seal_task, task_digest
from pecia_schemas.media import PageRanges, UrlRef
from pecia_schemas.messages import PartMessage
from pecia_schemas.running import UNSIGNED
from pecia_schemas.states import JobState, Lane, Stage, new_id
from pecia_schemas.tracing import Attributes, Span, SpanKind

if TYPE_CHECKING:
    from pecia_schemas.tasks import Task

J = TypeVar("J")
G = TypeVar("G", bound=GroupHandle[Any])

_INGEST_COST = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is ready to be written."""

    row: Mapping[str, Any]
    """Row of the job and its first part, in the form of `_CREATE`."""
    options: Options
    label: str | None
    digest: Callable[[Keyring, str | None], str]
    """Function that returns the digest of the same work under another key: the job's data key, or an older scheme's."""
    turns: bytes | None
    """Digest of the value by which the job takes turns; None if alone. Redis only sees a random id for it."""
    deposited: bool
    """Whether this submit stored the document; False if the document was in the store before."""

    @property
    def id(self) -> UUID:
        """The id of the job, if its idempotency key is new."""
        job_id: UUID = self.row["id"]
        return job_id

    @property
    def key(self) -> str:
        """The stored idempotency key."""
        return str(self.row["key"])

    @property
    def is_simple(self) -> bool:
        """Whether the job can be written without any lookup."""
        return self.turns is None and self.options.webhook is None

    def message(self, flow: UUID) -> PartMessage | None:
        """Return the message to publish now, or None if the job waits for its time or has no part."""
        row = self.row
        if self.options.not_before is not None or "part" not in row:
            return None
        return PartMessage(
            part=row["part"],
            stage=row["stage"],
            lane=self.options.priority,
            cost=row["cost"],
            flow=flow,
            traceparent=row["traceparent"],
        )


Outcome = tuple[int, Accepted | SubmitError]
"""The number of a task, and its accepted job or error."""
Outcomes = Iterable[Outcome]
Prepared = list[tuple[int, NewJob | SubmitError]]
"""The tasks of a step by number, each with the job to write or its error. Their documents are stored."""


def new_job(item: Item, source: StoredSource, options: Options, keys: Keyring) -> NewJob:
    """Return the job for a stored document, with its own data key if `keys` has any.

    Without an idempotency key the job gets a random one, so that the insert can be repeated safely. Its trace continues
    below the `traceparent` of its task.
    """
    from pecia_schemas.tasks import task_to_json  # noqa: PLC0415  tasks are slow to load

    own, job_id, options = item.own, item.job_id, options.of(item.own)
    written = task_to_json(own.task, source.payload)
    ring, wrapped = keys.for_new_job(job_id)

    kind, sha256, lane = own.task.kind, source.sha256, options.priority

    def digest(ring: Keyring, key: str | None) -> str:
        # Keeps no reference to the task, which holds its document in memory.
        reference = written["source"] and {k: v for k, v in written["source"].items() if k != "secret"}
        if reference and sha256:  # by its content; earlier versions used no key
            stored_under = None if key == JOB_KEY else key
            reference |= {"sha256": ring.name_of(sha256, stored_under), "key": stored_under}
        return task_digest(kind, {**written, "source": reference}, lane, ring, key)

    key = own.key if options.tenant is None else f"{options.tenant}:{own.key}"  # unique for each tenant
    row: dict[str, Any] = {
        "id": job_id,
        "kind": kind,
        "task": seal_task(written, job_id, ring),
        "wrapped": wrapped,
        "digest": digest(ring, ring.current),
        "payload": None if isinstance(source.payload, UrlRef) else source.payload.sha256,
        "key": str(job_id) if own.key is None else key,
        "label": seal_label(own.label, job_id, ring),
        "metadata": options.metadata,
        "traceparent": item.traceparent,
        **_first_part(own.task, source),
    }
    by, value = options.fair_by, options.metadata.get(options.fair_by)
    if options.tenant is not None:
        by, value = "", options.tenant
    turns = None if value is None else hashlib.sha256(f"{by}\0{value}".encode()).digest()
    deposited = source.sha256 is not None
    return NewJob(row=row, options=options, label=own.label, digest=digest, turns=turns, deposited=deposited)


def _first_part(task: Task[Any], source: StoredSource) -> dict[str, Any]:
    """Return the row of the first part: for a single picture the part that reads it, otherwise ingest."""
    from pecia_schemas.tasks import HIDDEN_KINDS, DocumentType, ReadDocument, page_cost  # noqa: PLC0415  slow to load

    if task.kind in HIDDEN_KINDS:
        return {"total": 0}
    if isinstance(task, ReadDocument) and source.pixels:
        width, height = source.pixels
        if task.pages is None or PageRanges.parse(task.pages).missing_from(1) is None:
            cost = page_cost(width, height, DocumentType(task.document_type))
            page = {"stage": Stage.READ, "cost": cost, "width": width, "height": height, "total": 1}
            return {"part": new_id(), **page}
    return {"part": new_id(), "stage": Stage.INGEST, "cost": _INGEST_COST}


_UNSIGNED = f"SELECT {UNSIGNED}"

_KNOWN = f"""
    SELECT {COLUMNS}, idempotency_key, task_digest, tenant, {WRAPPED} AS data_key FROM jobs
    WHERE idempotency_key = ANY(CAST(:keys AS text[]))
"""  # noqa: S608  a constant

# A value that another client is writing now is not visible: then the job takes turns alone.
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

# Sorted by key, so that two clients with the same keys lock in the same order and cannot deadlock.
_CREATE = """
    WITH requested AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS requested (
            id uuid, kind text, flow uuid, digest text, payload text, key text, total int, part uuid, stage text,
            cost int, width int, height int, traceparent text, task jsonb, label jsonb, wrapped jsonb, metadata jsonb)
    ), shared AS (
        SELECT lane, client, tenant, batch, webhook, held,
               coalesce(not_before, now() + not_before_in) AS not_before,
               coalesce(expires, now() + expires_in) AS expires_at
        FROM jsonb_to_record(CAST(:shared AS jsonb)) AS shared (
            lane text, client text, tenant text, batch uuid, webhook jsonb, held bool,
            not_before timestamptz, not_before_in interval, expires timestamptz, expires_in interval)
    ), released AS MATERIALIZED (
        SELECT hold_payloads((SELECT array_agg(DISTINCT payload) FROM requested)) AS payload FROM shared WHERE NOT held
    ), made AS (
        INSERT INTO jobs (id, kind, lane, flow, task, task_digest, payload, idempotency_key, client, tenant, batch,
                          label, metadata, webhook, total, not_before, expires_at, traceparent)
        SELECT id, kind, lane, flow, task, digest, payload, key, client, tenant, batch, label, metadata, webhook,
               total, not_before, expires_at, traceparent
        FROM requested, shared WHERE NOT EXISTS (SELECT FROM released) ORDER BY key COLLATE "C"
        ON CONFLICT (idempotency_key) DO NOTHING
        RETURNING id, created_at
    ), keyed AS (
        INSERT INTO job_keys (job_id, wrapped)
        SELECT id, wrapped FROM requested JOIN made USING (id) WHERE wrapped IS NOT NULL
    ), first_parts AS (
        INSERT INTO parts (id, job_id, stage, ordinal, lane, flow, cost, width, height, run_at, early, published_at)
        SELECT part, id, stage, 0, lane, requested.flow, cost, width, height, coalesce(not_before, now()),
               not_before IS NOT NULL, CASE WHEN not_before IS NULL THEN now() END
        FROM requested JOIN made USING (id), shared WHERE part IS NOT NULL
    ), first_events AS (
        INSERT INTO job_events (job_id, state, actor) SELECT id, 'queued', 'client:' || client FROM made, shared
    )
    SELECT id, created_at, CAST(NULL AS text) AS released FROM made
    UNION ALL SELECT NULL, NULL, payload FROM released
    """
"""Writes jobs with their first parts and events; returns those whose keys were free.

Unless this transaction has `held` their payloads already, the statement holds them. If some were `released` lately,
it returns these and writes nothing: then the caller checks which of them still exist.

The caller publishes the parts that may run now; they are marked as published already, which saves a transaction.
"""


def accept_one(connection: Connection, new: NewJob) -> Accepted | None:
    """Write an `is_simple` job by one statement. None if its key exists, or its payload was released lately."""
    created, _ = _insert(connection, [new], {}, held=False)
    if (created_at := created.get(new.id)) is None:
        return None
    return Accepted(view=view_of(new, created_at), created=True, flow=new.id)


def accept(
    connection: Connection, batch: Sequence[NewJob], keys: Keyring, is_stored: Callable[[str], bool]
) -> list[Accepted | errors.SubmitError]:
    """Write the jobs and return their outcomes. For a key that exists, return the existing job.

    All jobs have the same lane, client, tenant, batch, webhook and times. `is_stored` tells whether a lately released
    payload is still in the store. The outcome is an `IdempotencyConflictError` if the key belongs to another task, an
    `InvalidSourceError` if the document had been in the store and was removed. Raises `PayloadStoreUnavailableError` if
    a document was removed after this submit had stored it.
    """
    turns = sorted({new.turns for new in batch if new.turns is not None})
    # Jobs with the same value take turns as one; jobs without a value are on their own.
    flows: dict[bytes | None, UUID | None] = {
        digest: connection.execute(_FLOW_OF, {"digest": digest}).scalar() for digest in turns
    }
    created, released = _insert(connection, batch, flows, held=False)
    gone = {payload for payload in released if not is_stored(payload)}
    if any(new.deposited and new.row["payload"] in gone for new in batch):
        raise errors.PayloadStoreUnavailableError(
            "A document with the same content was erased during the submit: submit again."
        )
    there = [new for new in batch if new.row["payload"] not in gone]
    if released:
        created, _ = _insert(connection, there, flows, held=True)
    repeated = [new for new in there if new.id not in created]
    if batch[0].options.webhook and connection.execute(_UNSIGNED, {}).scalar():
        warnings.warn(errors.UnsignedCallbackWarning(), stacklevel=2)
    known = _known(connection, repeated)

    def outcome(new: NewJob) -> Accepted | errors.SubmitError:
        if new.row["payload"] in gone:
            return errors.InvalidSourceError(
                "The document is no longer in the payload store: submit the file itself."
            )
        flow = flows.get(new.turns) or new.id
        if created_at := created.get(new.id):
            return Accepted(view=view_of(new, created_at), created=True, flow=flow)
        row = known[new.key]
        if not _is_same(new, row, batch[0].options.tenant, keys):
            return errors.IdempotencyConflictError(row["id"])
        return Accepted(view=JobView.of(row, keys), created=row["id"] == new.id, flow=flow)

    return [outcome(new) for new in batch]


def _insert(
    connection: Connection, batch: Sequence[NewJob], flows: Mapping[bytes | None, UUID | None], *, held: bool
) -> tuple[dict[UUID, datetime], set[str]]:
    """Write jobs, first parts and first events in one statement. Return the new jobs with their creation times.

    If the payloads are not held yet and some were released lately, write nothing and return these payloads.
    """
    if not batch:
        return {}, set()
    options = batch[0].options
    shared = {
        **{name: getattr(options, name) for name in ("client", "tenant", "batch")},
        "lane": options.priority,
        **_of_time("not_before", options.not_before),
        **_of_time("expires", options.expires),
        "webhook": options.webhook and options.webhook.model_dump(mode="json"),
        "held": held,
    }
    rows = [
        {name: value for name, value in new.row.items() if value is not None} | {"flow": flows.get(new.turns)}
        for new in batch
    ]
    given = {"rows": to_json(rows).decode(), "shared": to_json(shared).decode()}
    written = connection.execute(_CREATE, given)
    created = {row.id: row.created_at for row in written if row.released is None}
    return created, {row.released for row in written if row.released is not None}


def _of_time(name: str, time: datetime | timedelta | None) -> dict[str, str | None]:
    """Return a time in the statement's form: a point, or a distance from Postgres's `now()`."""
    if isinstance(time, timedelta):
        return {f"{name}_in": f"{time // timedelta(microseconds=1)} microseconds"}
    return {name: time.isoformat() if time else None}


def view_of(new: NewJob, created_at: datetime) -> JobView:
    """Return the view of a row that was just written, without reading it back."""
    return JobView(
        id=new.id,
        kind=new.row["kind"],
        lane=new.options.priority,
        state=JobState.QUEUED,
        progress=progress(new.row.get("total"), 0, 0, 0),
        failure=None,
        label=new.label,
        batch=new.options.batch,
        metadata=MappingProxyType(new.options.metadata),
        submitted_at=created_at,
        started_at=None,
        finished_at=None,
        erased_at=None,
    )


def _known(connection: Connection, repeated: Collection[NewJob]) -> dict[str, Mapping[str, Any]]:
    """Return the rows of existing jobs with these keys.

    Discards documents that were stored for the repeated jobs, because nothing needs them.
    """
    known = {new.key for new in repeated}
    if not known:
        return {}
    rows = connection.execute(_KNOWN, {"keys": list(known)}).mappings()
    if len(rows) < len(known):
        raise errors.DatabaseUnavailableError(
            "A job with this key was deleted during the submit: submit again."
        )
    from pecia_schemas import discards  # noqa: PLC0415  brings SQLAlchemy, slow to load

    payloads = [new.row["payload"] for new in repeated]
    unheld = connection.execute(discards.UNHELD, {"payloads": payloads}).scalars()
    if unheld:
        connection.execute(discards.DISCARD, {"payloads": unheld})
    return {row["idempotency_key"]: row for row in rows}


def _is_same(new: NewJob, row: Mapping[str, Any], tenant: str | None, keys: Keyring) -> bool:
    """Return whether a row's job does the same work for the same tenant."""
    try:
        ring = keys.of_job(row["id"], row["data_key"])
        return row["tenant"] == tenant and row["task_digest"] in {new.digest(ring, key) for key in ring}
    except DecryptionError:
        return False


@dataclass(slots=True)
class Tally(Generic[J, G]):
    """Jobs and errors of the tasks so far."""

    job: Callable[[Accepted], J]
    """Function that makes a handle."""
    group: Callable[[Sequence[J]], G]
    """Function that makes a group of handles."""
    jobs: dict[int, J] = field(default_factory=dict)
    """Handles by the number of their task."""
    failures: dict[int, SubmitError] = field(default_factory=dict)

    def add(self, outcomes: Outcomes) -> None:
        """Add the outcomes of a step."""
        for number, outcome in outcomes:
            if isinstance(outcome, SubmitError):
                # A traceback would keep the step's documents in memory.
                outcome.__cause__ = outcome.__context__ = None
                self.failures[number] = outcome.with_traceback(None)
            else:
                self.jobs[number] = self.job(outcome)

    def result(self) -> G:
        """Return all jobs as a group. Raises `SubmitManyError` if a task was refused."""
        if self.failures:
            raise SubmitManyError(self._group(), self.failures)
        return self._group()

    def _group(self) -> G:
        return self.group([self.jobs[number] for number in sorted(self.jobs)])

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Attach the accepted jobs and the refused tasks to errors that end the call early."""
        try:
            yield
        except (UnavailableError, QueueFullError) as error:
            self.add(error.answered)
            error.accepted, error.failures = self._group(), self.failures
            raise


def new_jobs(prepared: Prepared) -> list[NewJob]:
    """Return the jobs to write, without refused tasks."""
    return [made for _, made in prepared if isinstance(made, NewJob)]


def outcomes(prepared: Prepared, accepted: Iterable[Accepted | SubmitError]) -> Outcomes:
    """Yield the outcome of each task, from the outcomes of the written jobs."""
    written = iter(accepted)
    for number, made in prepared:
        yield number, next(written) if isinstance(made, NewJob) else made


def messages(new: Iterable[NewJob], accepted: Iterable[Accepted | SubmitError]) -> list[PartMessage]:
    """Return the messages to publish for written jobs."""
    return [
        message
        for job, known in zip(new, accepted, strict=True)
        if isinstance(known, Accepted) and known.created and (message := job.message(known.flow)) is not None
    ]


def submitting(lane: Lane) -> AbstractContextManager[Span]:
    """Open the span of one submit: the root of the job's trace, or a child of the application's span."""
    return tracing.first("submit", _about(lane), kind=SpanKind.PRODUCER)


def traced(
    items: Sequence[Item], lane: Lane, ending: ExitStack
) -> tuple[Sequence[Item], Callable[[Outcomes], Outcomes]]:
    """Give each task of a batch its own trace, linked to the current span; `ending` ends the spans.

    Return the tasks, and a function that records their outcomes as they pass through.
    """
    if not tracing.is_on():
        return items, lambda outcomes: outcomes
    batch = tracing.current().traceparent
    links = [batch] if batch else []
    spans = {
        item.number: tracing.apart("submit", _about(lane), kind=SpanKind.PRODUCER, links=links)
        for item in items
    }

    def noted(outcomes: Outcomes) -> Iterator[Outcome]:
        for number, outcome in outcomes:
            record_outcome(spans[number], outcome)
            yield number, outcome

    for span in spans.values():
        ending.callback(span.end)
    return [replace(item, traceparent=spans[item.number].traceparent) for item in items], noted


def record_outcome(span: Span, outcome: Accepted | SubmitError) -> None:
    """Record the outcome of a task in its span. An existing key names an earlier job, which has another trace."""
    if isinstance(outcome, SubmitError):
        span.fail(type(outcome).__name__)
    else:
        span.set_attributes({"pecia.job.id": str(outcome.view.id), "pecia.job.created": outcome.created})


def sending(messages: Sequence[PartMessage]) -> AbstractContextManager[Span]:
    """Open the span in which messages are published."""
    return tracing.span("send", tracing.messaging("send", len(messages)), kind=SpanKind.PRODUCER)


def _about(lane: Lane) -> Attributes:
    return tracing.messaging("submit") | {"messaging.operation.type": "create", "pecia.lane": lane}
