"""What travels through Redis, and under which names.

A message is `{"part": <uuid>, "lane": <lane>, "cost": <tokens>}` in the list `<stage>.<lane>`. Nothing else ever goes
into Redis: no document, no file name, no metadata. `publish` is the only way in; the broker transport of the
workers is the only way out and builds the Celery envelope itself, so that no message can name a task or its arguments.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from pecia_schemas.states import Lane, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

CANCEL_CHANNEL = "pecia:cancelled"
"""Pub/sub: ids of jobs that were cancelled, so that workers abort their parts at once."""

BELL_TTL_MS = 1_000
"""A bell that nobody heard within this time is forgotten; workers look every second anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMessage:
    """One part on its way to a worker; `cost` in tokens of the engine's budget."""

    part: UUID
    stage: Stage
    lane: Lane
    cost: int

    @property
    def queue(self) -> str:
        """The Redis list this message waits in."""
        return queue_name(self.stage, self.lane)

    def encode(self) -> str:
        """Return the bytes on the wire, as text."""
        return json.dumps(
            {"part": str(self.part), "lane": self.lane, "cost": self.cost}, separators=(",", ":")
        )


def queue_name(stage: Stage, lane: Lane) -> str:
    """Return the Redis list in which parts of this stage and lane wait."""
    return f"{stage}.{lane}"


def bell_name(stage: Stage) -> str:
    """Return the list that producers push to, so that an idle worker of this stage wakes at once."""
    return f"pecia:bell:{stage}"


def job_channel(job_id: UUID) -> str:
    """Return the pub/sub channel on which the job's state is announced after every commit."""
    return f"pecia:job:{job_id}"


def publish(redis: Redis, messages: Iterable[PartMessage]) -> None:
    """Queue the messages in order and ring each stage's bell, in one round trip.

    Raises `redis.RedisError` if Redis is away; then some of the messages may have been queued. Publishing a part
    twice is harmless: the ledger hands it out once.
    """
    with redis.pipeline(transaction=False) as pipe:
        enqueue(pipe, messages)
        pipe.execute()


def enqueue(pipe: Pipeline | AsyncPipeline, messages: Iterable[PartMessage]) -> None:
    """Put what `publish` does on a pipeline, for those who have one or wait asynchronously."""
    queues: defaultdict[str, list[str]] = defaultdict(list)
    stages: dict[Stage, None] = {}
    for message in messages:
        queues[message.queue].append(message.encode())
        stages[message.stage] = None
    for queue, encoded in queues.items():
        pipe.lpush(queue, *encoded)
    for stage in stages:
        pipe.lpush(bell_name(stage), 1)
        pipe.pexpire(bell_name(stage), BELL_TTL_MS)
