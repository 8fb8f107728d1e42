"""The read stage: one page, from its payload to its text."""

from __future__ import annotations

from time import monotonic
from typing import cast

from pecia_schemas import FailureCode, Page, ReadDocument, Timings, Verdict
from pecia_workers.engines.base import EngineRequest, Generation, Generator
from pecia_workers.ledger import ClaimedPart, Done
from pecia_workers.media.decoder import Decoder
from pecia_workers.media.errors import MediaError
from pecia_workers.media.pages import PageImage
from pecia_workers.payloads import Spool
from pecia_workers.reading.instructions import instruction_for

_BLANK = Generation(text="", verdict=Verdict.BLANK)


class ReadPage:
    """Fetches, decodes and reads one page at a time, for many callers at once."""

    def __init__(self, spool: Spool, decoder: Decoder, engine: Generator) -> None:
        self._spool = spool
        self._decoder = decoder
        self._engine = engine

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the claimed page's text.

        Raises `MediaError`, `PayloadMissingError`, `PayloadCorruptError`, `EngineError`.
        """
        task = cast("ReadDocument", part.task)
        self._check_language(task.language)
        started = monotonic()
        async with self._spool.open(part.payload) as path:
            image = await self._decoder.page(path, part.ordinal)
        decoded = monotonic()
        generation = _BLANK if image.blank else await self._generate(part, task, image)
        timings = Timings(
            queued=part.queued_s,
            decode=decoded - started,
            engine=monotonic() - decoded,
            first_token=generation.first_token_s,
        )
        return Done(self._page(part, image, generation, timings))

    def _check_language(self, language: str | None) -> None:
        known = self._engine.capabilities.languages
        if language is not None and known is not None and language not in known:
            raise MediaError(
                FailureCode.LANGUAGE_UNAVAILABLE,
                f"The engine {self._engine.capabilities.name} reads {', '.join(sorted(known))}.",
            )

    async def _generate(self, part: ClaimedPart, task: ReadDocument, image: PageImage) -> Generation:
        request = EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=(image.pixels,),
            workload=task.document_type,
            language=task.language,
            instruction=instruction_for(task.document_type, task.language),
            priority=part.lane.rank,
        )
        return await self._engine.generate(request)

    def _page(self, part: ClaimedPart, image: PageImage, generation: Generation, timings: Timings) -> Page:
        height, width = image.pixels.shape[:2]
        return Page(
            number=part.ordinal + 1,
            text=_storable(generation.text),
            verdict=generation.verdict,
            lines=tuple(line.model_copy(update={"text": _storable(line.text)}) for line in generation.lines),
            confidence=_confidence(generation),
            width=width,
            height=height,
            rotation=image.rotation,
            engine=self._engine.capabilities.name,
            usage=generation.usage,
            timings=timings,
        )


def _confidence(generation: Generation) -> float | None:
    weight = sum(len(line.text) for line in generation.lines)
    if not weight:
        return None
    return sum(line.confidence * len(line.text) for line in generation.lines) / weight


def _storable(text: str) -> str:
    """Return the text without the one character that Postgres cannot store."""
    return text.replace("\x00", "")
