"""dramatiq on Redis: a process for each core with eight threads, as its command has it by default.

Chosen: an urgent queue beside the other, for its priorities order only what a worker has fetched. With a lease asked
for, workers count as dead after that time, and a tenth of the commands look for the dead: by default it is one in a
thousand after a minute, which an idle fleet takes a quarter of an hour to reach.
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from noop import LEASE_S, REDIS_URL, SLOTS, main, new_jobs, work

_HASTE = {"heartbeat_timeout": LEASE_S * 1000, "maintenance_chance": 100_000} if LEASE_S else {}

dramatiq.set_broker(RedisBroker(url=REDIS_URL, **_HASTE))


@dramatiq.actor(queue_name="bulk", priority=10)  # type: ignore[untyped-decorator]
def bulk(job: str) -> None:
    """Do the work."""
    work(job)


@dramatiq.actor(queue_name="urgent", priority=0)  # type: ignore[untyped-decorator]
def first(job: str) -> None:
    """Do the work before others."""
    work(job)


def _many(count: int) -> None:
    for job in new_jobs(count):
        bulk.send(job)


def _urgent(job: str) -> None:
    first.send(job)


def _worker() -> None:
    size = ["--processes", "1", "--threads", str(SLOTS)] if SLOTS else []
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "with_dramatiq", *size])  # noqa: S606


if __name__ == "__main__":
    main(many=_many, urgent=_urgent, worker=_worker)
