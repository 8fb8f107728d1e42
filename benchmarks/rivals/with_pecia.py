"""Pecia: `submit_many` of a small picture, one job each, and its own engine worker with an engine that answers at once.

Each job is four rows here: job, part, result, and its events. Bulk lane, or urgent; the rest as it comes. What the
client imports when it first needs it is imported before the clock starts, as the other sides import theirs.
"""

from __future__ import annotations

import io
import json
import sys
import time

import redis  # noqa: F401  this and the next two: for the clock
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401
from PIL import Image

import pecia.connections  # noqa: F401
from noop import LEASE_S, SLOTS, WORK_S, main
from pecia import Client, Lane, ReadDocument


def _task() -> ReadDocument:
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "PNG")
    return ReadDocument(file.getvalue())


def _many(count: int) -> None:
    task = _task()
    with Client() as client:
        client.submit_many((task for _ in range(count)), priority=Lane.BULK)


def _urgent() -> None:
    task = _task()
    with Client() as client:
        for _ in sys.stdin:
            began = time.time()
            job = client.submit(task, priority=Lane.URGENT)
            print(json.dumps({"began": began, "job": str(job.id)}), flush=True)


def _worker() -> None:
    from pecia_worker import run  # noqa: PLC0415  the fleet: only a worker needs it

    run(slots=SLOTS, work_s=WORK_S, lease_s=LEASE_S)


if __name__ == "__main__":
    if sys.argv[1:] == ["urgent"]:
        _urgent()
    else:
        main(many=_many, urgent=lambda _job: None, worker=_worker)
