"""What was read before is the result at once: real client, worker, ledger and engine, and a server that counts."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from PIL import Image
from pydantic import SecretStr
from sqlalchemy import text

from chat_server import ChatServerDouble, only_page
from pecia import CaptionVideo, Client, ClientSettings, GenerationOptions, Job, Page, ReadDocument
from pecia_schemas import Captions, DocumentType, Stage, TokenUsage
from pecia_schemas.encryption import new_key
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger import Ledger, open_database
from pecia_workers.ledger.result_cache import keep_results
from pecia_workers.local.sample_documents import sample_document
from pecia_workers.runtime import Runtime
from pictures import note
from videos import video

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]

REVISION = {"cache_revision": "1"}


def png(image: Image.Image, form: str = "PNG", **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


SCAN = png(sample_document(DocumentType.PRESCRIPTION).pages[0].image)


@dataclass
class OneWorker:
    """Runs all parts of the given jobs that can be run, on a worker of its own."""

    server: ChatServerDouble
    stores: dict[str, str]
    spool: Path

    def run(self, *jobs: Job[Any], **settings: Any) -> None:
        urls = {name.removeprefix("PECIA_").lower(): url for name, url in self.stores.items()}
        engine = {"engine": "openai", "engine_url": self.server.url, "decode_processes": 1}
        chosen = {**urls, **engine, "spool_dir": str(self.spool), **REVISION, **settings}
        asyncio.run(self._run(WorkerSettings.model_validate(chosen), [job.id for job in jobs]))

    async def _run(self, settings: WorkerSettings, jobs: Sequence[UUID]) -> None:
        runtime = Runtime(settings, set(Stage))
        try:
            await runtime.start()
            while parts := self._runnable(jobs):
                await asyncio.gather(*(runtime.run(part, deaths=0) for part in parts))
        finally:
            await runtime.stop()

    def _runnable(self, jobs: Sequence[UUID]) -> list[UUID]:
        query = "SELECT id FROM parts WHERE job_id = ANY(%s) AND state = 'queued' AND run_at <= now()"
        with psycopg.connect(self.stores["PECIA_DATABASE_URL"]) as connection:
            return [row[0] for row in connection.execute(query, (list(jobs),))]


@pytest.fixture
def worker(server: ChatServerDouble, stores: dict[str, str], tmp_path: Path) -> OneWorker:
    return OneWorker(server, stores, tmp_path)


Read = Callable[..., Page]


@pytest.fixture
def read(client: Client, worker: OneWorker) -> Read:
    """Submits a page, runs it and returns it."""

    def done(
        source: bytes = SCAN,
        *,
        metadata: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        **how: Any,
    ) -> Page:
        job = client.submit(ReadDocument(source, **how), metadata=metadata)
        worker.run(job, **(settings or {}))
        return only_page(job)

    return done


def test_a_hundred_pages_submitted_again_ask_the_engine_nothing(
    client: Client, worker: OneWorker, server: ChatServerDouble
) -> None:
    pages = [png(note(number)) for number in range(100)]

    def results() -> list[Page]:
        group = client.submit_many([ReadDocument(page) for page in pages])
        worker.run(*group)
        return [page for document in group.results(timeout=0) for page in document.pages]

    first = results()
    asked, before = len(server.pages), client.usage().total
    second = results()

    after = client.usage().total
    assert asked == len(server.pages) == 100
    assert [page.text for page in second] == [page.text for page in first]
    assert all(page.usage == TokenUsage() for page in second)
    assert after.tokens == before.tokens
    assert (after.parts, after.reused) == (200, 100)
    assert after.saved == before.tokens.prompt + before.tokens.output > 0


def test_a_result_says_whose_reading_it_is_and_when_that_was(read: Read, database_url: str) -> None:
    first, second = read(), read()

    assert first.cached_from is None
    assert second.cached_from
    with psycopg.connect(database_url) as connection:
        query = "SELECT part_id, created_at FROM results ORDER BY created_at"
        ((part, read_at), _) = connection.execute(query).fetchall()
    assert (second.cached_from.part, second.cached_from.read_at) == (part, read_at)
    assert second.cached_from.usage == first.usage
    assert (second.timings.engine, second.engine) == (0.0, "openai")


def test_jobs_share_that_have_the_same_value_of_a_metadata_key(
    client: Client, worker: OneWorker, read: Read
) -> None:
    read(metadata={"clinic": "north", "visit": "1"}, settings={"cache_by": "clinic"})
    others = [{"clinic": "north", "visit": "2"}, {"clinic": "south", "visit": "1"}, {"visit": "1"}]
    jobs = [client.submit(ReadDocument(SCAN), metadata=metadata) for metadata in others]

    worker.run(*jobs, cache_by="clinic")

    assert [bool(only_page(job).cached_from) for job in jobs] == [True, False, False]


def test_a_page_that_comes_twice_in_a_document_is_read_once(
    client: Client, worker: OneWorker, server: ChatServerDouble
) -> None:
    server.behaviour.takes_s = 0.5
    page, other = note(1), note(2)
    job = client.submit(ReadDocument(png(page, "TIFF", save_all=True, append_images=[other, page])))

    worker.run(job)

    pages = job.result(timeout=0).pages
    assert [one.number for one in pages] == [1, 2, 3]
    assert sorted(bool(one.cached_from) for one in pages) == [False, False, True]
    assert max(one.timings.queued for one in pages) < 60, (
        "the wait ends with the reading, not with its patience"
    )
    assert len(server.pages) == 2


def test_what_was_erased_is_read_again_and_a_copy_is_no_source(
    read: Read, server: ChatServerDouble, database_url: str
) -> None:
    read()
    copy = read()
    assert copy.cached_from
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM results WHERE part_id = %s", (copy.cached_from.part,))

    assert read().cached_from is None
    assert len(server.pages) == 2


def test_encrypted_results_are_found_and_bound_to_their_new_part(
    stores: dict[str, str], worker: OneWorker, server: ChatServerDouble
) -> None:
    keys = SecretStr(json.dumps({"now": new_key()}))
    urls = (stores["PECIA_DATABASE_URL"], stores["PECIA_REDIS_URL"], stores["PECIA_PAYLOAD_URL"])
    pages: list[Page] = []
    with Client(*urls, settings=ClientSettings(encryption_keys=keys)) as client:
        for _ in range(2):
            job = client.submit(ReadDocument(SCAN))
            worker.run(job, encryption_keys=keys)
            pages += job.result(timeout=0).pages

    assert pages[1].cached_from
    assert pages[1].text == pages[0].text
    assert len(server.pages) == 1
    with psycopg.connect(stores["PECIA_DATABASE_URL"]) as connection:
        stored = connection.execute("SELECT content FROM results").fetchall()
    assert [set(content) for (content,) in stored] == [{"enc", "data"}] * 2


def test_a_video_submitted_again_asks_the_engine_nothing(
    client: Client, worker: OneWorker, server: ChatServerDouble
) -> None:
    film = video(6.0)
    task = CaptionVideo(film, segments=timedelta(seconds=3), options=GenerationOptions(temperature=0))

    def captioned() -> Captions:
        job = client.submit(task)
        worker.run(job)
        return job.result(timeout=0)

    first, second = captioned(), captioned()

    assert len(server.pages) == 3
    assert second.usage == TokenUsage()
    assert [one.text for one in second.segments] == [one.text for one in first.segments]
    assert second.summary
    assert second.summary.cached_from


def test_while_postgres_is_away_the_page_counts_as_unread(tmp_path: Path) -> None:
    async def nobody(_: Any) -> None:
        """Nobody to tell."""

    async def story() -> None:
        database = open_database(f"postgresql:///pecia?host={tmp_path}")
        try:
            assert await Ledger(database, "worker", announce=nobody).earlier(b"key") is None
        finally:
            await database.dispose()

    asyncio.run(story())


def test_commits_of_equal_pages_wait_for_each_other_only_one_way_round(
    client: Client, scribe: Any, picture: Callable[..., bytes], database_url: str
) -> None:
    jobs = client.submit_many([ReadDocument(picture(shade=shade)) for shade in range(3)])
    for job in jobs:
        scribe.read(job.id)
    with psycopg.connect(database_url) as connection:
        one, two, three = [row[0] for row in connection.execute("SELECT part_id FROM results")]
    low, high = b"1", b"2"

    async def story() -> None:
        database = open_database(database_url)
        async with database.connect() as first, database.connect() as second, database.connect() as third:
            await first.run_sync(keep_results, {one: low})
            waiting = asyncio.create_task(second.run_sync(keep_results, {two: high, three: low}))
            await asyncio.wait([waiting], timeout=0.3)
            await third.execute(text("SET lock_timeout = '5s'"))
            await third.run_sync(
                keep_results, {three: high}
            )  # the one that waits for the lower key has not taken it
            await third.commit()
            await first.commit()
            await waiting
            await second.commit()
            kept = await third.execute(text("SELECT part_id FROM result_cache ORDER BY key"))
            assert list(kept.scalars()) == [one, three]
        await database.dispose()

    asyncio.run(story())
