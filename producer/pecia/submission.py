"""From a task to the rows of its job: pure, but for the clock and fresh ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError

from pecia.errors import InvalidOptionError
from pecia.sources import StoredSource
from pecia_schemas import storable
from pecia_schemas.encryption import Keyring, seal_label, seal_task, task_digest
from pecia_schemas.events import Webhook
from pecia_schemas.media import PageRanges, UrlRef
from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane, LaneName, Stage, new_id

if TYPE_CHECKING:
    from pecia_schemas.tasks import ReadDocument, Task

R = TypeVar("R", bound=BaseModel)

_INGEST_COST = 1
_BATCH_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{storable.BATCH - 1}}}")


@dataclass(frozen=True, slots=True)
class Submission(Generic[R]):
    """A task of many, with what is asked for it alone. What is None is as the call says for all."""

    task: Task[R]
    metadata: Mapping[str, str] | None = None
    """Beside that of the call; of a key that both have, this value is taken."""
    priority: Lane | LaneName | None = None
    key: str | None = None
    """Its idempotency key."""
    label: str | None = None
    """What the document is called. It is stored as results are: encrypted where there is a key, erased with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asked for beside the task, checked."""

    lane: Lane
    metadata: Mapping[str, str]
    webhook: Webhook | None
    not_before: datetime | timedelta | None
    """A distance is one from when the job is accepted, by the clock of Postgres."""
    expires: datetime | timedelta | None
    client: str
    fair_by: str
    """Metadata key by which the job takes turns with others; empty: with none."""
    tenant: str | None = None
    """Whose job it is, if it came through the gateway. All jobs of a tenant take turns as one."""
    batch: UUID | None = None

    def of(self, one: Submission[Any]) -> Options:
        """Return what is asked for one task of many. Raises `InvalidOptionError`."""
        if one.metadata is None and one.priority is None:
            return self
        metadata = {**self.metadata, **checked_metadata(one.metadata or {})}
        lane = self.lane if one.priority is None else _lane(one.priority)
        return replace(self, lane=lane, metadata=checked_metadata(metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """The rows of a job that is about to be accepted."""

    job: Mapping[str, Any]
    part: Mapping[str, Any]
    digests: tuple[str, ...]
    """What the same work may be known by, under whichever key it was submitted before; its own first."""
    turns: bytes | None
    """Digest of what it takes turns by; None: by itself."""
    deposited: bool
    """Whether this submit put its document into the store; False: it named one that was there."""

    @property
    def id(self) -> UUID:
        """The job's id, if it turns out to be new."""
        job_id: UUID = self.job["id"]
        return job_id

    @property
    def key(self) -> str:
        """The idempotency key."""
        return str(self.job["idempotency_key"])

    @property
    def is_simple(self) -> bool:
        """Whether all that is to be written is the job, with nothing to be looked up for it."""
        return self.turns is None and "webhook" not in self.job

    def message(self, flow: UUID) -> PartMessage | None:
        """Return what to publish now; None if it has to wait for its time."""
        part = self.part
        if self.job["not_before"] is not None:
            return None
        return PartMessage(
            part=part["id"],
            stage=part["stage"],
            lane=part["lane"],
            cost=part["cost"],
            flow=flow,
            traceparent=self.job["traceparent"],
        )


def options(
    *,
    priority: Lane | str,
    metadata: Mapping[str, str] | None,
    webhook: Webhook | str | None,
    not_before: datetime | timedelta | None,
    expires: datetime | timedelta | None,
    client: str,
    fair_by: str,
    tenant: str | None = None,
) -> Options:
    """Return the checked options. Raises `InvalidOptionError` for the first that cannot be meant."""
    return Options(
        lane=_lane(priority),
        metadata=checked_metadata(metadata or {}),
        webhook=_webhook(webhook),
        not_before=_time(not_before, "not_before"),
        expires=_time(expires, "expires"),
        client=client,
        fair_by=fair_by,
        tenant=tenant,
    )


def new_job(
    task: Task[Any],
    source: StoredSource,
    asked: Options,
    key: str | None,
    keys: Keyring,
    *,
    job_id: UUID,
    label: str | None = None,
    traceparent: str | None = None,
) -> NewJob:
    """Return the rows of one job, encrypted under the current one of `keys`.

    Without an idempotency key it gets one of its own, so that repeating the insert is safe. Its trace goes on below
    `traceparent`.
    """
    from pecia_schemas.tasks import task_to_json  # noqa: PLC0415  tasks are slow to load

    written = task_to_json(task, source.payload)
    digests = _digests(task.kind, written, asked.lane, source, keys)
    job: dict[str, Any] = {
        "id": job_id,
        "kind": task.kind,
        "lane": asked.lane,
        "task": seal_task(written, job_id, keys),
        "task_digest": digests[0],
        "payload": None if isinstance(source.payload, UrlRef) else source.payload.sha256,
        "idempotency_key": str(job_id) if key is None else _own(key, asked.tenant),
        "client": asked.client,
        "tenant": asked.tenant,
        "label": seal_label(label, job_id, keys),
        "batch": asked.batch,
        "metadata": dict(asked.metadata),
        "not_before": asked.not_before,
        "expires": asked.expires,
        "traceparent": traceparent,
    }
    part = _first_part(task, source, job_id, asked)
    job["total"] = None if part["stage"] is Stage.INGEST else 1
    if asked.webhook:
        job["webhook"] = asked.webhook.model_dump(mode="json")
    return NewJob(
        job=job, part=part, digests=digests, turns=_turns(asked), deposited=source.sha256 is not None
    )


def _own(key: str, tenant: str | None) -> str:
    """Return the idempotency key as it is stored: each tenant's are its own."""
    return key if tenant is None else f"{tenant}:{key}"


