"""taskiq on Redis streams, its broker that acknowledges: two processes with a hundred jobs on a loop each, by default.

Chosen: a hundred jobs are handed over side by side, for there is no call for many. It knows no priorities. With a
lease asked for, jobs that were idle for that time are taken over.
"""

from __future__ import annotations

import asyncio
import os
import sys

from taskiq_redis import RedisStreamBroker

from noop import LEASE_S, REDIS_URL, SLOTS, main, new_jobs, work_on_a_loop

SIDE_BY_SIDE = 100

_HASTE = {"idle_timeout": LEASE_S * 1000, "unacknowledged_lock_timeout": LEASE_S} if LEASE_S else {}
broker = RedisStreamBroker(REDIS_URL, **_HASTE)
_loop = asyncio.Runner()
_started: list[bool] = []


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]
async def noop(job: str) -> None:
    """Do the work."""
    await work_on_a_loop(job)


async def _start() -> None:
    if not _started:
        await broker.startup()
        _started.append(True)


def _prepare() -> None:
    _loop.run(_start())


def _many(count: int) -> None:
    jobs = new_jobs(count)

    async def hand_over() -> None:
        await _start()
        for start in range(0, count, SIDE_BY_SIDE):
            await asyncio.gather(*(noop.kiq(job) for job in jobs[start : start + SIDE_BY_SIDE]))

    _loop.run(hand_over())


def _urgent(job: str) -> None:
    async def hand_over() -> None:
        await _start()
        await noop.kiq(job)

    _loop.run(hand_over())


def _worker() -> None:
    size = ["--workers", "1", "--max-async-tasks", str(SLOTS)] if SLOTS else []
    command = ["-m", "taskiq", "worker", "--log-level", "WARNING", *size, "with_taskiq:broker"]
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


if __name__ == "__main__":
    main(many=_many, urgent=_urgent, worker=_worker, prepare=_prepare)
