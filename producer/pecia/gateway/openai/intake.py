"""Makes the lines of a batch jobs, step by step, in any gateway process.

A line's idempotency key has its batch and number, and the batch's row has the number of submitted lines: an interrupted
step is submitted again and makes no job twice. The process that accepted a batch submits it; another process takes it
over if it makes no progress.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from uuid import UUID

from pecia import request
from pecia.errors import DocumentGoneError, PeciaError, SubmitManyError
from pecia.gateway.identity import Bearers, TenantClient
from pecia.gateway.openai.requests import Line, lines_of, parse_line
from pecia.gateway.openai.statements import BatchOverError, Held
from pecia.request import Submission
from pecia.sources import at_hand
from pecia.waiting import batches
from pecia_schemas.states import JobState, Lane
from pecia_schemas.threads import end, finish_in_thread

log = logging.getLogger(__name__)

_PAUSE_S: Final = 2.0
_ABANDONED_S: Final = 15.0
"""Time without progress after which another process takes a batch over."""
_LINES: Final = 64
_CANCELLED: Final = 200
"""Lines that are cancelled in one transaction."""
_EXPIRY_S: Final = 60.0
"""Interval between searches for expired files."""
_BYTES: Final = 16 * 1024**2
"""Maximum size of a step's lines, which are held in memory, in bytes."""


@dataclass
class LineReader:
    """Reads a batch's file from any line onwards."""

    _open: ExitStack = field(default_factory=ExitStack)
    _lines: Any = None
    following: int = 0

    def start(self, client: TenantClient, original: Any) -> None:
        """Fetch and open the file. Raises `DocumentGoneError`."""
        path = self._open.enter_context(at_hand(original, client.connections.payloads))
        self._lines = lines_of(self._open.enter_context(path.open("rb")))

    def read(self, held: Held, start: int) -> list[Line]:
        """Return some lines from this number on. The number must not be less than that of a line read before."""
        for _ in islice(self._lines, start - self.following):
            pass
        batch = batch_name(held)
        options = request.options(
            priority=held.view.lane,
            metadata=dict(held.view.metadata),
            webhook=None,
            not_before=None,
            expires=held.expires_at,
            client=held.client,
            fair_by="",
            tenant=held.tenant,
        )
        lines: list[Line] = []
        taken = 0
        for written in self._lines:
            lines.append(parse_line(start + len(lines), written, batch, options))
            taken += len(written)
            if len(lines) == _LINES or taken >= _BYTES:
                break
        self.following = start + len(lines)
        return lines

    def close(self) -> None:
        """Close the file."""
        self._open.close()


def batch_name(held: Held) -> str:
    """Return the id of a batch in OpenAI's API."""
    assert held.view.batch is not None  # noqa: S101  each request batch has a batch of jobs
    return f"batch_{held.view.batch.hex}"


class Intake:
    """Submits the lines of open batches, one step of each in turn, and ends batches whose jobs have ended."""

    def __init__(self, bearers: Bearers) -> None:
        self._bearers = bearers
        self._all = bearers.connections.requests
        self._seen: dict[UUID, tuple[int, float]] = {}
        self._readers: dict[UUID, LineReader] = {}
        self._ours: set[UUID] = set()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._expiry_at = 0.0

    def start(self) -> None:
        """Begin to look for batches."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop. Lines that are not submitted stay in their batch."""
        if self._task is not None:
            await end(self._task)
        for reader in self._readers.values():
            reader.close()

    def take(self, held_id: UUID) -> None:
        """Submit a batch from this process at once, or cancel its lines."""
        self._ours.add(held_id)
        self._news.set()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                moved = await self._round()
            except PeciaError as error:
                log.warning("Batches wait: %s", type(error).__name__)
                moved = False
            if not moved:
                try:
                    async with asyncio.timeout(_PAUSE_S):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _round(self) -> bool:
        """Submit a step of each batch of this process; return whether any made progress."""
        open_batches = {held.id: held for held in await self._all.open_batches()}
        for gone in self._seen.keys() - open_batches.keys():
            del self._seen[gone]
            self._drop(gone)
        moved = False
        await self._erase_expired()
        for held in reversed(open_batches.values()):
            now = time.monotonic()
            at, since = self._seen.get(held.id, (-1, now))
            if at != held.following:
                self._seen[held.id] = held.following, now
            elif now - since > _ABANDONED_S:
                self._ours.add(held.id)
            if held.is_submitted or held.view.state.is_terminal:
                await settle(self._bearers, held)
            elif held.id in self._ours:
                try:
                    moved |= await self._step(held)
                except DocumentGoneError:
                    await self._all.end(held.id, JobState.FAILED)
                except PeciaError as error:  # full lane or unavailable store: retried later
                    self._drop(held.id)
                    log.warning("A batch waits: %s", type(error).__name__)
        return moved

    async def _erase_expired(self) -> None:
        if time.monotonic() < self._expiry_at:
            return
        self._expiry_at = time.monotonic() + _EXPIRY_S
        for held in await self._all.expired():
            await client_of(self._bearers, held).purge([held.id])

    async def _step(self, held: Held) -> bool:
        client = client_of(self._bearers, held)
        reader = self._readers.get(held.id)
        if reader is None or reader.following > held.following:
            self._drop(held.id)
            self._readers[held.id] = reader = LineReader()
            original = await client.connections.store.original(held.id)
            await finish_in_thread(reader.start, client, original)
            self._ours.add(held.id)
        lines = await finish_in_thread(reader.read, held, held.following)
        asked = [line.request for line in lines if isinstance(line.request, Submission)]
        refused = len(lines) - len(asked)
        if asked:
            async with self._bearers.submitting:
                try:
                    await client.submit_many(
                        asked,
                        batch=str(held.view.batch),
                        priority=Lane(held.view.lane),
                        metadata=held.view.metadata,
                        expires=held.expires_at,
                    )
                except SubmitManyError as error:
                    refused += len(error.failures)
                except BatchOverError:
                    self._drop(held.id)
                    return True
        if not await client.connections.requests.advance(held, lines=len(lines), refused=refused):
            self._drop(held.id)
        return True

    def _drop(self, held_id: UUID) -> None:
        self._ours.discard(held_id)
        if (reader := self._readers.pop(held_id, None)) is not None:
            reader.close()


def client_of(bearers: Bearers, held: Held) -> TenantClient:
    """Return a client that acts as the key that created a file or a batch."""
    client = TenantClient(bearers, held.client, held.tenant)
    client.connections.lines_of = held.id
    return client


async def settle(bearers: Bearers, held: Held) -> None:
    """End a batch whose jobs have ended, and cancel the jobs of a cancelled batch."""
    connections = client_of(bearers, held).connections
    assert held.view.batch is not None  # noqa: S101  as above
    unfinished = await connections.requests.unfinished(held.view.batch)
    if held.view.state is JobState.CANCELLED:
        for some in batches(unfinished, _CANCELLED):
            cancelled = await connections.transitions.cancel(some, None)
            await connections.bus.announce(cancelled, JobState.CANCELLED)
    elif not unfinished:
        await connections.requests.end(held.id, JobState.SUCCEEDED)
