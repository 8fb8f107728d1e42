"""What travels through Redis, and under which names.

A message is `{"part": <uuid>, "lane": <lane>, "cost": <tokens>, "flow": <uuid>}`; of a job that is traced also
`"trace": <traceparent>`; of a part on which workers died, `"deaths": <how many>`. It waits in the list
`<stage>.<lane>`; behind a turn of its flow in `<stage>.<lane>:<flow>`, for which `{"flow": <uuid>}` stands in the list
of the lane; or, if a worker died on its part, in `<stage>.quarantine`.
Nothing else ever goes into Redis: no document, no file name, no metadata. `publish` is the only way in; the broker
transport of the workers is the only way out and builds the Celery envelope itself, so that no message can name a task
or its arguments.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING
from uuid import UUID

from pecia_schemas.states import Lane, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

SYSTEM = "pecia"
"""What carries the messages, as traces name it."""

CANCEL_CHANNEL = "pecia:cancelled"
"""Pub/sub: ids of jobs that were cancelled, so that workers abort their parts at once."""

BELL_TTL_MS = 1_000
"""A bell that nobody heard within this time is forgotten; workers look every second anyway."""

BELL_PREFIX = "pecia:bell:"
STANDING_PREFIX = "pecia:standing:"

TURN = 32
"""Most messages of one flow that stand in a lane's list: a document of so many pages is read in one go."""

_MESSAGES_PER_SCRIPT = 500
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_PUBLISH = files("pecia_schemas").joinpath("publish.lua").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMessage:
    """One part on its way to a worker; `cost` in tokens of the engine's budget."""

    part: UUID
    stage: Stage
    lane: Lane
    cost: int
    flow: UUID
    """With what it takes turns as one: its job, or all jobs that share a value of their metadata."""
    deaths: int = 0
    """Workers that died on it: more than none, and it waits in quarantine."""
    traceparent: str | None = None
    """The span its job was submitted in."""

    @property
    def queue(self) -> str:
        """The Redis list this message waits in, or behind."""
        return quarantine_name(self.stage) if self.deaths else queue_name(self.stage, self.lane)

    def encode(self) -> str:
        """Return the bytes on the wire, as text."""
        message = {"part": str(self.part), "lane": self.lane, "cost": self.cost, "flow": str(self.flow)}
        if self.traceparent:
            message["trace"] = self.traceparent
        if self.deaths:
            message["deaths"] = self.deaths
        return _COMPACT.encode(message)


def queue_name(stage: Stage, lane: Lane) -> str:
    """Return the Redis list in which parts of this stage and lane wait."""
    return f"{stage}.{lane}"


def rest_name(queue: str, flow: UUID | str) -> str:
    """Return the list in which a flow's messages wait that are more than a turn."""
    return f"{queue}:{flow}"


def marker(flow: UUID | str) -> str:
    """Return what stands in a lane's list for the messages of a flow that are more than a turn."""
    return _COMPACT.encode({"flow": str(flow)})


def standing_name(queue: str) -> str:
    """Return the hash that counts how many messages of each flow stand in a lane's list."""
    return STANDING_PREFIX + queue


def quarantine_name(stage: Stage) -> str:
    """Return the list in which parts wait on which a worker died."""
    return f"{stage}.quarantine"


def bell_name(stage: Stage) -> str:
    """Return the list that producers push to, so that an idle worker of this stage wakes at once."""
    return BELL_PREFIX + stage


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
    queues: defaultdict[tuple[Stage, str], list[PartMessage]] = defaultdict(list)
    for message in messages:
        queues[message.stage, message.queue].append(message)
    for (stage, queue), waiting in queues.items():
        for start in range(0, len(waiting), _MESSAGES_PER_SCRIPT):
            some = waiting[start : start + _MESSAGES_PER_SCRIPT]
            if queue == quarantine_name(stage):
                _quarantine(pipe, stage, some)
            else:
                _line_up(pipe, stage, queue, some)


def _line_up(
    pipe: Pipeline | AsyncPipeline, stage: Stage, queue: str, messages: Iterable[PartMessage]
) -> None:
    pairs = [text for message in messages for text in (str(message.flow), message.encode())]
    # The whole script each time: a Redis that was restarted knows none.
    pipe.eval(_PUBLISH, 3, queue, standing_name(queue), bell_name(stage), str(TURN), str(BELL_TTL_MS), *pairs)


def _quarantine(pipe: Pipeline | AsyncPipeline, stage: Stage, messages: Iterable[PartMessage]) -> None:
    for message in messages:
        pipe.lpush(message.queue, message.encode())
    pipe.lpush(bell_name(stage), 1)
    pipe.pexpire(bell_name(stage), BELL_TTL_MS)
