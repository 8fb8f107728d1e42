"""procrastinate: Postgres alone. Asynchronous, as it is inside, 32 jobs at a time in one worker.

Chosen: `batch_defer`, its way to hand over many, a thousand in a call. With a lease asked for, heartbeats of a third
of it and its recipe for stalled jobs, every five seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from procrastinate import App, JobContext, PsycopgConnector

from noop import DATABASE_URL, LEASE_S, SLOTS, main, new_jobs, work_on_a_loop

AT_ONCE, CONNECTIONS = 32, 10
URGENT, BULK = 10, 0

app = App(connector=PsycopgConnector(conninfo=DATABASE_URL, min_size=CONNECTIONS, max_size=CONNECTIONS))
_loop = asyncio.Runner()


@app.task(name="noop")  # type: ignore[untyped-decorator]
async def noop(job: str) -> None:
    """Do the work."""
    await work_on_a_loop(job)


if LEASE_S:

    @app.periodic(cron="* * * * * */5")  # type: ignore[untyped-decorator]
    @app.task(queueing_lock="stalled", pass_context=True)  # type: ignore[untyped-decorator]
    async def retry_stalled(_context: JobContext, timestamp: int) -> None:  # noqa: ARG001  it is given
        """Run the jobs of dead workers again."""
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)


def _prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


def _many(count: int) -> None:
    jobs: list[dict[str, Any]] = [{"job": job} for job in new_jobs(count)]

    async def hand_over() -> None:
        async with app.open_async():
            for start in range(0, count, 1_000):
                await noop.configure(priority=BULK).batch_defer_async(*jobs[start : start + 1_000])

    _loop.run(hand_over())


def _urgent(job: str) -> None:
    async def hand_over() -> None:
        await app.open_async()
        await noop.configure(priority=URGENT).defer_async(job=job)

    _loop.run(hand_over())


def _worker() -> None:
    async def run() -> None:
        beats: dict[str, Any] = (
            {"update_heartbeat_interval": LEASE_S / 3, "stalled_worker_timeout": LEASE_S} if LEASE_S else {}
        )
        async with app.open_async():
            await app.run_worker_async(concurrency=SLOTS or AT_ONCE, **beats)

    _loop.run(run())


if __name__ == "__main__":
    main(many=_many, urgent=_urgent, worker=_worker, prepare=_prepare)
