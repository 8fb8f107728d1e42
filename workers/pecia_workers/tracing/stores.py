"""Spans of what happens in the stores: messages that are sent and received, jobs that end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pecia_schemas import tracing
from pecia_schemas.messages import SYSTEM, PartMessage
from pecia_schemas.states import JobState
from pecia_schemas.tracing import Attributes, Kind

if TYPE_CHECKING:
    from pecia_workers.queue.lists import Claimed


def received(parts: Sequence[Claimed]) -> None:
    """Tell of a claim in Redis, which serves many jobs: a trace of its own, with a link to each of theirs."""
    links = dict.fromkeys(claimed.traceparent for claimed in parts if claimed.traceparent)
    if not links:
        return
    about: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.batch.message_count": len(parts),
        "pecia.cost": sum(claimed.cost for claimed in parts),
    }
    tracing.apart("receive", about, kind=Kind.CLIENT, links=links).end()


def sent(messages: Iterable[PartMessage], began: int) -> None:
    """Tell each job's trace that parts of it were published by the fleet, in a batch that began then."""
    ended = time.time_ns()
    jobs = Counter(message.traceparent for message in messages if message.traceparent)
    for traceparent, number in jobs.items():
        about: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": number,
        }
        tracing.past("send", about, kind=Kind.PRODUCER, began=began, ended=ended, below=traceparent)


def job_finished(job_id: UUID, state: JobState, traceparent: str | None, began: int) -> None:
    """Tell that a job is over, by a transaction that began then."""
    if traceparent:
        about: Attributes = {"pecia.job.id": str(job_id), "pecia.job.state": state}
        tracing.past("finish", about, began=began, ended=time.time_ns(), below=traceparent)
