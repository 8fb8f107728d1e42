"""The caption stage: one segment of a video, from its payload to its caption."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import cast

from pecia_schemas import CaptionVideo, Segment, Shrunk, Timings, tracing
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.storable import storable_text
from pecia_schemas.tasks import CaptionStyle
from pecia_workers.caching.cache import ResultCache
from pecia_workers.captioning.instructions import instruction_for_segment
from pecia_workers.engines.base import ClipTimes, EngineRequest, Generation, Generator
from pecia_workers.engines.presets import sampling_for
from pecia_workers.ledger import ClaimedPart, Done
from pecia_workers.media.clips import Clip, Stretch
from pecia_workers.media.decoder import Decoder
from pecia_workers.payloads import Spool
from pecia_workers.reading.demands import check_adapter


class CaptionSegment:
    """Fetches, samples and captions one segment at a time, for many callers at once."""

    def __init__(
        self,
        spool: Spool,
        decoder: Decoder,
        engine: Generator,
        settings: WorkerSettings,
        cache: ResultCache,
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
        stretch = _stretch_of(part)
        started = monotonic()
        clip = await self._clip(part, stretch)
        decoded = monotonic()
        request = self._request(part, task, clip)
        look = await self._cache.look(part, [request], Segment)
        asked = monotonic()
        timings = Timings(queued=part.queued_s + asked - decoded, decode=decoded - started)
        if look.found:
            return Done(_moved(look.found, part, clip, timings))
        generation = await self._engine.generate(request)
        took = {"engine": monotonic() - asked, "first_token": generation.first_token_s}
        return look.done(self._segment(part, clip, generation, timings.model_copy(update=took)))

    async def _clip(self, part: ClaimedPart, stretch: Stretch) -> Clip:
        with tracing.span("prepare"):
            async with self._spool.open(part.payload) as path:
                return await self._decoder.clip(path, stretch)

    def _request(self, part: ClaimedPart, task: CaptionVideo, clip: Clip) -> EngineRequest:
        end = _stretch_of(part).end
        sampling, most = sampling_for(task, caption_tokens=self._most_tokens)
        return EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=tuple(clip.frames),
            clip=ClipTimes(fps=clip.fps, indices=_indices(clip), duration=max(end, clip.times[-1])),
            workload=f"caption-{task.style}",
            language=task.language,
            instruction=instruction_for_segment(CaptionStyle(task.style), task.language),
            sampling=sampling,
            adapter=task.adapter,
            tenant=self._cache.tenant(part),
            priority=part.lane.rank,
            max_output_tokens=most,
        )

    def _segment(self, part: ClaimedPart, clip: Clip, generation: Generation, timings: Timings) -> Segment:
        stretch = _stretch_of(part)
        count, height, width, _ = clip.frames.shape
        seen = generation.shrunk_to
        return Segment(
            number=part.ordinal + 1,
            start=timedelta(seconds=stretch.start),
            end=timedelta(seconds=stretch.end),
            text=storable_text(generation.text),
            verdict=generation.verdict,
            frames=count,
            width=width,
            height=height,
            damaged=clip.damaged,
            engine=self._engine.capabilities.name,
            shrunk=Shrunk(width=seen[0], height=seen[1]) if seen else None,
            usage=generation.usage,
            timings=timings,
        )


def _moved(earlier: Segment, part: ClaimedPart, clip: Clip, timings: Timings) -> Segment:
    """Return the caption as this part's: the same frames may lie elsewhere in another video."""
    stretch = _stretch_of(part)
    place = {
        "number": part.ordinal + 1,
        "start": timedelta(seconds=stretch.start),
        "end": timedelta(seconds=stretch.end),
        "damaged": clip.damaged,
    }
    return earlier.model_copy(update=place | {"timings": timings})


def _stretch_of(part: ClaimedPart) -> Stretch:
    assert part.start_s is not None  # noqa: S101  ingest wrote both
    assert part.end_s is not None  # noqa: S101
    return Stretch(start=part.start_s, end=part.end_s)


def _indices(clip: Clip) -> tuple[int, ...]:
    """Return the frames' places in the source by its average rate, each behind the one before."""
    places: list[int] = []
    for at in clip.times:
        places.append(max(round(at * clip.fps), places[-1] + 1 if places else 0))
    return tuple(places)
