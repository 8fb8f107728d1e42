"""What one worker has learned of its engine, shared with the others through Postgres: lengths, and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import is_transient, outage_suppressed
from pecia_workers.batching.lengths import HALF_LIFE, LearnedLengths
from pecia_workers.batching.memory import Memory
from pecia_workers.ledger.learned import memory_left, note_memory, share_output_lengths
from pecia_workers.ledger.workers import WorkerIdentity

_EVERY_S: Final = 5.0


@asynccontextmanager
async def shared_lengths(
    database: AsyncEngine, share: float, *, every_s: float = _EVERY_S
) -> AsyncIterator[LearnedLengths]:
    """Yield lengths that begin with what the fleet knows, and tell it at times, and at the end, what was seen here.

    `share` is that of `LearnedLengths`.
    """
    lengths = LearnedLengths(share)
    await _share(database, lengths)
    sharing = asyncio.create_task(_keep_sharing(database, lengths, every_s))
    try:
        yield lengths
    finally:
        sharing.cancel()
        await asyncio.wait([sharing])
        await _share(database, lengths)


@asynccontextmanager
async def inherited_memory(database: AsyncEngine, worker: WorkerIdentity) -> AsyncIterator[Memory]:
    """Yield a memory that begins where the engine before this one died, and leave it to the next if this one does."""
    memory = Memory(await memory_left(database, host=worker.host, engine=worker.engine or ""))
    try:
        yield memory
    finally:
        if memory.engine_died:
            with outage_suppressed():
                await note_memory(database, worker.name, memory.share)


async def _keep_sharing(database: AsyncEngine, lengths: LearnedLengths, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _share(database, lengths)


async def _share(database: AsyncEngine, lengths: LearnedLengths) -> None:
    """Tell the fleet what was seen and hear what it knows; what cannot be told now is told later."""
    seen = lengths.take_seen()
    try:
        lengths.learn(await share_output_lengths(database, seen, half_life=HALF_LIFE))
    except BaseException as error:
        lengths.put_back(seen)
        if not is_transient(error):
            raise
