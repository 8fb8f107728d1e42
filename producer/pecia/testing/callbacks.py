"""The callbacks of a fake fleet: signed as the real ones are, and kept instead of posted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from standardwebhooks import Webhook as Signer

from pecia.testing.memory import Memory
from pecia.testing.records import DeliveryRecord, EndpointRecord, JobRecord, PartRecord, now
from pecia_schemas.events import JobNotice, NoticeData, NoticePart, NoticeType, new_secret
from pecia_schemas.states import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """One request that a fleet would have posted."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    """What `pecia.webhooks.verify` takes, with the headers and the fleet's `webhook_secret`, or an endpoint's own."""
    notice: JobNotice
    """What it says."""


class Callbacks:
    """All that were promised, in order."""

    def __init__(self, memory: Memory) -> None:
        self.secret = new_secret()
        self.posted: list[Callback] = []
        self._memory = memory
        memory.post = self._post

    def promise(self, job: JobRecord) -> None:
        """Send a notice of a job that is over to each receiver that wants it (`pecia_schemas/outbox.py`)."""
        self._tell(NoticeType.of(job.state), job, job.finished_at)

    def promise_part(self, part: PartRecord) -> None:
        """Send a notice of a part that has its result to each receiver that wants it (`pecia_schemas/outbox.py`)."""
        if part.stage is not Stage.INGEST:
            about = NoticePart(id=part.id, stage=part.stage, number=part.ordinal + 1, attempt=part.attempt)
            self._tell(NoticeType.PART_DONE, part.job, part.finished_at, about)

    def _tell(
        self, kind: NoticeType, job: JobRecord, at: datetime | None, part: NoticePart | None = None
    ) -> None:
        for url, endpoint in self._receivers(kind, job):
            notice = JobNotice(type=kind, timestamp=at or now(), data=self._data(job, part))
            delivery = DeliveryRecord(
                id=uuid4(), job_id=job.id, endpoint=endpoint, url=url, notice=notice, created_at=now()
            )
            self._post(delivery)

    def _receivers(self, kind: NoticeType, job: JobRecord) -> Iterator[tuple[str, EndpointRecord | None]]:
        if job.webhook is not None and kind in job.webhook["events"]:
            yield job.webhook["url"], None
        for endpoint in self._memory.endpoints.values():
            if kind in endpoint.events:
                yield endpoint.url, endpoint

    def _data(self, job: JobRecord, part: NoticePart | None) -> NoticeData:
        events = self._memory.events(job.id)
        return NoticeData(
            job_id=job.id,
            sequence=events[-1].sequence if events else 0,
            kind=job.kind,
            state=job.state,
            lane=job.lane,
            progress=job.view.progress,
            failure=job.failure and job.failure.code,
            needs_review=sum(bool(one.content and one.content.verdict.needs_review) for one in job.parts),
            metadata=dict(job.metadata),
            part=part,
            created_at=job.created_at,
            finished_at=job.finished_at,
        )

    def _post(self, delivery: DeliveryRecord) -> None:
        delivery.tries.append(now())
        self._memory.deliveries[delivery.id] = delivery
        secrets = delivery.endpoint.secrets if delivery.endpoint else [self.secret]
        at, text = datetime.now(UTC), delivery.notice.model_dump_json()
        signatures = [Signer(secret).sign(str(delivery.id), at, text) for secret in secrets]
        headers = {
            "content-type": "application/json",
            "webhook-id": str(delivery.id),
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        self.posted.append(
            Callback(url=delivery.url, headers=headers, body=text.encode(), notice=delivery.notice)
        )
