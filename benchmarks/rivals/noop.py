"""The same work for every side: nothing, for as long as asked, then one committed row. And what a benchmark tells them.

Imported in the rivals' own environment, where Pecia is not installed. `python with_X.py prepare|many N|urgent|work`:
`many` hands over so many jobs and prints when it began and how long it took; `urgent` does so with one job for each
line that it reads, before others if it can; `work` becomes the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import uuid4

import psycopg

DATABASE_URL = os.environ["BENCH_DATABASE_URL"]
REDIS_URL = os.environ["BENCH_REDIS_URL"]
SLOTS = int(os.environ.get("BENCH_SLOTS", "0"))
"""Jobs that run at a time; 0: as many as are best for throughput."""
WORK_S = float(os.environ.get("BENCH_WORK_S", "0"))
LEASE_S = int(os.environ.get("BENCH_LEASE_S", "0"))
"""How long a worker that died keeps its jobs; 0: as the library has it."""

_INSERT = "INSERT INTO bench_rows (job) VALUES (%s)"
_connections = threading.local()


def work(job: str) -> None:
    """Do it in a thread."""
    time.sleep(WORK_S)
    _connection().execute(_INSERT, [job])


def work_together(jobs: list[str]) -> None:
    """Do it once for many."""
    time.sleep(WORK_S)
    with _connection().transaction(), _connection().cursor() as cursor:
        cursor.executemany(_INSERT, [(job,) for job in jobs])


async def work_on_a_loop(job: str) -> None:
    """Do it on an event loop."""
    await asyncio.sleep(WORK_S)
    pool = await _pool()
    async with pool.connection() as connection:
        await connection.execute(_INSERT, [job])


def _connection() -> psycopg.Connection[Any]:
    """Return this thread's own."""
    if not hasattr(_connections, "own"):
        _connections.own = psycopg.connect(DATABASE_URL, autocommit=True)
    own: psycopg.Connection[Any] = _connections.own
    return own


@cache
def _new_pool() -> Any:
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415  not where Celery runs

    return AsyncConnectionPool(DATABASE_URL, min_size=8, max_size=8, kwargs={"autocommit": True}, open=False)


async def _pool() -> Any:
    pool = _new_pool()
    if pool.closed:
        await pool.open()
    return pool


def new_jobs(count: int) -> list[str]:
    """Return so many fresh names."""
    return [str(uuid4()) for _ in range(count)]


def main(
    *,
    many: Callable[[int], None],
    urgent: Callable[[str], None],
    worker: Callable[[], object],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Do what the command line asks for."""
    match sys.argv[1:]:
        case ["prepare"]:
            prepare()
        case ["many", count]:
            began, clock = time.time(), time.perf_counter()
            many(int(count))
            print(json.dumps({"began": began, "seconds": time.perf_counter() - clock}))
        case ["urgent"]:
            for _ in sys.stdin:
                (job,) = new_jobs(1)
                began = time.time()
                urgent(job)
                print(json.dumps({"began": began, "job": job}), flush=True)
        case ["work"]:
            worker()
        case _:
            sys.exit(__doc__)
