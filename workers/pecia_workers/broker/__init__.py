"""The way of a part from Redis into this process and out of it again."""

from pecia_workers.broker.connection import celery_settings, connect
from pecia_workers.broker.keeper import Capacity, Gate, Keeper
from pecia_workers.broker.lists import DEAD, QUEUES, Claim, Claimed, Ended, LaneRules, Lists, hand_back
from pecia_workers.broker.transport import task_name

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
