"""What is announced in Redis is a hint that makes nobody believe anything; who listens there can leave at any time."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis import Redis

from pecia import Client, JobTimeoutError, ReadDocument
from pecia_schemas import threads
from pecia_schemas.messages import CANCEL_CHANNEL, job_channel
from pecia_workers.queue.bus import Bus
from tests.shared.fixture_types import Picture
from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate


JUNK = (b"\x00\xff\xfe", b"", b"{}", b"x" * 100_000, b"../../etc/passwd")


def test_strange_ends_break_no_wait(client: Client, redis_url: str, scribe: Any, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    with _announcing(redis_url, job_channel(job.id), b"succeeded", *JUNK):
        with pytest.raises(JobTimeoutError):
            job.wait(timeout=2)
        assert job.refresh().state == "queued"
        scribe.read(job.id)
        assert job.wait(timeout=WAIT_S).state == "succeeded"


async def test_strange_cancellations_and_one_that_cannot_be_passed_on_deafen_no_worker(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    meant, heard = [uuid4(), uuid4()], list[UUID]()

    with caplog.at_level(logging.CRITICAL):
        bus = Bus(redis_url)
        done = asyncio.Event()

        def hear(job_id: UUID) -> None:
            heard.append(job_id)
            if len(heard) == 1:
                raise RuntimeError
            done.set()

        listening = asyncio.create_task(bus.hear_cancelled(hear))
        with Redis.from_url(redis_url) as redis:
            for job_id in meant:
                while job_id not in heard:
                    for message in (*JUNK, str(job_id).encode()):
                        redis.publish(CANCEL_CHANNEL, message)
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(WAIT_S):
            await done.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await bus.close()

    assert set(heard) == set(meant)


@contextmanager
def _announcing(redis_url: str, channel: str, *messages: bytes) -> Iterator[None]:
    """Publish again and again for the length of a block."""
    stop = threading.Event()

    def announce() -> None:
        with Redis.from_url(redis_url) as redis:
            while not stop.wait(0.05):
                for message in messages:
                    redis.publish(channel, message)

    thread = threading.Thread(target=announce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def test_a_worker_may_stop_while_it_connects(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py may swallow a cancellation while it connects."""
    monkeypatch.setattr(threads, "_AGAIN_S", 0.01)
    for steps in range(20):
        bus = Bus(redis_url)
        hearing = asyncio.create_task(bus.hear_cancelled(print))
        await asyncio.sleep(0.01)
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await threads.end(hearing)
        await bus.close()