def _turns(asked: Options) -> bytes | None:
    """Return what the jobs that take turns as one are found by: Redis knows them by a random id, made of nothing."""
    by, value = asked.fair_by, asked.metadata.get(asked.fair_by)
    if asked.tenant is not None:
        by, value = "", asked.tenant
    return None if value is None else hashlib.sha256(f"{by}\0{value}".encode()).digest()


def _digests(
    kind: str, written: Mapping[str, Any], lane: Lane, source: StoredSource, keys: Keyring
) -> tuple[str, ...]:
    return tuple(
        task_digest(kind, {**written, "source": _source_under(key, written, source, keys)}, lane, keys, key)
        for key in keys
    )


def _source_under(
    key: str | None, written: Mapping[str, Any], source: StoredSource, keys: Keyring
) -> Mapping[str, Any] | None:
    """Return the reference, as it is written, that the same document has if it was stored under that key."""
    reference: Mapping[str, Any] | None = written["source"]
    if reference is None or source.sha256 is None:
        return reference
    return {**reference, "sha256": keys.name_of(source.sha256, key), "key": key}


def _first_part(task: Task[Any], source: StoredSource, job_id: UUID, asked: Options) -> dict[str, Any]:
    from pecia_schemas.tasks import (  # noqa: PLC0415  tasks are slow to load
        DocumentType,
        ReadDocument,
        page_cost,
    )

    part: dict[str, Any] = {
        "id": new_id(),
        "job_id": job_id,
        "stage": Stage.INGEST,
        "ordinal": 0,
        "lane": asked.lane,
        "cost": _INGEST_COST,
        "width": None,
        "height": None,
    }
    if isinstance(task, ReadDocument) and source.pixels and _wants_the_first(task):
        width, height = source.pixels
        cost = page_cost(width, height, DocumentType(task.document_type))
        part |= {"stage": Stage.READ, "width": width, "height": height, "cost": cost}
    return part


def _wants_the_first(task: ReadDocument) -> bool:
    """Return whether all that is asked for of a single picture is there; if not, ingest says so."""
    return task.pages is None or PageRanges.parse(task.pages).missing_from(1) is None


def _time(value: datetime | timedelta | None, name: str) -> datetime | timedelta | None:
    """Return the value as it was given, if it stands for a point in time."""
    moment(value, name)
    return value


def moment(value: datetime | timedelta | None, name: str) -> datetime | None:
    """Return the point in time that a datetime, or a distance from now, stands for."""
    if isinstance(value, timedelta):
        try:
            return datetime.now(UTC) + value
        except OverflowError:
            raise InvalidOptionError(f"{name} is further away than any date: give less.") from None
    if value is not None and value.tzinfo is None:
        raise InvalidOptionError(
            f"{name} needs a time zone: for example datetime.now(UTC) + timedelta(hours=1)."
        )
    return value


def checked_key(key: str) -> str:
    """Return the idempotency key. Raises `InvalidOptionError` if it is empty or too long."""
    if not 0 < len(key) <= storable.IDEMPOTENCY_KEY or not storable.is_storable(key):
        raise InvalidOptionError(
            f"An idempotency key has 1 to {storable.IDEMPOTENCY_KEY} characters, none of them NUL."
        )
    return key


def checked_label(label: str | None) -> str | None:
    """Return what a document is called. Raises `InvalidOptionError` if that cannot be stored."""
    if label is not None and not (0 < len(label) <= storable.LABEL and storable.is_storable(label)):
        raise InvalidOptionError(f"A label has 1 to {storable.LABEL:,} characters, none of them NUL.")
    return label


def checked_batch(name: str | None) -> str | None:
    """Return the name of a batch. Raises `InvalidOptionError` if it is none."""
    if name is not None and not _BATCH_NAME.fullmatch(name):
        raise InvalidOptionError(
            f"A batch is called by 1 to {storable.BATCH} letters, digits, dots, colons, dashes and underscores."
        )
    return name


def check_task(task: Task[Any]) -> None:
    """Raise `InvalidOptionError` if it is no task, or says what cannot be written down."""
    from pecia_schemas.tasks import Task  # noqa: PLC0415  tasks are slow to load

    if not isinstance(task, Task):
        raise InvalidOptionError("A task is a ReadDocument or a CaptionVideo.")
    if not (getattr(task, "adapter", None) or " ").isprintable():
        raise InvalidOptionError("The name of an adapter is printable text.")


def checked_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata. Raises `InvalidOptionError` if it is too much, or not text."""
    if len(metadata) > storable.METADATA_ENTRIES:
        raise InvalidOptionError(
            f"Metadata has at most {storable.METADATA_ENTRIES} keys, not {len(metadata)}."
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidOptionError("Metadata maps text to text: convert numbers and dates with str().")
        too_long = max(len(key), len(value)) > storable.METADATA
        if not key or too_long or not storable.is_storable(key + value):
            raise InvalidOptionError(
                f"Metadata keys and values have at most {storable.METADATA} characters, none of them NUL."
            )
    return metadata


def _lane(priority: Lane | str) -> Lane:
    try:
        return Lane(priority)
    except ValueError:
        lanes = ", ".join(Lane)
        raise InvalidOptionError(f"priority is one of {lanes}.") from None


def _webhook(webhook: Webhook | str | None) -> Webhook | None:
    if not isinstance(webhook, str):
        return webhook
    try:
        return Webhook.model_validate({"url": webhook})
    except ValidationError:
        raise InvalidOptionError(
            "A webhook is an absolute http or https URL without a user name or password, of at most "
            f"{storable.WEBHOOK_URL:,} characters."
        ) from None
