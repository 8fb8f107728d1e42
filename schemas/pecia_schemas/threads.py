"""Work that ends even if its caller is cancelled, blocking work beside an asyncio loop above all."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Await the work and return what it returns.

    A caller that is cancelled meanwhile, however often, goes on once it has ended.
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
    """Run it in a thread of the loop's and return what it returns.

    A caller that is cancelled meanwhile goes on once it has ended: it never outlives the files it works on.
    """
    return await finish(asyncio.to_thread(work, *args, **kwargs))


_AGAIN_S = 1.0


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has let go of what it holds, a connection for one."""
    while not task.done():  # a library may swallow the first: redis-py does while it connects
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)
