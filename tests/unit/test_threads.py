"""Work that is begun ends before its caller goes on, however often the caller is cancelled."""

import asyncio
import threading

import pytest

from pecia_schemas.threads import finish, finish_in_thread


async def test_what_is_begun_ends_though_its_caller_is_cancelled_again_and_again() -> None:
    may_end, ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        await may_end.wait()
        ended = True

    waiting = asyncio.create_task(finish(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended


async def test_a_thread_never_outlives_its_caller() -> None:
    may_end = threading.Event()

    waiting = asyncio.create_task(finish_in_thread(may_end.wait, 10))
    for _ in range(2):
        await asyncio.sleep(0.01)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_the_work_raises_is_raised_unless_the_caller_was_cancelled() -> None:
    may_fail = asyncio.Event()

    async def work() -> None:
        await may_fail.wait()
        raise LookupError

    waiting = asyncio.create_task(finish(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    may_fail.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(LookupError):
        await finish(work())
