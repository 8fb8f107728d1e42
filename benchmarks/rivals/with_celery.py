"""Stock Celery on Redis: threads, late acknowledgement; priorities and the shorter visibility time-out when asked for.

Chosen: eight threads, for the work waits for Postgres; four messages ahead for each, which is the default, and one
ahead where priorities matter, as Celery's page about Redis says. It has no call that hands over many.
"""

from __future__ import annotations

from celery import Celery

from noop import LEASE_S, REDIS_URL, SLOTS, main, new_jobs, work

URGENT, BULK = 0, 9

app = Celery("noop", broker=REDIS_URL.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host="))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="noop",
    worker_prefetch_multiplier=1 if SLOTS else 4,
    worker_hijack_root_logger=False,
    broker_transport_options={
        "queue_order_strategy": "priority",
        **({"visibility_timeout": LEASE_S, "unacked_restore_interval": 1} if LEASE_S else {}),
    },
)


@app.task(name="noop.work")  # type: ignore[untyped-decorator]
def noop(job: str) -> None:
    """Do the work."""
    work(job)


def _many(count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for job in new_jobs(count):
            noop.apply_async((job,), producer=producer, priority=BULK)


def _urgent(job: str) -> None:
    noop.apply_async((job,), priority=URGENT)


def _worker() -> None:
    flags = ("--loglevel=WARNING", "--without-gossip", "--without-mingle")
    app.worker_main(["worker", "--pool=threads", f"--concurrency={SLOTS or 8}", *flags])


if __name__ == "__main__":
    main(many=_many, urgent=_urgent, worker=_worker)
