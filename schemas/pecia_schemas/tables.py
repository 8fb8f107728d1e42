"""The tables in Postgres, which is the truth about every job.

Only the ledger (fleet) and the client's store hold SQL; only Alembic changes the schema.
"""

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pecia_schemas import storable
from pecia_schemas.results import NEEDS_REVIEW
from pecia_schemas.states import JobState, PartState, Stage

_NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}


_Actor = Annotated[str, mapped_column(sa.String(storable.ACTOR))]
_Digest = Annotated[str, mapped_column(sa.String(storable.DIGEST))]
_Name = Annotated[str, mapped_column(sa.String(storable.NAME))]
_Reason = Annotated[str, mapped_column(sa.String(storable.REASON))]
_Tenant = Annotated[str, mapped_column(sa.String(storable.TENANT))]
_Json = Annotated[Any, mapped_column(JSONB())]
_Id = Annotated[UUID, mapped_column(primary_key=True)]
_OfJob = Annotated[UUID, mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
_Sequence = Annotated[int, mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)]
_Count = Annotated[int, mapped_column(server_default=sa.text("0"))]
_Now = Annotated[datetime, mapped_column(server_default=sa.func.now())]
_Clock = Annotated[datetime, mapped_column(server_default=sa.func.clock_timestamp())]


REVISION: Final = "0021"
"""Of the schema that these tables are, as its newest migration calls it: those of later ones are greater."""


class Base(DeclarativeBase):
    """All tables. States are text with a check, so that a new state needs no type change."""

    metadata = sa.MetaData(naming_convention=_NAMES)
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy's own name and form
        str: sa.Text(),
        datetime: sa.DateTime(timezone=True),
        dict[str, Any]: JSONB(),
        dict[str, str]: JSONB(),
        list[str]: ARRAY(sa.Text()),
        list[float]: ARRAY(sa.Double()),
        float: sa.Double(),
    }


_OPEN: Final = "state IN ('queued', 'running')"


def _index(name: str, *columns: str | sa.TextClause, where: str) -> sa.Index:
    return sa.Index(name, *columns, postgresql_where=sa.text(where))


def _one_of(column: str, values: type[JobState | PartState | Stage]) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)


_LARGE: Final = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.01",
    "autovacuum_analyze_scale_factor": "0.01",
}
"""Of tables with up to 10^9 rows: Postgres's own fifth would be 2 * 10^8 dead rows between two vacuums."""


class JobRow(Base):
    """A job: its request, its progress, its end."""

    __tablename__ = "jobs"

    id: Mapped[_Id]
    kind: Mapped[str]
    lane: Mapped[str]
    flow: Mapped[UUID | None]  # with which jobs it takes turns as one; None: with itself
    state: Mapped[str] = mapped_column(server_default=JobState.QUEUED)
    task: Mapped[dict[str, Any]]  # the task with its source replaced by a payload reference
    task_digest: Mapped[_Digest]  # tells a repeated submit from another one under the same key
    payload: Mapped[_Digest | None]  # name of the document in the store; None: not fetched yet, empty: purged
    # None: purged.
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(storable.IDEMPOTENCY_KEY), unique=True)
    client: Mapped[_Name]
    tenant: Mapped[_Tenant | None]  # whose keys may see it; None: no key, it came past the gateway
    batch: Mapped[UUID | None]  # with which jobs it was submitted; None: alone, or purged
    label: Mapped[_Json | None]  # what the caller calls the document; sealed as results are
    metadata_: Mapped[dict[str, str]] = mapped_column("metadata", server_default=sa.text("'{}'"))
    webhook: Mapped[dict[str, Any] | None]
    # The span it was submitted in, by W3C; None: not traced.
    traceparent: Mapped[str | None] = mapped_column(sa.String(storable.TRACEPARENT))
    total: Mapped[int | None]  # parts; unknown until ingest has cut the document
    done: Mapped[_Count]
    failed: Mapped[_Count]
    cancelled: Mapped[_Count]
    failure: Mapped[dict[str, Any] | None]
    created_at: Mapped[_Now]
    not_before: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    endings: Mapped[_Count]  # how often it has ended: a retry opens it again
    payload_released_at: Mapped[datetime | None]  # None: the job holds its document; see `discards`
    erased_at: Mapped[datetime | None]  # since when its results are gone

    __table_args__ = (
        _one_of("state", JobState),
        sa.Index("jobs_state_idx", "state", "id"),
        sa.Index("jobs_metadata_idx", "metadata", postgresql_using="gin"),
        _index("jobs_batch_idx", "batch", "id", where="batch IS NOT NULL"),
        _index("jobs_tenant_idx", "tenant", "id", where="tenant IS NOT NULL"),
        _index(
            "jobs_tenant_open_idx",
            "tenant",
            "client",
            where="tenant IS NOT NULL AND state IN ('queued', 'running')",
        ),
        _index("jobs_requests_idx", "kind", "tenant", "id", where="kind IN ('openai.file', 'openai.batch')"),
        _index("jobs_flow_idx", "flow", where=_OPEN),
        _index("jobs_expires_at_idx", "expires_at", where=_OPEN),
        _index("jobs_payload_idx", "payload", where="payload_released_at IS NULL"),
        _index("jobs_finished_at_idx", "finished_at", where="finished_at IS NOT NULL"),
        _index(
            "jobs_payload_due_idx",
            "finished_at",
            where="payload_released_at IS NULL AND finished_at IS NOT NULL",
        ),
        _index("jobs_results_due_idx", "finished_at", where="erased_at IS NULL AND finished_at IS NOT NULL"),
        {"postgresql_with": {"fillfactor": "70", **_LARGE}},  # counters are updated in place (HOT)
    )


