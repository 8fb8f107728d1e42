"""Messages, lists and channels in Redis.

A message is `{"part": <uuid>, "lane": <lane>, "cost": <tokens>, "flow": <uuid>}`. The message of a traced job also has
`"trace": <traceparent>`, and that of a part on which workers died `"deaths": <how many>`. It waits in the list
`<stage>.<lane>`; or, if its flow has a full turn there, in `<stage>.<lane>:<flow>`, for which the lane's list has a
marker `{"flow": <uuid>}`; or, if a worker died on its part, in `<stage>.quarantine`.
A list is a window: it has a maximum number of messages, and more parts wait in Postgres until it has capacity.
Nothing else is stored in Redis: no document, file name or metadata. Only `publish` writes messages. Only the workers'
broker transport reads them; it builds the Celery envelope itself, so that no message can name a task or its
arguments.
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
"""Pub/sub channel for ids of cancelled jobs, so that workers abort their parts at once."""

WAKEUP_TTL_MS = 1_000
"""Lifetime of a wake-up key. Workers poll every second anyway."""

WAKEUP_PREFIX = "pecia:bell:"
STANDING_PREFIX = "pecia:standing:"

TURN = 32
"""Maximum number of a flow's messages in a lane's list: a document of so many pages is read in one turn."""

WINDOW = 20_000
"""Default maximum number of messages of a stage and lane in Redis."""

BEHIND_TURNS = "#"
"""Field of a lane's hash: number of messages in the flows' own lists, minus their markers."""
IN_POSTGRES = "+"
"""Field of a lane's hash: set if parts wait in Postgres for capacity in the lane."""

_MESSAGES_PER_SCRIPT = 500
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_PUBLISH = files("pecia_schemas").joinpath("publish.lua").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMessage:
    """Message about one part; `cost` is in tokens of the engine's budget."""

    part: UUID
    stage: Stage
    lane: Lane
    cost: int
    flow: UUID
    """Id of the flow whose parts take turns as one: a job, or all jobs with the same value of a metadata key."""
    deaths: int = 0
    """Number of workers that died on the part. If it is not 0, the part waits in quarantine."""
    traceparent: str | None = None
    """The span in which the part's job was submitted."""

    @property
    def queue(self) -> str:
        """Name of the Redis list for this message, or of the lane's list in front of its flow's list."""
        return quarantine_name(self.stage) if self.deaths else queue_name(self.stage, self.lane)

    def encode(self) -> str:
        """Return the message as JSON text, as stored in Redis."""
        trace = f',"trace":{_COMPACT.encode(self.traceparent)}' if self.traceparent else ""
        deaths = f',"deaths":{self.deaths}' if self.deaths else ""
        return f'{{"part":"{self.part}","lane":"{self.lane}","cost":{self.cost},"flow":"{self.flow}"{trace}{deaths}}}'


def queue_name(stage: Stage, lane: Lane) -> str:
    """Return the name of the Redis list for parts of this stage and lane."""
    return f"{stage}.{lane}"


def rest_name(queue: str, flow: UUID | str) -> str:
    """Return the name of the list for a flow's messages beyond one turn."""
    return f"{queue}:{flow}"


def marker(flow: UUID | str) -> str:
    """Return the marker in a lane's list for a flow's messages beyond one turn."""
    return _COMPACT.encode({"flow": str(flow)})


def standing_name(queue: str) -> str:
    """Return the name of the hash that counts the messages of each flow in a lane's list."""
    return STANDING_PREFIX + queue


def quarantine_name(stage: Stage) -> str:
    """Return the name of the list for parts on which a worker died."""
    return f"{stage}.quarantine"


def wakeup_key(stage: Stage) -> str:
    """Return the list to which producers push so that an idle worker of this stage wakes at once."""
    return WAKEUP_PREFIX + stage


def job_channel(job_id: UUID) -> str:
    """Return the pub/sub channel on which the job's state is announced after each commit."""
    return f"pecia:job:{job_id}"


def reserve_of(window: int) -> int:
    """Return the number of messages by which the relay may exceed a window."""
    return max(1, window // 10)


def publish(redis: Redis, messages: Iterable[PartMessage], *, window: int = WINDOW) -> list[PartMessage]:
    """Queue the messages in order, push the wake-up key of each stage, and return messages that a full list refused.

    Takes one round trip. Raises `redis.RedisError` if Redis is unavailable; some of the messages may have been queued.
    Publishing a part twice is harmless, because the ledger hands it out only once.
    """
    with redis.pipeline(transaction=False) as pipe:
        sent = enqueue(pipe, messages, window=window)
        return refused(sent, pipe.execute())


def enqueue(
    pipe: Pipeline | AsyncPipeline, messages: Iterable[PartMessage], *, window: int, reserve: int = 0
) -> list[list[PartMessage]]:
    """Add the calls of `publish` to a pipeline, for asynchronous callers. Return the messages of each call.

    Only the relay has a reserve; it publishes messages that other publishers could not.
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
            # Sends the script each time, because a restarted Redis has lost it.
            pipe.eval(_PUBLISH, len(keys), *keys, *limits, *pairs)
            sent.append(some)
    return sent


def refused(sent: Iterable[Sequence[PartMessage]], replies: Iterable[Iterable[int]]) -> list[PartMessage]:
    """Return the messages that Redis refused, by its replies to the calls that `enqueue` has added to a pipeline."""
    return [some[index] for some, reply in zip(sent, replies, strict=True) for index in reply]
