"""The way of a part from Redis into this process and out of it again."""

from pecia_workers.queue.keeper import Capacity, Gate, Keeper
from pecia_workers.queue.lists import (
    DEAD,
    QUEUES,
    Claim,
    Claimed,
    Ended,
    LaneRules,
    Lists,
    celery_settings,
    connect,
    hand_back,
)
from pecia_workers.queue.transport import task_name

__all__ = [
    "DEAD",
    "QUEUES",
    "Capacity",
    "Claim",
    "Claimed",
    "Ended",
    "Gate",
    "Keeper",
    "LaneRules",
    "Lists",
    "celery_settings",
    "connect",
    "hand_back",
    "task_name",
]
