"""A part's time limit counts its work, and not its waits for what others hold."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pecia_schemas.payloads import PayloadStore
from pecia_workers.ledger.database import outlast
from pecia_workers.worker.attempts import clocked, limited, waited_s, waiting, worked_s
from pecia_workers.worker.payloads import Spool

LIMIT_S = 0.2
LONG_S = 3 * LIMIT_S
PART = uuid4()


async def wait() -> None:
    with waiting():
        await asyncio.sleep(LONG_S)


def run(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run the work of one part under the limit."""

    async def limited_work() -> None:
        with clocked(PART):
            async with limited(LIMIT_S):
                await work()

    asyncio.run(limited_work())


def test_work_ends_at_the_limit() -> None:
    with pytest.raises(TimeoutError):
        run(asyncio.Event().wait)


def test_a_wait_may_be_longer_than_the_limit() -> None:
    async def work() -> None:
        await wait()
        assert worked_s() < LIMIT_S
        assert waited_s(str(PART)) >= LONG_S

    run(work)


def test_work_after_a_wait_has_what_was_left() -> None:
    async def work() -> None:
        await wait()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(work)


def test_of_waits_side_by_side_the_last_counts() -> None:
    async def work() -> None:
        with waiting():
            first = asyncio.create_task(wait())
            await first
            await asyncio.sleep(LONG_S)

    run(work)


def test_postgres_may_be_away_for_longer_than_the_limit() -> None:
    async def work() -> None:
        back = asyncio.get_running_loop().time() + LONG_S

        async def ask() -> None:
            if asyncio.get_running_loop().time() < back:
                raise psycopg.OperationalError

        await outlast(ask)

    run(work)


def test_the_store_may_take_longer_than_the_limit(tmp_path: Path) -> None:
    """Another part is fetching the same document."""
    store = PayloadStore.open(str(tmp_path))
    reference = store.deposit(b"content").reference
    spool = Spool(store, tmp_path)

    async def work() -> None:
        fetching = spool._enter(reference).ready
        await fetching.acquire()
        asyncio.get_running_loop().call_later(LONG_S, fetching.release)
        async with spool.open(reference):
            pass

    run(work)


def test_outside_of_a_part_nothing_is_counted() -> None:
    asyncio.run(wait())
    assert (worked_s(), waited_s(str(PART))) == (0.0, 0.0)
