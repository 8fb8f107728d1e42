"""The caption and summarize stages: a video's segments get captions, and the captions a summary."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any, Final, cast
from uuid import UUID

from pecia_schemas import tracing
from pecia_schemas.blocks import storable_text
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Segment, Shrunk, Summary, Timings
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import CaptionVideo
from pecia_workers.engines.reader_cards import sampling_for
from pecia_workers.media.decoder import Decoder, Spool, turn_of
from pecia_workers.media.pages import Clip, Stretch
from pecia_workers.protocol.base import ClipTimes, EngineRefusedError, EngineRequest, Generation, Generator
from pecia_workers.protocol.parts import ClaimedPart, Done
from pecia_workers.reading.caching import ResultCache
from pecia_workers.reading.page import check_adapter, instruction_for


class CaptionSegment:
    """Fetches, samples and captions one segment at a time, for many callers at once."""

    def __init__(
        self, spool: Spool, decoder: Decoder, engine: Generator, settings: WorkerSettings, cache: ResultCache
    ) -> None:
        self._spool = spool
        self._decoder = decoder
        self._engine = engine
        self._cache = cache
        self._most_tokens = settings.caption_tokens

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the claimed segment's caption.

        Raises `MediaError`, `PayloadMissingError`, `PayloadCorruptError`, `EngineError`.
        """
        task = cast("CaptionVideo", part.task)
        check_adapter(task.adapter, self._engine.capabilities)
        started = monotonic()
        payload = part.payload
        with tracing.span("prepare"):
            async with self._spool.open(payload) as path:
                clip = await self._decoder.clip(path, _stretch_of(part), turn=turn_of(part, payload))
        decoded = monotonic()
        request = self._request(part, task, clip)
        look = await self._cache.look(part, [request], Segment)
        requested = monotonic()
        timings = Timings(queued=part.queued_s + requested - decoded, decode=decoded - started)
        if look.found:  # the same frames may lie elsewhere in another video
            here = _place_of(part, clip) | {"timings": timings}
            return Done(look.found.model_copy(update=here))
        generation = await self._engine.generate(request)
        took = {"engine": monotonic() - requested, "first_token": generation.first_token_s}
        count, height, width, _ = clip.frames.shape
        seen = generation.shrunk_to
        return look.done(
            Segment(
                **_place_of(part, clip),
                text=storable_text(generation.text),
                verdict=generation.verdict,
                frames=count,
                width=width,
                height=height,
                engine=self._engine.capabilities.name,
                shrunk=Shrunk(width=seen[0], height=seen[1]) if seen else None,
                usage=generation.usage,
                timings=timings.model_copy(update=took),
            )
        )

    def _request(self, part: ClaimedPart, task: CaptionVideo, clip: Clip) -> EngineRequest:
        # The frames' places in the source by its average rate, each behind the one before.
        places: list[int] = []
        for at in clip.times:
            places.append(max(round(at * clip.fps), places[-1] + 1 if places else 0))
        duration = max(_stretch_of(part).end, clip.times[-1])
        sampling, most = sampling_for(task, caption_tokens=self._most_tokens)
        return EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=tuple(clip.frames),
            clip=ClipTimes(fps=clip.fps, indices=tuple(places), duration=duration),
            workload=f"caption-{task.style}",
            language=task.language,
            instruction=instruction_for(task.style, task.language),
            sampling=sampling,
            adapter=task.adapter,
            tenant=self._cache.tenant(part),
            priority=part.lane.rank,
            max_output_tokens=most,
        )


def _place_of(part: ClaimedPart, clip: Clip) -> dict[str, Any]:
    """Return the sentence of a caption's prompt that places its segment in the video."""
    stretch = _stretch_of(part)
    return {
        "number": part.ordinal + 1,
        "start": timedelta(seconds=stretch.start),
        "end": timedelta(seconds=stretch.end),
        "damaged": clip.damaged,
    }


def _stretch_of(part: ClaimedPart) -> Stretch:
    assert part.start_s is not None  # noqa: S101  ingest wrote both
    assert part.end_s is not None  # noqa: S101
    return Stretch(start=part.start_s, end=part.end_s)


_MOST_TOKENS: Final = 512
"""Most tokens of a summary whose task sets no limit."""
_LEAST_TO_SPLIT: Final = 3

CaptionsOf = Callable[[UUID], Awaitable[Sequence[Segment]]]
"""Returns the captions of a job, in the order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """Text about a stretch of the video."""

    start: timedelta
    end: timedelta
    text: str

    def __str__(self) -> str:
        times = (divmod(round(moment.total_seconds()), 60) for moment in (self.start, self.end))
        start, end = (f"{minutes}:{seconds:02}" for minutes, seconds in times)
        return f"[{start} - {end}] {self.text}"


class SummarizeVideo:
    """Summarises one video at a time, for many callers at once.

    Captions that exceed the engine's context are summarised by halves, and then the halves' summaries.
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
        requested = monotonic()
        timings = Timings(queued=part.queued_s + requested - began)
        if look.found:
            return Done(look.found.model_copy(update={"timings": timings}))
        written = await self._write(request, notes)
        took = {"engine": monotonic() - requested, "first_token": written.first_token_s}
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
        requested = task.options and task.options.max_output_tokens
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
            max_output_tokens=requested or self._most_tokens,
        )

    async def _write(self, request: EngineRequest, notes: Sequence[_Note]) -> Generation:
        try:
            return await self._engine.generate(_about(request, notes))
        except EngineRefusedError as error:
            if error.code is not FailureCode.TOO_LARGE or len(notes) < _LEAST_TO_SPLIT:
                raise
        middle = len(notes) // 2
        parted = (notes[:middle], notes[middle:])
        halves = await asyncio.gather(
            *(self._write(replace(request, id=f"{request.id}.{n}"), half) for n, half in enumerate(parted))
        )
        summaries = [
            _Note(start=half[0].start, end=half[-1].end, text=written.text)
            for half, written in zip(parted, halves, strict=True)
        ]
        summary = await self._write(request, summaries)
        return replace(summary, usage=sum((half.usage for half in halves), summary.usage))


def _about(request: EngineRequest, notes: Sequence[_Note]) -> EngineRequest:
    captions = "\n".join(map(str, notes))
    return replace(request, instruction=f"{instruction_for('summary', request.language)}\n\n{captions}")