class JobKeyRow(Base):
    """The data key of a job, wrapped; gone with what it encrypts. Not in `jobs`, so that a backup can leave it out."""

    __tablename__ = "job_keys"

    job_id: Mapped[UUID] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    wrapped: Mapped[_Json]  # as `Keyring.of_job` takes it

    __table_args__ = (
        {"postgresql_with": {"fillfactor": "70", **_LARGE}},
    )  # rotation updates it in place (HOT)


class PartRow(Base):
    """One piece of a job: the unit of queueing, retry, progress and result."""

    __tablename__ = "parts"

    id: Mapped[_Id]
    job_id: Mapped[_OfJob]
    stage: Mapped[str]
    ordinal: Mapped[int]  # page or segment, counted from 0; 0 for the ingest of the payload
    lane: Mapped[str]
    flow: Mapped[UUID | None]  # with what it takes turns as one; None: with its job alone
    state: Mapped[str] = mapped_column(server_default=PartState.QUEUED)
    cost: Mapped[int]  # tokens
    width: Mapped[int | None]  # pixels
    height: Mapped[int | None]
    start_s: Mapped[float | None]  # where in the video a segment lies
    end_s: Mapped[float | None]
    attempt: Mapped[_Count]  # counted at claim; the fence of every commit
    strikes: Mapped[_Count]  # attempts that failed and were tried again
    deaths: Mapped[_Count]  # workers that died on it
    worker: Mapped[_Name | None]  # who runs it, or ran it last
    failure: Mapped[dict[str, Any] | None]
    verdict: Mapped[_Name | None]  # of its result; None: it has none, or an earlier version wrote it
    doubts: Mapped[int | None]  # of its result, of a split documents in conflict; None likewise
    run_at: Mapped[_Now]  # not before
    early: Mapped[bool] = mapped_column(server_default=sa.text("false"))  # the relay waits for its time
    published_at: Mapped[datetime | None]  # None: the relay must put it into Redis
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # What it took, of all attempts that ended here; it outlives the result.
    engine: Mapped[_Name | None]
    prompt_tokens: Mapped[int | None]
    image_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    wasted_tokens: Mapped[int | None]
    queued_s: Mapped[float | None]
    decode_s: Mapped[float | None]
    engine_s: Mapped[float | None]
    first_token_s: Mapped[float | None]
    saved_tokens: Mapped[int | None]  # what the reading took that is its result; None: it was read itself

    __table_args__ = (
        _one_of("state", PartState),
        _one_of("stage", Stage),
        sa.UniqueConstraint("job_id", "stage", "ordinal"),
        sa.Index(
            "parts_unpublished_idx",
            "stage",
            "lane",
            sa.text("coalesce(flow, job_id)"),
            "run_at",
            "id",
            postgresql_where=sa.text(
                "state = 'queued' AND published_at IS NULL AND attempt = 0 AND NOT early"
            ),
        ),
        _index(
            "parts_unpublished_again_idx",
            "stage",
            "lane",
            "run_at",
            "id",
            where="state = 'queued' AND published_at IS NULL AND attempt > 0",
        ),
        _index("parts_early_idx", "run_at", where="state = 'queued' AND early"),
        _index("parts_published_idx", "published_at", where="state = 'queued' AND published_at IS NOT NULL"),
        _index("parts_lane_run_at_idx", "lane", "run_at", where="state = 'queued'"),
        _index("parts_finished_at_idx", "finished_at", where="engine IS NOT NULL"),
        _index("parts_failed_idx", "finished_at", where="state = 'failed'"),
        _index("parts_needs_review_idx", "job_id", where=NEEDS_REVIEW),
        _index("parts_conflicts_idx", "job_id", where="stage = 'split' AND doubts > 0"),
        _index("parts_running_idx", "worker", where="state = 'running'"),
        {"postgresql_with": {"fillfactor": "70", **_LARGE}},
    )


