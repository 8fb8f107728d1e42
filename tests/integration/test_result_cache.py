"""What was read before is the result at once: real client, worker, ledger and engine, and a server that counts."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, ClientSettings, GenerationOptions, Page, ReadDocument
from pecia_schemas.encryption import new_key
from pecia_schemas.results import Captions, TokenUsage
from pecia_schemas.states import Stage
from pecia_schemas.tasks import DocumentType
from pecia_workers.ledger.commit import keep_results
from pecia_workers.media.samples import sample_document
from tests.shared.chat_server import ChatServerDouble, only_page
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.pictures import encoded, note
from tests.shared.videos import video

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]


SCAN = encoded(sample_document(DocumentType.PRESCRIPTION).pages[0].image, "PNG")


Worker = Callable[..., Any]


@pytest.fixture
def worker(house: House, server: ChatServerDouble) -> Worker:
    """Runs all parts of the given jobs on a worker of its own."""
    engine = {"engine": "openai", "engine_url": server.url, "cache_revision": "1", "witness": "none"}
    return partial(house.work_off, stages=set(Stage), together=True, **engine)


Read = Callable[..., Page]


@pytest.fixture
def read(client: Client, worker: Worker) -> Read:
    """Submits a page, runs it and returns it."""

    def done(
        source: bytes = SCAN,
        *,
        metadata: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        **how: Any,
    ) -> Page:
        job = client.submit(ReadDocument(source, **how), metadata=metadata)
        worker(job, **(settings or {}))
        return only_page(job)

    return done


def test_repeated_pages_ask_the_engine_nothing(
    client: Client, worker: Worker, server: ChatServerDouble
) -> None:
    pages = [encoded(note(number), "PNG") for number in range(10)]

    def results() -> list[Page]:
        group = client.submit_many([ReadDocument(page) for page in pages])
        worker(*group)
        return [page for document in group.results(timeout=0) for page in document.pages]

    first = results()
    asked, before = len(server.pages), client.usage().total
    second = results()

    after = client.usage().total
    assert asked == len(server.pages) == 10
    assert [page.text for page in second] == [page.text for page in first]
    assert all(page.usage == TokenUsage() for page in second)
    assert after.tokens == before.tokens
    assert (after.parts, after.reused) == (20, 10)
    assert after.saved == before.tokens.prompt + before.tokens.output > 0


def test_a_repeated_page_is_read_once(client: Client, worker: Worker, server: ChatServerDouble) -> None:
    server.behaviour.takes_s = 0.5
    page, other = note(1), note(2)
    job = client.submit(ReadDocument(encoded(page, "TIFF", save_all=True, append_images=[other, page])))

    worker(job)

    pages = job.result(timeout=0).pages
    assert [one.number for one in pages] == [1, 2, 3]
    assert sorted(bool(one.cached_from) for one in pages) == [False, False, True]
    assert max(one.timings.queued for one in pages) < 60, (
        "the wait ends with the reading, not with its patience"
    )
    assert len(server.pages) == 2


def test_a_copy_says_whose_reading_it_is_and_of_erased_pages_is_no_source(
    read: Read, server: ChatServerDouble, house: House
) -> None:
    first, copy = read(), read()
    assert first.cached_from is None
    assert copy.cached_from
    (part, read_at), _ = house.query("SELECT part_id, created_at FROM results ORDER BY created_at")
    assert (copy.cached_from.part, copy.cached_from.read_at) == (part, read_at)
    assert copy.cached_from.usage == first.usage
    assert (copy.timings.engine, copy.engine) == (0.0, "openai")
    house.query("DELETE FROM results WHERE part_id = %s", part)
    assert read().cached_from is None
    assert len(server.pages) == 2


def test_results_are_bound_to_their_parts(house: House, worker: Worker, server: ChatServerDouble) -> None:
    keys = SecretStr(json.dumps({"now": new_key()}))
    pages: list[Page] = []
    with Client(**house.urls, settings=ClientSettings(encryption_keys=keys)) as client:
        for _ in range(2):
            job = client.submit(ReadDocument(SCAN))
            worker(job, encryption_keys=keys)
            pages += job.result(timeout=0).pages

    assert pages[1].cached_from
    assert pages[1].text == pages[0].text
    assert len(server.pages) == 1
    stored = house.query("SELECT content FROM results")
    assert [set(content) for (content,) in stored] == [{"enc", "data"}] * 2


def test_a_repeated_video_asks_nothing(client: Client, worker: Worker, server: ChatServerDouble) -> None:
    film = video(6.0)
    task = CaptionVideo(film, segments=timedelta(seconds=3), options=GenerationOptions(temperature=0))

    def captioned() -> Captions:
        job = client.submit(task)
        worker(job)
        return job.result(timeout=0)

    first, second = captioned(), captioned()

    assert len(server.pages) == 3
    assert second.usage == TokenUsage()
    assert [one.text for one in second.segments] == [one.text for one in first.segments]
    assert second.summary
    assert second.summary.cached_from


def test_while_postgres_is_away_the_page_counts_as_unread(house: House, tmp_path: Path) -> None:
    away = replace(house, database_url=f"postgresql:///pecia?host={tmp_path}")
    assert away.play(lambda ledger: ledger.earlier(b"key")) is None


def test_commits_of_equal_pages_wait_for_each_other_only_one_way_round(
    client: Client, scribe: Any, picture: Picture, house: House
) -> None:
    jobs = client.submit_many([ReadDocument(picture(shade=shade)) for shade in range(3)])
    for job in jobs:
        scribe.read(job.id)
    one, two, three = [part for (part,) in house.query("SELECT part_id FROM results")]
    low, high = b"1", b"2"

    async def story(database: AsyncEngine) -> None:
        async with database.connect() as first, database.connect() as second, database.connect() as third:
            await first.run_sync(keep_results, {one: low})
            waiting = asyncio.create_task(second.run_sync(keep_results, {two: high, three: low}))
            await asyncio.wait([waiting], timeout=0.3)
            await third.execute(text("SET lock_timeout = '5s'"))
            # The one that waits for the lower key has not taken it.
            await third.run_sync(keep_results, {three: high})
            await third.commit()
            await first.commit()
            await waiting
            await second.commit()
            kept = await third.execute(text("SELECT part_id FROM result_cache ORDER BY key"))
            assert list(kept.scalars()) == [one, three]

    house.ask(story)
