"""Runs work to its end even if its caller is cancelled, such as blocking work in threads beside an asyncio loop."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Await the work and return its result.

    If the caller is cancelled, even repeatedly, the cancellation is raised only after the work has ended.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


async def finish_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread of the loop and return its result.

    If the caller is cancelled, the cancellation is raised only after the work has ended, so that its files still exist.
    """
    return await finish(asyncio.to_thread(work, *args, **kwargs))


_AGAIN_S = 1.0


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended and released its resources, such as a connection."""
    while not task.done():  # a library may swallow a cancellation: redis-py does while it connects
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)
