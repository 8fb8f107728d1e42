"""Many tasks at once: a refusal is one task's alone, what breaks off can be repeated, keys hold, a lane has a limit."""

import asyncio
import gc
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from redis import Redis

import pecia_migrations
from pecia import AsyncClient, Client, ClientSettings, Lane, ReadDocument, errors
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from tests.shared.fixture_types import Make, Picture
from tests.shared.house import House
from tests.shared.limits import eventually

BATCH = 1_000
"""As many tasks as are written together."""


@pytest.fixture
def stored(payload_url: str) -> PayloadRef:
    return PayloadStore.open(payload_url).put(b"%PDF-1.7")


def column(house: House, query: LiteralString) -> list[Any]:
    return [value for (value,) in house.query(query)]


class SlowFile(BytesIO):
    """A document on a slow disk."""

    def read(self, size: int | None = -1, /) -> bytes:
        time.sleep(0.3)
        return super().read(size)


def test_jobs_are_listed_in_the_order_of_tasks(client: Client, picture: Picture, house: House) -> None:
    tasks = [ReadDocument(SlowFile(picture())), ReadDocument(picture(shade=1))]
    group = client.submit_many(tasks)
    assert [job.id for job in group] == column(house, "SELECT id FROM jobs ORDER BY id")


def test_jobs_of_many_batches_are_written_published_and_returned_in_order(
    client: Client, stored: PayloadRef, house: House, redis_url: str
) -> None:
    count = 2 * BATCH + 1
    group = client.submit_many((ReadDocument(stored) for _ in range(count)), metadata={"ward": "7"})
    assert [job.id for job in group] == column(house, "SELECT id FROM jobs ORDER BY id")
    assert column(house, "SELECT count(published_at) FROM parts") == [count]
    assert column(house, "SELECT count(*) FROM job_events WHERE state = 'queued'") == [count]
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("ingest.normal") == count


def test_a_handle_says_what_the_row_says(client: Client, stored: PayloadRef, picture: Picture) -> None:
    group = client.submit_many([ReadDocument(stored), ReadDocument(picture())], metadata={"ward": "7"})
    seen = [job._view for job in group]
    assert [job.refresh()._view for job in group] == seen


def test_a_refusal_keeps_no_document_in_memory(client: Client, picture: Picture) -> None:
    documents = [BytesIO(picture()), BytesIO(picture(shade=1))]
    gone = [weakref.ref(document) for document in documents]

    def tasks() -> Iterator[ReadDocument]:
        while documents:
            yield ReadDocument(documents.pop(), adapter="\0")

    with pytest.raises(errors.SubmitManyError) as refusal:
        client.submit_many(tasks())
    failures = refusal.value.failures
    del refusal
    gc.collect()
    assert len(failures) == 2
    assert [reference() for reference in gone] == [None, None]


def test_documents_of_one_step_are_in_memory(client: Client, picture: Picture) -> None:
    seen: list[weakref.ref[BytesIO]] = []

    def tasks() -> Iterator[ReadDocument]:
        for number in range(BATCH + 2):
            document = BytesIO(picture(shade=number % 2))
            seen.append(weakref.ref(document))
            yield ReadDocument(document)
            del document
        assert [reference() for reference in seen[:BATCH]] == [None] * BATCH

    assert len(client.submit_many(tasks())) == BATCH + 2


def test_a_prefix_that_cannot_be_a_key_is_refused_before_anything_is_asked_for(client: Client) -> None:
    def tasks() -> Iterator[ReadDocument]:
        pytest.fail("nobody asks for tasks")
        yield

    with pytest.raises(errors.InvalidOptionError, match="1 to 512"):
        client.submit_many(tasks(), idempotency_prefix="")


