"""The callbacks of a fake fleet: signed as the real ones are, and kept instead of posted."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from standardwebhooks import Webhook as Signer

from pecia.testing.records import JobRecord
from pecia_schemas.events import JobNotice, NoticeData, NoticeType

_SECRET_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """One request that a fleet would have posted."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    """What `pecia.webhooks.verify` takes, with the headers and the fleet's `webhook_secret`."""
    notice: JobNotice
    """What it says."""


class Callbacks:
    """All that were promised, in order."""

    def __init__(self) -> None:
        self.secret = "whsec_" + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()
        self.posted: list[Callback] = []

    def promise(self, job: JobRecord) -> None:
        """Keep the callback of a job that is over, if its webhook wants to know (`pecia_schemas/outbox.py`)."""
        kind = NoticeType.of(job.state)
        if job.webhook is None or kind not in job.webhook["events"] or job.finished_at is None:
            return
        data = NoticeData(
            job_id=job.id,
            kind=job.kind,
            state=job.state,
            lane=job.lane,
            progress=job.view.progress,
            failure=job.failure and job.failure.code,
            metadata=dict(job.metadata),
            created_at=job.created_at,
            finished_at=job.finished_at,
        )
        job.deliveries += 1
        self.posted.append(
            self._signed(job.webhook["url"], JobNotice(type=kind, timestamp=job.finished_at, data=data))
        )

    def _signed(self, url: str, notice: JobNotice) -> Callback:
        delivery, at, text = str(uuid4()), datetime.now(UTC), notice.model_dump_json()
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Signer(self.secret).sign(delivery, at, text),
        }
        return Callback(url=url, headers=headers, body=text.encode(), notice=notice)
