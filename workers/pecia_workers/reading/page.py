"""The read stage: one page, from its payload to its text."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, cast

from pecia_schemas import FailureCode, Page, ReadDocument, Shrunk, Timings, Verdict
from pecia_workers.engines.base import EngineRequest, Generation, Generator
from pecia_workers.engines.presets import sampling_for
from pecia_workers.engines.reading_order import mean_confidence
from pecia_workers.ledger import ClaimedPart, Done
from pecia_workers.media.decoder import Decoder
from pecia_workers.media.errors import MediaError
from pecia_workers.media.pages import PageImage
from pecia_workers.payloads import Spool
from pecia_workers.reading.instructions import instruction_for
from pecia_workers.reading.ladder import Ladder, Reading, best, spent

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_BLANK = Generation(text="", verdict=Verdict.BLANK)
_FOR_TEXT = 0.5
"""Share of a part's time within which a page's text may be read again: what is left is for a slow last answer."""


class ReadPage:
    """Fetches, decodes and reads one page at a time, for many callers at once."""

    def __init__(
        self,
        spool: Spool,
        decoder: Decoder,
        engine: Generator,
        settings: WorkerSettings,
        fallback: Generator | None = None,
    ) -> None:
        self._spool = spool
        self._decoder = decoder
        self._engine = engine
        self._ladder = Ladder(engine, fallback, most=settings.max_readings)
        self._patience = settings.part_timeout.total_seconds()

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the claimed page's text.

        Raises `MediaError`, `PayloadMissingError`, `PayloadCorruptError`, `EngineError`.
        """
        task = cast("ReadDocument", part.task)
        self._check_language(task.language)
        begun = asyncio.get_running_loop().time()
        started = monotonic()
        async with self._spool.open(part.payload) as path:
            image = await self._decoder.page(path, part.ordinal)
        decoded = monotonic()
        readings = [self._blank(image)] if image.blank else await self._read(part, task, image, begun)
        kept = best(readings)
        timings = Timings(
            queued=part.queued_s,
            decode=decoded - started,
            engine=monotonic() - decoded,
            first_token=kept.generation.first_token_s,
        )
        return Done(_page(part, image, kept, [one for one in readings if one is not kept], timings))

    def _check_language(self, language: str | None) -> None:
        known = self._engine.capabilities.languages
        if language is not None and known is not None and language not in known:
            raise MediaError(
                FailureCode.LANGUAGE_UNAVAILABLE,
                f"The engine {self._engine.capabilities.name} reads {', '.join(sorted(known))}.",
            )

    def _blank(self, image: PageImage) -> Reading:
        return Reading(
            engine=self._engine.capabilities.name, change=None, generation=_BLANK, seen=_size(image)
        )

    async def _read(
        self, part: ClaimedPart, task: ReadDocument, image: PageImage, begun: float
    ) -> list[Reading]:
        sampling, most = sampling_for(task)
        request = EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=(image.pixels,),
            workload=task.document_type,
            language=task.language,
            instruction=instruction_for(task.document_type, task.language),
            sampling=sampling,
            adapter=task.adapter,
            priority=part.lane.rank,
            max_output_tokens=most,
        )
        return await self._ladder.climb(request, begun + _FOR_TEXT * self._patience)


def _page(
    part: ClaimedPart, image: PageImage, kept: Reading, others: list[Reading], timings: Timings
) -> Page:
    width, height = _size(image)
    generation = kept.generation
    return Page(
        number=part.ordinal + 1,
        text=_storable(generation.text),
        verdict=generation.verdict,
        lines=tuple(line.model_copy(update={"text": _storable(line.text)}) for line in generation.lines),
        confidence=mean_confidence(generation.lines) if any(line.text for line in generation.lines) else None,
        width=width,
        height=height,
        rotation=image.rotation,
        engine=kept.engine,
        shrunk=Shrunk(width=kept.seen[0], height=kept.seen[1]) if kept.seen != (width, height) else None,
        change=kept.change,
        attempts=tuple(reading.attempt() for reading in others),
        usage=spent([generation.usage], [reading.generation.usage for reading in others]),
        timings=timings,
    )


def _size(image: PageImage) -> tuple[int, int]:
    height, width = image.pixels.shape[:2]
    return width, height


def _storable(text: str) -> str:
    """Return the text without the one character that Postgres cannot store."""
    return text.replace("\x00", "")
