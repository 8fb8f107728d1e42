"""The asynchronous client as a test without a loop can use it: the very calls of `Client`, awaited in a thread."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pecia import AsyncClient, AsyncJob, AsyncJobGroup

_END = object()


class Synced:
    """An asynchronous object whose methods return what they return once it is awaited."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._call(value) if inspect.ismethod(value) else self._dressed(value)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._inner[index]
        return self._dressed(list(found) if isinstance(index, slice) else found)

    def __iter__(self) -> Iterator[Any]:
        return (self._dressed(one) for one in self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def on_loop(*args: Any, **options: Any) -> Any:
            value = method(*args, **options)
            return await value if inspect.iscoroutine(value) else value

        def call(*args: Any, **options: Any) -> Any:
            bare = {name: _bare(value) for name, value in options.items()}
            return self._dressed(self._run(on_loop(*map(_bare, args), **bare)))

        return call

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _dressed(self, value: Any) -> Any:
        if isinstance(value, AsyncJob | AsyncJobGroup):
            return Synced(value, self._loop)
        if isinstance(value, list):
            return [self._dressed(one) for one in value]
        return self._pulled(value) if inspect.isasyncgen(value) else value

    def _pulled(self, stream: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(stream, _END)

        try:
            while (one := self._run(following())) is not _END:
                yield self._dressed(one)
        finally:
            if self._loop.is_running():  # else it was closed with the loop
                self._run(stream.aclose())


def _bare(value: Any) -> Any:
    """Return what the asynchronous client knows: its own objects."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    return value._inner if isinstance(value, Synced) else value


@contextmanager
def synced(client: AsyncClient) -> Iterator[Synced]:
    """Yield the client with a loop of its own, which ends with it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop")
    thread.start()
    dressed = Synced(client, loop)
    try:
        yield dressed
    finally:
        dressed.close()
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
