"""The way of a part from Redis into this process and out of it again."""

from pecia_workers.broker.connection import celery_settings, connect
from pecia_workers.broker.envelope import task_name
from pecia_workers.broker.keeper import Capacity, Gate, LeaseKeeper
from pecia_workers.broker.leases import DEAD, QUEUES, Claim, Claimed, Leases, reap
from pecia_workers.broker.rules import LaneRules

__all__ = [
    "DEAD",
    "QUEUES",
    "Capacity",
    "Claim",
    "Claimed",
    "Gate",
    "LaneRules",
    "LeaseKeeper",
    "Leases",
    "celery_settings",
    "connect",
    "reap",
    "task_name",
]
