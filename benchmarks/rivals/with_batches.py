"""celery-batches: a hundred messages are one call, which writes a hundred rows in one transaction.

Chosen: four threads, and a hundred messages ahead for each: its page asks for more than make a batch. A batch that is
not full goes after a second.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery_batches import Batches

from noop import REDIS_URL, main, new_jobs, work_together

TOGETHER, THREADS = 100, 4

app = Celery(
    "batches", broker=REDIS_URL.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="batches",
    worker_prefetch_multiplier=TOGETHER,
    worker_hijack_root_logger=False,
)


@app.task(name="batches.work", base=Batches, flush_every=TOGETHER, flush_interval=1)  # type: ignore[untyped-decorator]
def noop(requests: list[Any]) -> None:
    """Do the work of all."""
    work_together([request.args[0] for request in requests])


def _many(count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for job in new_jobs(count):
            noop.apply_async((job,), producer=producer)


def _urgent(job: str) -> None:
    noop.apply_async((job,))


def _worker() -> None:
    flags = ("--loglevel=WARNING", "--without-gossip", "--without-mingle")
    app.worker_main(["worker", "--pool=threads", f"--concurrency={THREADS}", *flags])


if __name__ == "__main__":
    main(many=_many, urgent=_urgent, worker=_worker)