class ResultRow(Base):
    """What one part returned. Written once, in the transaction that ends the part."""

    __tablename__ = "results"

    part_id: Mapped[UUID] = mapped_column(sa.ForeignKey("parts.id", ondelete="CASCADE"), primary_key=True)
    job_id: Mapped[_OfJob]
    ordinal: Mapped[int]
    attempt: Mapped[int]
    content: Mapped[dict[str, Any]]  # a `Page`, a `Segment` or a `Summary`
    created_at: Mapped[_Now]

    __table_args__ = (
        sa.Index("results_job_id_ordinal_idx", "job_id", "ordinal"),
        {"postgresql_with": _LARGE},
    )


class RevisionRow(Base):
    """A page, or a bundle's split, as a person has reviewed it. Written once; goes with the result, which stays."""

    __tablename__ = "revisions"

    id: Mapped[_Id]
    job_id: Mapped[_OfJob]
    part_id: Mapped[UUID] = mapped_column(sa.ForeignKey("results.part_id", ondelete="CASCADE"))
    number: Mapped[int]  # from 1, through all pages of the job and its split
    checked: Mapped[bool]  # the page was compared with its picture, every line, then or before
    content: Mapped[dict[str, Any]]  # a `Page` or a `Split`
    created_at: Mapped[_Now]

    __table_args__ = (
        sa.UniqueConstraint("job_id", "number"),
        sa.Index("revisions_part_id_number_idx", "part_id", "number"),
    )


class CachedResultRow(Base):
    """Which result is that of a request: found by its key, gone with the result. Holds nothing of either."""

    __tablename__ = "result_cache"

    key: Mapped[bytes] = mapped_column(sa.LargeBinary(), primary_key=True)
    part_id: Mapped[UUID] = mapped_column(sa.ForeignKey("results.part_id", ondelete="CASCADE"))

    __table_args__ = (sa.Index("result_cache_part_id_idx", "part_id"),)


class JobEventRow(Base):
    """One transition of a job or part: who, when, which attempt, why."""

    __tablename__ = "job_events"

    sequence: Mapped[_Sequence]
    job_id: Mapped[_OfJob]
    part_id: Mapped[UUID | None]
    state: Mapped[str]
    at: Mapped[_Clock]
    actor: Mapped[_Actor]
    attempt: Mapped[int | None]
    reason: Mapped[_Reason | None]

    __table_args__ = (
        sa.Index("job_events_job_id_sequence_idx", "job_id", "sequence"),
        {"postgresql_with": _LARGE},
    )


class BatchRow(Base):
    """Jobs that were submitted together."""

    __tablename__ = "batches"

    id: Mapped[_Id]
    name: Mapped[str | None] = mapped_column(sa.String(storable.BATCH))  # by which it is found too
    tenant: Mapped[_Tenant | None]
    created_at: Mapped[_Now]
    opened_at: Mapped[_Now]  # when jobs were last put into it

    __table_args__ = (sa.Index("batches_name_idx", sa.text("coalesce(tenant, '')"), "name", unique=True),)


