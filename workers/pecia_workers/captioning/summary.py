"""The summarize stage: what a whole video shows, written from the captions of its segments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Final, cast
from uuid import UUID

from pecia_schemas import CaptionVideo, FailureCode, Segment, Summary, Timings
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.storable import storable_text
from pecia_workers.caching.cache import ResultCache
from pecia_workers.captioning.instructions import instruction_for_summary
from pecia_workers.engines.base import EngineRefusedError, EngineRequest, Generation, Generator
from pecia_workers.engines.presets import sampling_for
from pecia_workers.ledger import ClaimedPart, Done

_MOST_TOKENS: Final = 512
"""Of a summary whose task names no number."""
_LEAST_TO_SPLIT: Final = 3

CaptionsOf = Callable[[UUID], Awaitable[Sequence[Segment]]]
"""Returns the captions of a job, in the order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """What is known of a stretch of the video."""

    start: timedelta
    end: timedelta
    text: str

    def __str__(self) -> str:
        return f"[{_clock(self.start)} - {_clock(self.end)}] {self.text}"


class SummarizeVideo:
    """Summarises one video at a time, for many callers at once.

    Captions that are together more than the engine's context are summarised by halves, and then the halves' summaries.
    """

    def __init__(
        self, captions_of: CaptionsOf, engine: Generator, settings: WorkerSettings, cache: ResultCache
    ) -> None:
        self._captions_of = captions_of
        self._engine = engine
        self._cache = cache
        self._most_tokens = settings.caption_tokens or _MOST_TOKENS

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the summary of the claimed job's captions. Raises `EngineError`."""
        segments = await self._captions_of(part.job_id)
        notes = [_Note(start=one.start, end=one.end, text=one.text) for one in segments]
        request, began = self._request(part), monotonic()
        look = await self._cache.look(part, [_about(request, notes)], Summary)
        asked = monotonic()
        timings = Timings(queued=part.queued_s + asked - began)
        if look.found:
            return Done(look.found.model_copy(update={"timings": timings}))
        written = await self._write(request, notes)
        took = {"engine": monotonic() - asked, "first_token": written.first_token_s}
        return look.done(
            Summary(
                text=storable_text(written.text),
                verdict=written.verdict,
                engine=self._engine.capabilities.name,
                usage=written.usage,
                timings=timings.model_copy(update=took),
            )
        )

    def _request(self, part: ClaimedPart) -> EngineRequest:
        task = cast("CaptionVideo", part.task)
        sampling, _ = sampling_for(task)
        asked = task.options and task.options.max_output_tokens
        return EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=(),
            workload="summary",
            language=task.language,
            sampling=sampling,
            adapter=task.adapter,
            tenant=self._cache.tenant(part),
            priority=part.lane.rank,
            max_output_tokens=asked or self._most_tokens,
        )

    async def _write(self, request: EngineRequest, notes: Sequence[_Note]) -> Generation:
        try:
            return await self._engine.generate(_about(request, notes))
        except EngineRefusedError as error:
            if error.code is not FailureCode.TOO_LARGE or len(notes) < _LEAST_TO_SPLIT:
                raise
        return await self._write_by_halves(request, notes)

    async def _write_by_halves(self, request: EngineRequest, notes: Sequence[_Note]) -> Generation:
        middle = len(notes) // 2
        parted = (notes[:middle], notes[middle:])
        halves = await asyncio.gather(
            *(self._write(replace(request, id=f"{request.id}.{n}"), half) for n, half in enumerate(parted))
        )
        whole = await self._write(
            request,
            [
                _Note(start=half[0].start, end=half[-1].end, text=written.text)
                for half, written in zip(parted, halves, strict=True)
            ],
        )
        return replace(whole, usage=sum((half.usage for half in halves), whole.usage))


def _about(request: EngineRequest, notes: Sequence[_Note]) -> EngineRequest:
    captions = "\n".join(map(str, notes))
    return replace(request, instruction=instruction_for_summary(request.language or "en", captions))


def _clock(moment: timedelta) -> str:
    minutes, seconds = divmod(round(moment.total_seconds()), 60)
    return f"{minutes}:{seconds:02}"
