"""Parts in the lists of a real Redis: made, and claimed as a worker does."""

from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from redis import Redis

from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import QUEUES, Claim, Claimed, LaneRules, Lists

EVERY_LIST = tuple(QUEUES)
_NUMBERS = count(1)


def messages(number: int = 1, *, flow: UUID | None = None, **about: Any) -> list[PartMessage]:
    """Return messages of new parts, each of a flow of its own unless one is given."""
    usual = {"stage": Stage.READ, "lane": Lane.NORMAL, "cost": 1, **about}
    return [
        PartMessage(part=part, flow=flow or part, **usual) for part in sorted(uuid4() for _ in range(number))
    ]


def claim(
    redis: Redis,
    queues: Sequence[str] = EVERY_LIST,
    *,
    worker: str = "me",
    slots: int = 100,
    idle: bool = True,
    rules: LaneRules | None = None,
    **more: Any,
) -> Claim:
    """Make a worker's next call."""
    number = next(_NUMBERS)
    return Lists(redis, rules).claim(queues, worker=worker, number=number, slots=slots, idle=idle, **more)


def put_back(redis: Redis, parts: Sequence[Claimed]) -> None:
    """Have a worker put parts back to the heads of their lists."""
    Lists(redis).put_back(parts)