def test_an_erased_document_is_refused_alone(client: Client, house: House, stored: PayloadRef) -> None:
    client.purge([client.submit(ReadDocument(stored))])
    with pytest.raises(errors.SubmitManyError) as refusal:
        client.submit_many([ReadDocument(stored), ReadDocument(b"%PDF-1.7 other")])
    assert isinstance(refusal.value.failures[0], errors.InvalidSourceError)
    (other,) = refusal.value.accepted
    assert column(house, "SELECT id FROM jobs WHERE erased_at IS NULL") == [other.id]


def test_postgres_that_dies_in_the_middle_leaves_what_was_accepted_in_reach(
    postgres_server: Make, redis_url: str, payload_url: str, stored: PayloadRef
) -> None:
    server = postgres_server()
    url = server.url_of("postgres")
    pecia_migrations.upgrade(url)

    def tasks(*, dies: bool) -> Iterator[ReadDocument]:
        for number in range(BATCH + 2):
            if dies and number == BATCH + 1:
                eventually(lambda: written() == BATCH)
                server.kill()
            yield ReadDocument(stored)

    def written() -> int:
        with psycopg.connect(url) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM jobs")
        return int(count)

    with Client(url, redis_url, payload_url) as client:
        with pytest.raises(errors.DatabaseUnavailableError) as failure:
            client.submit_many(tasks(dies=True), idempotency_prefix="run")
        assert failure.value.accepted is not None
        accepted = list(failure.value.accepted)
        assert [job.created for job in accepted] == [True] * BATCH
        postgres_server(replaces=server)
        again = client.submit_many(tasks(dies=False), idempotency_prefix="run")
    assert [job.id for job in again[:BATCH]] == [job.id for job in accepted]
    assert [job.created for job in again[BATCH:]] == [True, True]


def test_tasks_are_taken_while_the_step_before_is_written(
    client: Client, database_url: str, stored: PayloadRef, house: House
) -> None:
    def tasks() -> Iterator[ReadDocument]:
        with psycopg.connect(database_url) as lock:
            lock.execute("LOCK TABLE jobs IN SHARE MODE")
            yield from (ReadDocument(stored) for _ in range(BATCH))
            yield ReadDocument(b"of the next step")
        yield ReadDocument(stored)

    group = client.submit_many(tasks())
    assert column(house, "SELECT id FROM jobs ORDER BY id") == [job.id for job in group]


def test_a_payload_store_that_dies_in_the_middle_leaves_what_was_accepted_in_reach(
    client: Client, stored: PayloadRef, payload_url: str, picture: Picture
) -> None:
    def tasks() -> Iterator[ReadDocument]:
        yield from (ReadDocument(stored) for _ in range(BATCH))
        shutil.rmtree(payload_url)
        Path(payload_url).write_text("no directory")
        yield ReadDocument(picture())

    with pytest.raises(errors.PayloadStoreUnavailableError) as failure:
        client.submit_many(tasks())
    assert failure.value.accepted is not None
    assert len(failure.value.accepted) == BATCH


Run = tuple[str, Sequence[int]]
"""A prefix, and the contents of the tasks."""

runs = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 1), min_size=1, max_size=4)),
    min_size=1,
    max_size=4,
)


def submit(client: Client, run: Run) -> list[int]:
    """Submit a run and return the numbers of the tasks whose keys name other tasks."""
    prefix, contents = run
    tasks = [ReadDocument(f"%PDF {content}".encode()) for content in contents]
    try:
        client.submit_many(tasks, idempotency_prefix=prefix)
    except errors.SubmitManyError as error:
        failures = error.failures.items()
        return [number for number, error in failures if isinstance(error, errors.IdempotencyConflictError)]
    return []


def contents_by_key(house: House) -> dict[str, str]:
    found = house.query("SELECT idempotency_key, task_digest FROM jobs")
    counts = house.query("SELECT (SELECT count(*) FROM parts), count(*) FROM job_events")
    assert counts == [(len(found), len(found))], "a job has one part and one event"
    house.query("TRUNCATE jobs CASCADE")
    return dict(found)