class AccessKeyRow(Base):
    """A key of the gateway: what it may do, for one tenant."""

    __tablename__ = "access_keys"

    id: Mapped[_Id]  # part of the key itself
    digest: Mapped[bytes] = mapped_column(sa.LargeBinary())  # SHA-256 of its rest, which is 32 random bytes
    tenant: Mapped[_Tenant]
    name: Mapped[_Name]
    scopes: Mapped[list[str]]  # `Scope`
    lanes: Mapped[list[str]]  # into which it may submit
    pages_per_day: Mapped[int | None]  # None: no limit
    pages_in_flight: Mapped[int | None]
    created_at: Mapped[_Now]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class EndpointRow(Base):
    """A registered receiver, which is notified of all jobs, with a secret of its own."""

    __tablename__ = "endpoints"

    id: Mapped[_Id]
    url: Mapped[str] = mapped_column(sa.String(storable.WEBHOOK_URL))
    events: Mapped[list[str]]  # `NoticeType`
    secret: Mapped[_Json]  # text, or its envelope
    former_secret: Mapped[_Json | None]  # signs beside the other
    former_until: Mapped[datetime | None]
    client: Mapped[_Name]  # who registered it
    tenant: Mapped[_Tenant | None]  # of whose jobs it is notified; None: of all
    created_at: Mapped[_Now]
    disabled_at: Mapped[datetime | None]  # since when it is gone, by its own answer

    __table_args__ = (sa.Index("endpoints_tenant_idx", "tenant", "id"),)


class NoticeRow(Base):
    """An event that endpoints subscribe to, written in the transaction of the change that it reports.

    One row, however many endpoints subscribe. The webhook worker makes a delivery for each of them and deletes it.
    """

    __tablename__ = "notices"

    id: Mapped[_Id]  # follows from job, event and how often the job has ended
    job_id: Mapped[_OfJob]
    tenant: Mapped[_Tenant] = mapped_column(server_default="")  # of the job; empty: none
    type: Mapped[str]
    body: Mapped[dict[str, Any]]
    at: Mapped[_Clock]  # endpoints that are registered later do not get it
    after: Mapped[UUID | None]  # the last endpoint that has its delivery; None: none has

    __table_args__ = (
        sa.Index("notices_tenant_at_idx", "tenant", "at", "id"),
        sa.Index("notices_job_id_idx", "job_id"),
    )


class DeliveryRow(Base):
    """The outbox: one promised callback to one receiver.

    That of a job's own webhook is written in the transaction of the change that it reports, those to endpoints follow
    from a `NoticeRow`.
    """

    __tablename__ = "deliveries"

    # The `webhook-id`: follows from the event and its receiver; random for a test.
    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=sa.func.gen_random_uuid())
    job_id: Mapped[_OfJob | None]  # None: a test
    # None: the job's own webhook.
    endpoint_id: Mapped[UUID | None] = mapped_column(sa.ForeignKey("endpoints.id", ondelete="CASCADE"))
    type: Mapped[str]
    url: Mapped[str]
    receiver: Mapped[str] = mapped_column(
        sa.Computed(
            "COALESCE((endpoint_id)::text, \"left\"(\"substring\"(url, '^[a-z]+://[^/?#]+'::text), 300), ''::text)",
            persisted=True,
        )
    )  # the endpoint, or scheme, host and port: with what it shares failures, pauses and turns
    body: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default="pending")
    attempts: Mapped[_Count]
    replayed_after: Mapped[_Count]  # attempts before the last replay
    promised_at: Mapped[_Now]  # or replayed last
    next_at: Mapped[_Now]
    queued: Mapped[bool] = mapped_column(server_default=sa.false())  # it is due, and its receiver's row knows
    last_status: Mapped[int | None]  # HTTP
    last_error: Mapped[str | None]
    created_at: Mapped[_Now]
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        sa.CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
        _index("deliveries_due_idx", "next_at", where="state = 'pending' AND NOT queued"),
        _index("deliveries_receiver_idx", "receiver", "next_at", where="state = 'pending'"),
        _index("deliveries_promised_at_idx", "promised_at", where="state = 'pending'"),
        sa.Index("deliveries_endpoint_id_idx", "endpoint_id", "created_at"),
        sa.Index("deliveries_created_at_idx", "created_at"),
        sa.Index("deliveries_job_id_idx", "job_id"),
        _index("deliveries_finished_at_idx", "finished_at", where="finished_at IS NOT NULL"),
    )


