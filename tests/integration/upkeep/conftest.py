"""Upkeep on the tables and on real Redis: one step at a time, or the loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from redis import Redis

from pecia_schemas.events import JobNotice, NoticeType
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import new_id
from pecia_workers.ledger.database import open_database
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import Lists, connect
from pecia_workers.upkeep.loop import Stores, Upkeep

R = TypeVar("R")


@dataclass
class Tables:
    """The tables as the test sees them."""

    database_url: str

    def query(self, statement: LiteralString, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def add_job(
        self,
        *,
        parts: int = 1,
        stage: str = "read",
        expires_in: timedelta | None = None,
        webhook: bool = False,
    ) -> UUID:
        job_id = new_id()
        notices = {"url": "https://hook.example/", "events": ["job.expired", "job.failed", "job.partial"]}
        self.query(
            """INSERT INTO jobs (id, kind, lane, task, task_digest, payload, idempotency_key, client, total, webhook,
                                 expires_at)
               VALUES (%s, 'document.read', 'normal', '{}', '', '', %s, 'test', %s, %s, now() + %s::interval)""",
            job_id,
            str(job_id),
            None if stage == "ingest" else parts,
            Jsonb(notices) if webhook else None,
            expires_in,
        )
        self.query(
            """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost)
               SELECT id, %s, %s, nth - 1, 'normal', 7 FROM unnest(%s::uuid[]) WITH ORDINALITY AS new (id, nth)""",
            job_id,
            stage,
            [new_id() for _ in range(parts)],
        )
        return job_id

    def parts(self, job_id: UUID) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM parts WHERE job_id = %s ORDER BY ordinal", job_id)

    def job(self, job_id: UUID) -> dict[str, Any]:
        return self.query("SELECT * FROM jobs WHERE id = %s", job_id)[0]

    def events(self, job_id: UUID) -> list[tuple[str, str | None, bool]]:
        """State, reason, and whether it was the job itself that moved."""
        rows = self.query(
            "SELECT * FROM job_events WHERE job_id = %s AND actor = 'upkeep' ORDER BY sequence", job_id
        )
        return [(row["state"], row["reason"], row["part_id"] is None) for row in rows]

    def run_on(self, worker: str, job_id: UUID) -> None:
        """Let a worker have claimed the job's parts, a moment ago."""
        self.query(
            """UPDATE parts SET state = 'running', worker = %s, attempt = 1, published_at = now(), started_at = now()
               WHERE job_id = %s""",
            worker,
            job_id,
        )
        self.query("UPDATE jobs SET state = 'running' WHERE id = %s", job_id)

    def add_worker(
        self, name: str, *, silent: timedelta = timedelta(), stopped: bool = False, lost: bool = False
    ) -> None:
        self.query(
            """INSERT INTO workers (name, role, stages, host, pid, started_at, seen_at, stopped_at, lost_at)
               VALUES (%s, 'engine', '{read}', 'here', 1, now() - interval '1 hour', now() - %s::interval,
                       CASE WHEN %s THEN now() END, CASE WHEN %s THEN now() END)""",
            name,
            silent,
            stopped,
            lost,
        )

    def publish_long_ago(self) -> None:
        self.query(
            "UPDATE parts SET published_at = now() - interval '1 minute' WHERE published_at IS NOT NULL"
        )

    def notices(self) -> list[NoticeType]:
        return [
            JobNotice.model_validate(row["body"]).type for row in self.query("SELECT body FROM deliveries")
        ]


@pytest.fixture
def tables(database_url: str) -> Tables:
    return Tables(database_url)


@pytest.fixture
def new_tables() -> Callable[[str], Tables]:
    """Looks at another database than the test's own."""
    return Tables


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = connect(redis_url)
    yield client
    client.close()


@pytest.fixture
def settings_for(database_url: str, redis_url: str) -> Callable[..., WorkerSettings]:
    """Makes settings for this test's stores and an upkeep that looks ten times a second, but for the changes."""

    def make(**changes: Any) -> WorkerSettings:
        usual = {
            "database_url": database_url,
            "redis_url": redis_url,
            "upkeep_interval": timedelta(milliseconds=100),
        }
        return WorkerSettings.model_validate(usual | changes)

    return make


@pytest.fixture
def settings(settings_for: Callable[..., WorkerSettings]) -> WorkerSettings:
    return settings_for()


@pytest.fixture
def run(settings: WorkerSettings) -> Callable[..., Any]:
    """Runs one step once."""

    def run_step(step: Callable[[Stores], Awaitable[R]], settings: WorkerSettings = settings) -> R:
        return asyncio.run(_with_stores(step, settings))

    return run_step


async def _with_stores(step: Callable[[Stores], Awaitable[R]], settings: WorkerSettings) -> R:
    redis_url = settings.redis_url.get_secret_value()
    stores = Stores(
        database=open_database(settings.database_url.get_secret_value()),
        redis=connect(redis_url),
        bus=Bus(redis_url),
    )
    try:
        return await step(stores)
    finally:
        await stores.bus.close()
        stores.redis.close()
        await stores.database.dispose()


@pytest.fixture
def keeping() -> Callable[[WorkerSettings], AbstractContextManager[None]]:
    """Keeps upkeep at work, on a loop in a thread."""
    return _keeping


@contextmanager
def _keeping(settings: WorkerSettings) -> Iterator[None]:
    upkeep = Upkeep(settings)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(upkeep.run()))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(upkeep.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture
def claim_all(redis: Redis) -> Callable[..., list[str]]:
    """Claims what waits in `read.normal`, at most `slots`, and returns the parts' ids."""

    numbers = count(1)

    def claim(*, owner: str = "worker", slots: int = 1_000) -> list[str]:
        claimed = Lists(redis).claim(["read.normal"], worker=owner, number=next(numbers), slots=slots)
        return [part.part for part in claimed.parts]

    return claim
