"""What a user would write instead: a Celery task, threads, acks_late, the same rows through SQLAlchemy."""

from __future__ import annotations

import os
import socket
from uuid import UUID

from celery import Celery
from sqlalchemy import MetaData, create_engine, func, insert, text, update

from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.results import Page, Verdict
from pecia_schemas.states import JobState, PartState

THREADS = 8
WORKER = f"stock@{socket.gethostname()}:{os.getpid()}"


def broker_url(redis_url: str) -> str:
    """Return the URL of a unix socket as kombu writes it."""
    return redis_url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")


app = Celery("stock", broker=broker_url(os.environ["PECIA_REDIS_URL"]))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="stock",
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
)
engine = create_engine(sqlalchemy_url(os.environ["PECIA_DATABASE_URL"]), pool_size=THREADS)
_tables = MetaData()
_tables.reflect(engine)
JOBS, PARTS, EVENTS, RESULTS = (_tables.tables[name] for name in ("jobs", "parts", "job_events", "results"))


@app.task(name="stock.read")  # type: ignore[untyped-decorator]
def read(part_id: str) -> None:
    """Claim the part, answer at once, write result, events and counters: one part, two transactions."""
    part = UUID(part_id)
    with engine.begin() as connection:
        claimed = connection.execute(
            update(PARTS)
            .where(PARTS.c.id == part, PARTS.c.state == PartState.QUEUED)
            .values(
                state=PartState.RUNNING, attempt=PARTS.c.attempt + 1, worker=WORKER, started_at=func.now()
            )
            .returning(PARTS.c.job_id, PARTS.c.ordinal, PARTS.c.attempt)
        ).one_or_none()
        if claimed is None:
            return
        connection.execute(insert(EVENTS).values(_event(part, claimed, PartState.RUNNING)))
        connection.execute(
            update(JOBS)
            .where(JOBS.c.id == claimed.job_id, JOBS.c.state == JobState.QUEUED)
            .values(state=JobState.RUNNING, started_at=func.now())
        )
    page = Page(number=claimed.ordinal + 1, verdict=Verdict.OK, width=1, height=1, engine="instant")
    with engine.begin() as connection:
        connection.execute(
            update(PARTS)
            .where(PARTS.c.id == part, PARTS.c.attempt == claimed.attempt)
            .values(state=PartState.DONE, finished_at=func.now())
        )
        connection.execute(
            insert(RESULTS).values(
                part_id=part,
                job_id=claimed.job_id,
                ordinal=claimed.ordinal,
                attempt=claimed.attempt,
                content=page.model_dump(mode="json"),
            )
        )
        connection.execute(insert(EVENTS).values(_event(part, claimed, PartState.DONE)))
        connection.execute(
            update(JOBS)
            .where(JOBS.c.id == claimed.job_id)
            .values(
                done=JOBS.c.done + 1,
                state=text("CASE WHEN done + failed + 1 = total THEN 'succeeded' ELSE state END"),
                finished_at=text("CASE WHEN done + failed + 1 = total THEN now() END"),
            )
        )


def _event(part: UUID, claimed: object, state: PartState) -> dict[str, object]:
    return {
        "job_id": claimed.job_id,  # type: ignore[attr-defined]
        "part_id": part,
        "state": state,
        "actor": WORKER,
        "attempt": claimed.attempt,  # type: ignore[attr-defined]
    }


if __name__ == "__main__":
    app.worker_main(
        [
            "worker",
            "--pool=threads",
            f"--concurrency={THREADS}",
            "--loglevel=WARNING",
            "--without-gossip",
            "--without-mingle",
        ]
    )
