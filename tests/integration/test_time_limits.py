"""A part that is not wanted any more, or takes too long, leaves the engine at once; nobody waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from celery.exceptions import Ignore, Retry

from limits import WAIT_S
from pecia import Client, Document, DocumentType, FailureCode, Job, JobState, ReadDocument
from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.errors import PartCancelledError, PartFailedError
from pecia_workers.runtime import Runtime
from pecia_workers.upkeep.steps import expire, open_stores
from pecia_workers.working import waited_s

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]


class Page:
    """A page whose answer takes the engine some fifteen seconds."""

    def __init__(self, client: Client, database_url: str, picture: bytes, **options: Any) -> None:
        task = ReadDocument(picture, document_type=DocumentType.CHART)
        self.job: Job[Document] = client.submit(task, **options)
        self._database_url = database_url
        ((self.part,),) = self.query("SELECT id FROM parts WHERE job_id = %s", self.job.id)

    def query(self, statement: Any, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database_url) as connection:
            return connection.execute(statement, values).fetchall()


@pytest.fixture
def settings(
    database_url: str, redis_url: str, payload_url: str, tmp_path: Path
) -> Callable[..., WorkerSettings]:
    given = {"database_url": database_url, "redis_url": redis_url, "payload_url": payload_url}
    usual = {"engine": "simulated", "decode_processes": 1, "spool_dir": str(tmp_path)}
    return lambda **changes: WorkerSettings.model_validate({**given, **usual, **changes})


@pytest.fixture
def submit(client: Client, database_url: str, printed: bytes) -> Callable[..., Page]:
    return lambda **options: Page(client, database_url, printed, **options)


def held(runtime: Runtime) -> int:
    """Return how many requests the engine has."""
    assert runtime._engine is not None
    load = runtime._engine.load()
    return load.running + load.waiting


async def until_it_is_read(runtime: Runtime, part: UUID) -> asyncio.Task[None]:
    reading = asyncio.create_task(runtime.run(part, deaths=0))
    async with asyncio.timeout(20):
        while not held(runtime):  # noqa: ASYNC110  an engine rings no bell
            await asyncio.sleep(0.01)
    return reading


async def ending(reading: asyncio.Task[None], runtime: Runtime) -> type[BaseException] | None:
    """Return with what it ended, long before the engine would have; by then the engine has let go of it."""
    await asyncio.wait([reading], timeout=WAIT_S)
    assert reading.done(), "the engine goes on with it"
    assert held(runtime) == 0
    error = reading.exception()
    return type(error) if error else None


def play(settings: WorkerSettings, story: Callable[[Runtime], Awaitable[None]]) -> None:
    async def whole() -> None:
        runtime = Runtime(settings, {Stage.READ})
        try:
            await runtime.start()
            await story(runtime)
        finally:
            await runtime.stop()

    asyncio.run(whole())


def test_a_cancellation_reaches_the_engine(
    settings: Callable[..., WorkerSettings], submit: Callable[..., Page]
) -> None:
    page = submit()

    async def story(runtime: Runtime) -> None:
        reading = await until_it_is_read(runtime, page.part)
        await asyncio.to_thread(page.job.cancel)
        assert await ending(reading, runtime) is PartCancelledError

    play(settings(), story)
    assert page.job.refresh().state is JobState.CANCELLED


def test_the_end_of_a_jobs_time_reaches_the_engine(
    settings: Callable[..., WorkerSettings], submit: Callable[..., Page]
) -> None:
    page = submit(expires=timedelta(hours=1))

    async def story(runtime: Runtime) -> None:
        reading = await until_it_is_read(runtime, page.part)
        await asyncio.to_thread(page.query, "UPDATE jobs SET expires_at = now() RETURNING id")
        async with open_stores(settings()) as stores:
            assert await expire(stores) == 1
        assert await ending(reading, runtime) is PartCancelledError

    play(settings(), story)
    assert page.job.refresh().state is JobState.EXPIRED


def test_a_part_that_takes_too_long_is_tried_again_and_then_fails_with_its_own_code(
    settings: Callable[..., WorkerSettings], submit: Callable[..., Page], client: Client
) -> None:
    page = submit()
    limits = settings(
        part_timeout=timedelta(seconds=1), max_attempts=2, retry_delay=timedelta(milliseconds=1)
    )
    ends: list[type[BaseException] | None] = []

    async def story(runtime: Runtime) -> None:
        for _ in range(2):
            ends.append(await ending(await until_it_is_read(runtime, page.part), runtime))
            await asyncio.sleep(0.05)

    play(limits, story)

    assert ends == [Retry, PartFailedError]
    assert page.job.refresh().state is JobState.FAILED
    (dead,) = client.dead_parts()
    assert (dead.failure.code, dead.attempts, dead.strikes) == (FailureCode.TIMEOUT, 2, 1)


def test_a_page_may_wait_for_a_decoder_for_longer_than_it_may_take(
    settings: Callable[..., WorkerSettings], client: Client, database_url: str, picture: Callable[..., bytes]
) -> None:
    page = Page(client, database_url, picture())  # blank: the engine has no part in it
    limit = timedelta(seconds=5)

    async def story(runtime: Runtime) -> None:
        decoders = runtime._handlers[Stage.READ]._decoder._processes  # type: ignore[attr-defined]
        async with decoders._free:  # another page has the only one
            reading = asyncio.create_task(runtime.run(page.part, deaths=0))
            done, _ = await asyncio.wait([reading], timeout=1.2 * limit.total_seconds())
            assert not done
            assert waited_s(str(page.part)) >= limit.total_seconds()
        await reading

    play(settings(part_timeout=limit), story)
    assert page.job.refresh().state is JobState.SUCCEEDED


def test_a_part_does_not_run_before_its_time(
    settings: Callable[..., WorkerSettings], submit: Callable[..., Page]
) -> None:
    """Not even if somebody publishes it: a message is a hint."""
    page = submit(not_before=timedelta(hours=1))

    async def story(runtime: Runtime) -> None:
        with pytest.raises(Ignore):
            await runtime.run(page.part, deaths=0)

    play(settings(), story)
    assert page.job.refresh().state is JobState.QUEUED