@given(order=runs)
def test_batches_in_turn_write_as_single_submits_do(client: Client, house: House, order: list[Run]) -> None:
    expected: dict[str, int] = {}
    for prefix, contents in order:
        refused = submit(client, (prefix, contents))
        keys = [f"{prefix}/{number}" for number in range(len(contents))]
        for key, content in zip(keys, contents, strict=True):
            expected.setdefault(key, content)
        conflicts = [n for n, key in enumerate(keys) if expected[key] != contents[n]]
        assert refused == conflicts
    digests = contents_by_key(house)
    assert digests.keys() == expected.keys()
    assert len({(expected[key], digest) for key, digest in digests.items()}) == len(set(expected.values()))


@given(order=runs)
def test_concurrent_batches_agree_about_every_key(client: Client, house: House, order: list[Run]) -> None:
    refused: dict[int, list[int]] = {}

    def work(number: int) -> None:
        refused[number] = submit(client, order[number])

    threads = [threading.Thread(target=work, args=[number]) for number in range(len(order))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holders: dict[str, set[int]] = {}
    for number, (prefix, contents) in enumerate(order):
        for at, content in enumerate(contents):
            if at not in refused[number]:
                holders.setdefault(f"{prefix}/{at}", set()).add(content)
    assert holders.keys() == contents_by_key(house).keys()
    assert all(len(contents) == 1 for contents in holders.values())


LIMIT = 3


@pytest.fixture
def limited(house: House) -> Iterator[Client]:
    with Client(**house.urls, settings=ClientSettings(max_backlog={Lane.BULK: LIMIT})) as limited:
        yield limited


def finish_one(house: House) -> None:
    house.query(
        "UPDATE parts SET state = 'done' WHERE id IN (SELECT id FROM parts WHERE state = 'queued' LIMIT 1)"
    )


def fill(limited: Client, stored: PayloadRef) -> None:
    for _ in range(LIMIT):
        limited.submit(ReadDocument(stored), priority=Lane.BULK)


def test_another_client_counts_what_is_in_postgres_with_redis_away(
    limited: Client, stored: PayloadRef, house: House, tmp_path: Path
) -> None:
    fill(limited, stored)
    nowhere = SecretStr(f"unix://{tmp_path}/nothing.sock")
    with Client(settings=limited._settings.model_copy(update={"redis_url": nowhere})) as other:
        with pytest.raises(errors.QueueFullError):
            other.submit(ReadDocument(stored), priority=Lane.BULK)
        finish_one(house)
        assert other.submit(ReadDocument(stored), priority=Lane.BULK, block=True).created


def test_work_for_later_takes_no_room(limited: Client, stored: PayloadRef) -> None:
    tasks = [ReadDocument(stored)] * (2 * LIMIT)
    limited.submit_many(tasks, priority=Lane.BULK, not_before=timedelta(hours=1))
    with closing(Client(settings=limited._settings)) as other:
        assert other.submit(ReadDocument(stored), priority=Lane.BULK).created


def test_a_batch_is_taken_as_a_whole_and_the_next_one_refused(limited: Client, stored: PayloadRef) -> None:
    with pytest.raises(errors.QueueFullError) as refusal:
        limited.submit_many((ReadDocument(stored) for _ in range(1_001)), priority=Lane.BULK)
    assert refusal.value.accepted is not None
    assert len(refusal.value.accepted) == 1_000


async def test_an_asynchronous_client_waits_without_blocking_its_loop(
    limited: Client, stored: PayloadRef, house: House
) -> None:
    fill(limited, stored)

    async with AsyncClient(settings=limited._settings) as waiting:
        task = ReadDocument(stored)
        with pytest.raises(errors.QueueFullError):
            await waiting.submit(task, priority=Lane.BULK)
        submitting = asyncio.create_task(waiting.submit(task, priority=Lane.BULK, block=True))
        await asyncio.sleep(0.05)
        assert not submitting.done()
        finish_one(house)
        assert (await submitting).created
