"""The way from tasks to jobs on a loop: what `pecia.bulk` decides, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from pecia import bulk, sources
from pecia.bulk import Item, Named, Prepared, Steps
from pecia.errors import SubmitError
from pecia.sources import StoredSource
from pecia.submission import NewJob, Options, Submission
from pecia_schemas import tracing
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import PayloadRef, UrlRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.tasks import Task
from pecia_schemas.threads import finish_in_thread

T = TypeVar("T")


async def store(payloads: PayloadStore, source: object) -> StoredSource:
    """Put a task's source into the store, unless it is there already or the fleet fetches it, and measure it.

    Raises `InvalidSourceError` if it cannot be read, `PayloadStoreUnavailableError` if it cannot be written.
    """
    if isinstance(source, (PayloadRef, UrlRef)):
        return StoredSource(payload=source)
    with ExitStack() as stack:
        file = await finish_in_thread(stack.enter_context, sources.opened(source))
        start = file.tell()
        with sources.depositing():
            deposit = await payloads.deposit_async(file)
        return await finish_in_thread(sources.measured, file, start, deposit)


async def steps(
    tasks: Iterable[Task[Any] | Submission[Any]] | AsyncIterable[Task[Any] | Submission[Any]], names: Named
) -> AsyncGenerator[list[Item], None]:
    """Yield the tasks as many at a time as are held in memory and written together."""
    waiting = Steps(names)
    async for task in _awaited(tasks):
        if waiting.add(task):
            yield waiting.take()
    if step := waiting.take():
        yield step


async def prepare(items: Sequence[Item], payloads: PayloadStore, asked: Options, keys: Keyring) -> Prepared:
    """Check the tasks, store their documents, a few at a time, and make their rows.

    Raises `PayloadStoreUnavailableError` if the store does not answer.
    """
    made: dict[int, NewJob | SubmitError] = dict(await finish_in_thread(_refused, items, asked))
    waiting = iter([item for item in items if item.number not in made])

    async def work() -> None:
        for item in waiting:
            try:
                with tracing.under(item.traceparent, "store"):
                    source = await store(payloads, item.task.source)
                made[item.number] = bulk.row_of(item, source, asked, keys)
            except SubmitError as error:
                made[item.number] = error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(bulk.PAYLOAD_THREADS, len(items))):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the store is away: all of them say so
    return Prepared(numbers=[item.number for item in items], made=[made[item.number] for item in items])


def _refused(items: Sequence[Item], asked: Options) -> list[tuple[int, SubmitError]]:
    refused: list[tuple[int, SubmitError]] = []
    for item in items:
        try:
            bulk.check(item, asked)
        except SubmitError as error:
            refused.append((item.number, error))
    return refused


async def _awaited(tasks: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield task
    else:
        for task in tasks:
            yield task