class DeliveryAttemptRow(Base):
    """One try to deliver a callback, and what came of it."""

    __tablename__ = "delivery_attempts"

    delivery_id: Mapped[UUID] = mapped_column(
        sa.ForeignKey("deliveries.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)  # counted from 1
    at: Mapped[datetime]  # when it began
    duration_s: Mapped[float]
    status: Mapped[int | None]  # HTTP
    error: Mapped[str | None]
    reply: Mapped[str | None]  # its beginning


class ReceiverRow(Base):
    """A receiver for which deliveries are queued, or that was called lately; see `DeliveryRow.receiver`.

    A claim takes those of each tenant and standing with the earliest `next_due`, however many deliveries wait.
    """

    __tablename__ = "receivers"

    receiver: Mapped[str] = mapped_column(primary_key=True)
    next_due: Mapped[datetime | None]  # None: nothing is queued
    failures: Mapped[_Count]  # tries that failed, one after the other
    failing_since: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]  # last
    paused_until: Mapped[datetime | None]  # then one delivery goes out to see
    # Whose deliveries it takes; empty: no tenant's, or several tenants'.
    tenant: Mapped[_Tenant] = mapped_column(server_default="")
    known_at: Mapped[_Now]
    well_at: Mapped[datetime | None]  # since when it takes what it is sent; None: it has not answered yet
    standing: Mapped[str] = mapped_column(
        sa.Computed(
            "CASE WHEN failures > 0 THEN 'failing'::text WHEN well_at IS NOT NULL THEN 'well'::text"
            " ELSE 'new'::text END",
            persisted=True,
        )
    )  # by its last try

    __table_args__ = (
        _index("receivers_turn_idx", "tenant", "standing", "next_due", where="next_due IS NOT NULL"),
    )


class FlowRow(Base):
    """Jobs that share a value of their metadata and take turns as one; kept while one of them is not over."""

    __tablename__ = "flows"

    digest: Mapped[bytes] = mapped_column(
        sa.LargeBinary(), primary_key=True
    )  # of the metadata's key and value
    id: Mapped[UUID] = mapped_column(server_default=sa.func.gen_random_uuid())


class WorkerRow(Base):
    """One process of the fleet and when it was last seen."""

    __tablename__ = "workers"

    name: Mapped[_Name] = mapped_column(primary_key=True)
    role: Mapped[_Name]
    stages: Mapped[list[str]]
    host: Mapped[_Name]
    pid: Mapped[int]
    engine: Mapped[_Name | None]
    capabilities: Mapped[dict[str, Any] | None]  # model, languages, fields, adapters, slots, tokens
    memory: Mapped[float | None]  # share of its budget that a successor begins with, if its engine died
    started_at: Mapped[_Now]
    seen_at: Mapped[_Now]
    stopped_at: Mapped[datetime | None]
    lost_at: Mapped[datetime | None]  # when it was taken for dead; it lives if it was seen since

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)  # a heartbeat is updated in place (HOT)


class OutputLengthsRow(Base):
    """How long the output of a workload has been: counts on a logarithmic grid, fading with each new one."""

    __tablename__ = "output_lengths"

    workload: Mapped[_Name] = mapped_column(primary_key=True)
    weights: Mapped[list[float]]
    updated_at: Mapped[_Now]


class DiscardedPayloadRow(Base):
    """A payload that a job let go of: to be removed if no job holds it, or removed lately; see `discards`."""

    __tablename__ = "discarded_payloads"

    payload: Mapped[_Digest] = mapped_column(primary_key=True)
    discarded_at: Mapped[datetime | None]  # None: settled
    erased_at: Mapped[_Now]  # since when it may be gone

    __table_args__ = (
        _index("discarded_payloads_discarded_at_idx", "discarded_at", where="discarded_at IS NOT NULL"),
    )


class ReadRow(Base):
    """Who read a result. It outlives the job."""

    __tablename__ = "reads"

    id: Mapped[_Sequence]
    job_id: Mapped[UUID]
    client: Mapped[_Name]
    what: Mapped[str]  # `result` as a whole, `pages` one after the other, or `revised`: read and corrected
    at: Mapped[_Clock]

    __table_args__ = (
        sa.CheckConstraint("what IN ('result', 'pages', 'revised')", name="what"),
        sa.Index("reads_job_id_idx", "job_id"),
        sa.Index("reads_at_idx", "at"),
    )


class ErasureRow(Base):
    """What was erased of a job, by whom and why, without any of it. It outlives the job."""

    __tablename__ = "erasures"

    id: Mapped[_Sequence]
    job_id: Mapped[UUID]
    actor: Mapped[_Actor]
    reason: Mapped[_Reason | None]
    counts: Mapped[dict[str, Any]]  # how many results, deliveries, reasons, documents
    at: Mapped[_Clock]

    __table_args__ = (sa.Index("erasures_job_id_idx", "job_id"), sa.Index("erasures_at_idx", "at"))
