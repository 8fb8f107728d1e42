"""One fleet's stores: what tests look up in them, and the ledgers and the worker that use them in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import psycopg
from celery.exceptions import Ignore, Retry
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import Job
from pecia_schemas.encryption import Keyring
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.protocol.parts import ClaimedPart, PartCancelledError, PartFailedError
from pecia_workers.worker.runtime import Runtime

R = TypeVar("R")

PAGES = frozenset({Stage.INGEST, Stage.READ, Stage.SPLIT})


async def hear_nothing(_: object) -> None:
    """Announce to nobody."""


async def claimed(ledger: Ledger, part: UUID, *, deaths: int = 0) -> ClaimedPart:
    claim = await ledger.claim(part, deaths=deaths)
    assert claim is not None, "the part cannot be claimed"
    return claim


@dataclass
class House:
    """The stores of one fleet, and where its worker keeps files."""

    database_url: str
    redis_url: str
    payload_url: str
    spool: Path

    @property
    def urls(self) -> dict[str, str]:
        """What a client or a worker is told of the stores."""
        return {name: getattr(self, name) for name in ("database_url", "redis_url", "payload_url")}

    def query(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, statement: LiteralString, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url) as connection:
            cursor = connection.cursor(row_factory=dict_row).execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def part_of(self, job: Job[Any]) -> UUID:
        """Return the only part of a job."""
        ((part,),) = self.query("SELECT id FROM parts WHERE job_id = %s", job.id)
        return UUID(str(part))

    def files(self) -> dict[str, bytes]:
        """Every file of the payload store."""
        return {path.name: path.read_bytes() for path in Path(self.payload_url).rglob("*") if path.is_file()}

    def ask(self, question: Callable[[AsyncEngine], Awaitable[R]], **opened: Any) -> R:
        """Return what a question to the database, as it is opened with these options, is answered."""

        async def story() -> R:
            database = open_database(self.database_url, **opened)
            try:
                return await question(database)
            finally:
                await database.dispose()

        return asyncio.run(story())

    def play(
        self, story: Callable[..., Awaitable[R]], *workers: str, keys: Keyring | None = None, **how: Any
    ) -> R:
        """Run a story with the ledgers of as many workers as it names."""
        about = {"announce": hear_nothing, "keys": keys or Keyring(), **how}
        return self.ask(
            lambda database: story(*(Ledger(database, name, **about) for name in workers or ("one",)))
        )

    def settings(self, **changes: Any) -> WorkerSettings:
        own = {"engine": "simulated:instant", "decode_processes": 1, "spool_dir": str(self.spool)}
        return WorkerSettings.model_validate({**self.urls, **own, **changes})

    @asynccontextmanager
    async def working(self, stages: Collection[Stage] = PAGES, **changes: Any) -> AsyncIterator[Runtime]:
        """Have a worker ready that runs what it is told."""
        runtime = Runtime(self.settings(**changes), set(stages))
        try:
            await runtime.start()
            yield runtime
        finally:
            await runtime.stop()

    def waiting(self, *jobs: Job[Any], within: timedelta = timedelta()) -> list[UUID]:
        """Return the queued parts of these jobs, or of all, that are due within that time."""
        query = """SELECT id FROM parts WHERE state = 'queued' AND run_at <= now() + %s
                   AND (%s::uuid[] IS NULL OR job_id = ANY(%s)) ORDER BY ordinal, id"""
        ids = [job.id for job in jobs] or None
        return [part for (part,) in self.query(query, within, ids, ids)]

    def work_off(
        self, *jobs: Job[Any], stages: Collection[Stage] = PAGES, together: bool = False, **changes: Any
    ) -> list[type[BaseException]]:
        """Run what waits of these jobs, or of all, until nothing does; return what Celery is told of failures."""
        told: list[type[BaseException]] = []

        async def run(runtime: Runtime, part: UUID) -> None:
            try:
                await runtime.run(part, deaths=0)
            except (PartFailedError, PartCancelledError, Retry, Ignore) as error:
                told.append(type(error))

        async def story() -> None:
            async with self.working(stages, **changes) as runtime:
                while self.waiting(*jobs, within=timedelta(minutes=1)):
                    parts = self.waiting(*jobs)
                    for group in [parts] if together else [[part] for part in parts]:
                        await asyncio.gather(*(run(runtime, part) for part in group))
                    await asyncio.sleep(0.02)

        asyncio.run(story())
        for job in jobs:
            job.refresh()
        return told
