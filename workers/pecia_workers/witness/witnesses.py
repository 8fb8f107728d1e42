"""Who is asked beside the model: a page's own text layer, or the CPU engine in processes of its own.

The engine never waits: a page is read by the CPU engine while the model reads it, and what was read by the model waits
for its witness without a place in the engine. Where more pages wait than the CPU keeps up with, the latest go without.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from pecia_schemas.blocks import Block, Doubt, DoubtReason, Source
from pecia_schemas.results import Page, Verdict
from pecia_schemas.tasks import ReadDocument, Witness
from pecia_workers.engines.base import EngineError
from pecia_workers.metrics import recording
from pecia_workers.reading.verdicts import rank
from pecia_workers.witness.grounding import Heard, grounded
from pecia_workers.witness.leaves import with_grounded_fields
from pecia_workers.witness.tokens import tokens_of
from pecia_workers.working import waiting

if TYPE_CHECKING:
    from pecia_workers.engines.base import EngineRequest, Generator
    from pecia_workers.media.pages import PageImage

log = structlog.get_logger(__name__)

_WAITING: Final = 4
"""Pages for each process of the CPU engine that may wait for it after the model has read them."""
_MOST_PROCESSES: Final = 8
_AT_ONCE: Final = -1
"""Before every lane: what the model has read already."""


def witness_processes() -> int:
    """Return how many processes of the CPU engine are for this machine."""
    return max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) // 2))


def _nothing(_part: UUID) -> None:
    """Do nothing."""


class Witnesses:
    """The witnesses of one worker. For one loop."""

    def __init__(
        self,
        default: Witness,
        engine: Generator | None = None,
        processes: int = 0,
        freed: Callable[[UUID], None] = _nothing,
    ) -> None:
        """`freed` is told of a part that needs nothing of the model's engine any more."""
        self._default = default
        self._engine = engine
        self._free = processes
        self._most_waiting = _WAITING * processes
        self._freed = freed
        self._queue: dict[Hearing, tuple[int, int]] = {}
        """Pages that the CPU engine has not begun, by urgency and number."""
        self._numbers = count()
        self.waiting = 0

    @property
    def spare(self) -> int:
        """How many pages a worker may hold beside those that its engine is for."""
        return self._most_waiting

    def choice(self, task: ReadDocument) -> Witness:
        """Return what is to witness a task's pages."""
        return self._default if task.witness is None else Witness(task.witness)

    def hear(self, task: ReadDocument, request: EngineRequest, image: PageImage) -> Hearing:
        """Begin to hear the witness of a page, if there is one."""
        choice = self.choice(task)
        hearing = Hearing(self, request, task.language)
        if choice is Witness.NONE or image.blank:
            return hearing
        own = image.blocks or image.witness
        if own and choice is not Witness.OCR:
            hearing.told = partial(Heard, own, Source.LAYER)
        elif choice is Witness.OCR or (choice is Witness.AUTO and self._engine and not image.blocks):
            hearing.is_due = True
            if self._engine and self._reads(task.language):
                self.queue(hearing, request.priority)
        return hearing

    def _reads(self, language: str | None) -> bool:
        known = self._engine.capabilities.languages if self._engine else None
        return language is None or known is None or language in known

    def queue(self, hearing: Hearing, urgency: int) -> None:
        """Have the CPU engine read a page when those that are more urgent, or came before, are begun."""
        hearing.is_queued = True
        self._queue[hearing] = (urgency, next(self._numbers))
        self._begin()

    def withdraw(self, hearing: Hearing) -> None:
        """Have a page not read, unless that has begun: to end it would cost its process."""
        self._queue.pop(hearing, None)

    def _begin(self) -> None:
        while self._free and self._queue:
            hearing = min(self._queue, key=self._queue.__getitem__)
            del self._queue[hearing]
            self._free -= 1
            hearing.reading = asyncio.create_task(self._read(hearing))

    async def _read(self, hearing: Hearing) -> tuple[Block, ...] | None:
        assert self._engine  # noqa: S101  else nothing is queued
        try:
            return (await self._engine.generate(hearing.request)).blocks
        except EngineError as error:
            log.warning("not_witnessed", request=hearing.request.id, error=type(error).__name__)
            return None
        finally:
            self._free += 1
            hearing.begun.set()
            self._begin()

    async def reading(self, hearing: Hearing) -> tuple[Block, ...] | None:
        """Return what the CPU engine reads of a page that the model has read; None if too many wait for it."""
        if hearing.request.part:
            self._freed(hearing.request.part)
        if not hearing.is_queued or (hearing.reading is None and self.waiting >= self._most_waiting):
            hearing.close()
            return None
        self.waiting += 1
        try:
            if hearing.reading is None:
                self.queue(hearing, _AT_ONCE)
            with waiting():
                await hearing.begun.wait()
            return await hearing.reading if hearing.reading else None
        finally:
            self.waiting -= 1


class Hearing:
    """One page and its witness."""

    def __init__(self, witnesses: Witnesses, request: EngineRequest, language: str | None) -> None:
        self.request = request
        self.told: Callable[[], Heard] | None = None
        self.is_due = False
        """Whether the CPU engine is to witness it."""
        self.is_queued = False
        self.reading: asyncio.Task[tuple[Block, ...] | None] | None = None
        self.begun = asyncio.Event()
        self._witnesses = witnesses
        self._language = language

    def close(self) -> None:
        """Hear it no more."""
        self._witnesses.withdraw(self)

    async def held_against(self, page: Page) -> Page:
        """Return the page with what the witness says of it; the same page if there is none."""
        began = monotonic()
        if self.is_due and page.source is not Source.OCR:  # the CPU engine is no witness of itself
            blocks = await self._witnesses.reading(self)
            if blocks is None:
                recording.page_witnessed("missed")
                return _unwitnessed(page)
            pixels = self.request.images[0]
            self.told = partial(Heard, blocks, Source.OCR, pixels=pixels, language=self._language)
        if self.told is None:
            return page
        page = await asyncio.to_thread(_with, page, self.told)
        if page.witness is None:
            return page
        recording.page_witnessed(page.witness.source)
        seconds = round(monotonic() - began, 3)
        return page.model_copy(update={"witness": page.witness.model_copy(update={"seconds": seconds})})


def _with(page: Page, heard: Callable[[], Heard]) -> Page:
    """Return the page grounded; one that is read from its layer itself has fields alone to be witnessed."""
    told = heard()
    if page.source is not Source.LAYER:
        page = grounded(page, told)
    return with_grounded_fields(page, told)


def _unwitnessed(page: Page) -> Page:
    """Return a page that goes without its witness: nothing on it is `ok` that has a value."""
    values = any(token.is_value for line in page.text.splitlines() for token in tokens_of(line))
    if not values and page.fields is None:
        return page
    doubt = Doubt(reason=DoubtReason.UNWITNESSED, on_value=True)
    verdict = min(page.verdict, Verdict.REVIEW, key=rank)
    return page.model_copy(update={"doubts": (*page.doubts, doubt), "verdict": verdict})
