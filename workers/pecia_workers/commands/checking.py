"""The check of an engine: starts it, has it read one sample page, and stops it."""

import asyncio
from dataclasses import dataclass
from difflib import SequenceMatcher
from time import monotonic
from typing import Final

from pecia_schemas.blocks import text_of
from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.profiles import with_profile
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import create_engine
from pecia_workers.media.images import to_rgb
from pecia_workers.media.samples import sample_document
from pecia_workers.protocol.base import EngineRequest, only_captions
from pecia_workers.reading.answers import answer_blocks
from pecia_workers.reading.page import page_instruction

_ENOUGH: Final = 0.95
"""Least accuracy on this printed page: fewer than one character in twenty differ."""
_MOST_TOKENS: Final = 512
"""More tokens than the page has; stops a looping model."""
_LOAD_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """Result of an engine's check."""

    engine: str
    model: str
    ready_s: float
    slots: int
    budget_tokens: int | None
    verdict: Verdict
    read_s: float
    output_tokens: int
    predicted_tokens: int | None
    """Predicted length of the prompt, in tokens; None for an engine that is no language model."""
    counted_tokens: int
    kv_used: float | None
    """Most of the KV cache that the page used, by the engine's report; None without one."""
    preemptions: int
    acceptance: float | None
    """Accepted share of the tokens proposed by speculative decoding; None without proposals."""
    drifted: bool
    """Whether the two differ although the price is exact."""
    accuracy: float
    """Share of correct characters, of those drawn or those read, whichever are more."""
    misread: str
    """The first misread line, empty if none."""

    @property
    def ok(self) -> bool:
        """Whether the page was read, and an exact prediction was right."""
        return self.accuracy >= _ENOUGH and not self.drifted


async def check_engine(settings: WorkerSettings) -> EngineCheck:
    """Check the engine with one page. Raises `EngineUnavailableError`, `EngineError`."""
    chosen = await asyncio.to_thread(with_profile, settings, captions=only_captions(settings))
    engine = create_engine(chosen)
    try:
        started = monotonic()
        await engine.start()
        ready_s, started = monotonic() - started, monotonic()
        card = card_of(engine.capabilities.model, settings.card)
        (page, *_) = sample_document(DocumentType.PRESCRIPTION).pages
        prescription = EngineRequest(
            id="check",
            images=(to_rgb(page.image),),
            workload=DocumentType.PRESCRIPTION,
            language="en",
            instruction=page_instruction(card, DocumentType.PRESCRIPTION, "en"),
            system=card.system,
            sampling=card.sampling,
            max_output_tokens=_MOST_TOKENS,
        )
        request = await engine.fit(prescription)
        predicted = engine.cost(request) - request.output_tokens
        reading = asyncio.ensure_future(engine.generate(request))
        most = engine.load().kv_used
        while not reading.done():
            await asyncio.wait([reading], timeout=_LOAD_EVERY_S)
            used = engine.load().kv_used
            most = used if most is None or used is None else max(most, used)
        generation, load = await reading, engine.load()
        blocks = generation.blocks or answer_blocks(card.answer, generation.text, request.size, request.size)
        read, known = _unspaced(text_of(blocks)), page.lines
        drawn = _unspaced(" ".join(known))
        alike = SequenceMatcher(None, drawn, read, autojunk=False).get_matching_blocks()
        capabilities, budget = engine.capabilities, engine.budget
        return EngineCheck(
            engine=capabilities.name,
            model=capabilities.model,
            ready_s=ready_s,
            slots=budget.slots,
            budget_tokens=budget.tokens,
            verdict=generation.verdict,
            read_s=monotonic() - started,
            output_tokens=generation.usage.output,
            predicted_tokens=predicted if capabilities.fields else None,
            counted_tokens=generation.usage.prompt,
            kv_used=most,
            preemptions=load.preemptions,
            acceptance=load.acceptance,
            drifted=bool(load.drifted),
            accuracy=sum(part.size for part in alike) / max(len(drawn), len(read)),
            misread=next((line for line in known if _unspaced(line) not in read), ""),
        )
    finally:
        await engine.stop()


def _unspaced(text: str) -> str:
    return "".join(text.split())
