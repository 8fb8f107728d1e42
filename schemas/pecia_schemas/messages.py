"""What travels through Redis, and under which names.

A message is `{"part": <uuid>, "lane": <lane>, "cost": <tokens>, "flow": <uuid>}`; of a job that is traced also
`"trace": <traceparent>`; of a part on which workers died, `"deaths": <how many>`. It waits in the list
`<stage>.<lane>`; behind a turn of its flow in `<stage>.<lane>:<flow>`, for which `{"flow": <uuid>}` stands in the list
of the lane; or, if a worker died on its part, in `<stage>.quarantine`.
A list is a window: it holds a bounded number of messages, and more parts wait in Postgres until there is room.
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
    from collections.abc import Iterable, Sequence

    from redis import Redis
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

CANCEL_CHANNEL = "pecia:cancelled"
"""Pub/sub: ids of jobs that were cancelled, so that workers abort their parts at once."""

WAKEUP_TTL_MS = 1_000
"""A wake-up key that no worker took within this time expires; workers look every second anyway."""

WAKEUP_PREFIX = "pecia:bell:"
STANDING_PREFIX = "pecia:standing:"

TURN = 32
"""Most messages of one flow that stand in a lane's list: a document of so many pages is read in one go."""

WINDOW = 20_000
"""Most messages of a stage and lane that wait in Redis, unless a setting says otherwise."""

BEHIND_TURNS = "#"
"""Of a lane's hash: how many messages stand behind turns, less the markers for them."""
IN_POSTGRES = "+"
"""Of a lane's hash: there if parts wait in Postgres for room in the lane."""

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
        trace = f',"trace":{_COMPACT.encode(self.traceparent)}' if self.traceparent else ""
        deaths = f',"deaths":{self.deaths}' if self.deaths else ""
        return f'{{"part":"{self.part}","lane":"{self.lane}","cost":{self.cost},"flow":"{self.flow}"{trace}{deaths}}}'


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


def wakeup_key(stage: Stage) -> str:
    """Return the list that producers push to, so that an idle worker of this stage wakes at once."""
    return WAKEUP_PREFIX + stage


def job_channel(job_id: UUID) -> str:
    """Return the pub/sub channel on which the job's state is announced after every commit."""
    return f"pecia:job:{job_id}"


def reserve_of(window: int) -> int:
    """Return by how many messages the relay may exceed a window."""
    return max(1, window // 10)


def publish(redis: Redis, messages: Iterable[PartMessage], *, window: int = WINDOW) -> list[PartMessage]:
    """Queue the messages in order, push each stage's wake-up key, and return those that found no room; one round trip.

    Raises `redis.RedisError` if Redis is away; then some of the messages may have been queued. Publishing a part
    twice is harmless: the ledger hands it out once.
    """
    with redis.pipeline(transaction=False) as pipe:
        sent = enqueue(pipe, messages, window=window)
        return refused(sent, pipe.execute())


def enqueue(
    pipe: Pipeline | AsyncPipeline, messages: Iterable[PartMessage], *, window: int, reserve: int = 0
) -> list[list[PartMessage]]:
    """Put the calls of `publish` on a pipeline, for asynchronous callers; return the messages of each call.

    The relay alone has a reserve, and publishes what others left to it.
    """
    queues: defaultdict[tuple[Stage, str], list[PartMessage]] = defaultdict(list)
    for message in messages:
        queues[message.stage, message.queue].append(message)
    limits = [str(limit) for limit in (TURN, WAKEUP_TTL_MS, window, reserve)]
    sent = []
    for (stage, queue), waiting in queues.items():
        keys = [queue, wakeup_key(stage)]
        if queue != quarantine_name(stage):
            keys.append(standing_name(queue))
        for start in range(0, len(waiting), _MESSAGES_PER_SCRIPT):
            some = waiting[start : start + _MESSAGES_PER_SCRIPT]
            pairs = [text for message in some for text in (str(message.flow), message.encode())]
            # The script each time: a restarted Redis knows none.
            pipe.eval(_PUBLISH, len(keys), *keys, *limits, *pairs)
            sent.append(some)
    return sent


def refused(sent: Iterable[Sequence[PartMessage]], replies: Iterable[Iterable[int]]) -> list[PartMessage]:
    """Return the messages that found no room, by what Redis replied to what `enqueue` has put on a pipeline."""
    return [some[index] for some, reply in zip(sent, replies, strict=True) for index in reply]
