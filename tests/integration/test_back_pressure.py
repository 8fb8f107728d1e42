"""A lane that is full: who is refused, who waits, and what counts."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from house import House
from limits import WAIT_S
from pecia import AsyncClient, Client, ClientSettings, Lane, QueueFullError, ReadDocument
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore

LIMIT = 3


@pytest.fixture
def stored(payload_url: str) -> PayloadRef:
    return PayloadStore.open(payload_url).put(b"%PDF-1.7")


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    with Client(**house.urls, settings=ClientSettings(max_backlog={Lane.BULK: LIMIT})) as client:
        yield client


def finish_one(house: House) -> None:
    house.query(
        "UPDATE parts SET state = 'done' WHERE id IN (SELECT id FROM parts WHERE state = 'queued' LIMIT 1)"
    )


def fill(client: Client, stored: PayloadRef) -> None:
    for _ in range(LIMIT):
        client.submit(ReadDocument(stored), priority=Lane.BULK)


def test_another_client_counts_what_is_in_postgres_with_redis_away(
    client: Client, stored: PayloadRef, house: House, tmp_path: Path
) -> None:
    fill(client, stored)
    nowhere = SecretStr(f"unix://{tmp_path}/nothing.sock")
    with Client(settings=client._settings.model_copy(update={"redis_url": nowhere})) as other:
        with pytest.raises(QueueFullError):
            other.submit(ReadDocument(stored), priority=Lane.BULK)
        finish_one(house)
        assert other.submit(ReadDocument(stored), priority=Lane.BULK, block=True).created


def test_work_for_later_takes_no_room(client: Client, stored: PayloadRef) -> None:
    tasks = [ReadDocument(stored)] * (2 * LIMIT)
    client.submit_many(tasks, priority=Lane.BULK, not_before=timedelta(hours=1))
    with closing(Client(settings=client._settings)) as other:
        assert other.submit(ReadDocument(stored), priority=Lane.BULK).created


def test_a_batch_is_taken_as_a_whole_and_the_next_one_refused(client: Client, stored: PayloadRef) -> None:
    with pytest.raises(QueueFullError) as refusal:
        client.submit_many((ReadDocument(stored) for _ in range(1_001)), priority=Lane.BULK)
    assert refusal.value.accepted is not None
    assert len(refusal.value.accepted) == 1_000


def test_block_waits_until_there_is_room(client: Client, stored: PayloadRef, house: House) -> None:
    fill(client, stored)
    room = threading.Timer(0.3, finish_one, [house])
    room.start()
    job = client.submit(ReadDocument(stored), priority=Lane.BULK, block=True, timeout=WAIT_S)
    assert job.created
    assert not room.is_alive()


async def test_an_asynchronous_client_waits_without_blocking_its_loop(
    client: Client, stored: PayloadRef, house: House
) -> None:
    fill(client, stored)

    async with AsyncClient(settings=client._settings) as waiting:
        task = ReadDocument(stored)
        with pytest.raises(QueueFullError):
            await waiting.submit(task, priority=Lane.BULK)
        submitting = asyncio.create_task(waiting.submit(task, priority=Lane.BULK, block=True))
        await asyncio.sleep(0.05)
        assert not submitting.done()
        finish_one(house)
        assert (await submitting).created
