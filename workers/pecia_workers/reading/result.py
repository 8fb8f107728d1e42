"""A page's result, put together from all that was read of it."""

from __future__ import annotations

from collections.abc import Iterable

from pecia_schemas import Page, Shrunk, Timings, TokenUsage
from pecia_schemas.blocks import mean_confidence
from pecia_schemas.storable import storable_text
from pecia_workers.media.pages import PageImage
from pecia_workers.reading.fields import Fields
from pecia_workers.reading.ladder import Reading, best
from pecia_workers.reading.markup import blocks_of
from pecia_workers.reading.sureness import sureness


def page_of(
    number: int, image: PageImage, readings: list[Reading], fields: Fields | None, timings: Timings
) -> Page:
    """Return the page with the best of its readings' text; `number` counts from 1."""
    kept = best(readings)
    others = [reading for reading in readings if reading is not kept]
    forms = fields.others if fields else ()
    height, width = image.pixels.shape[:2]
    return Page(
        number=number,
        blocks=kept.generation.blocks or blocks_of(kept.generation.text),
        verdict=kept.generation.verdict,
        coverage=kept.generation.coverage,
        doubts=kept.generation.doubts,
        confidence=mean_confidence(kept.generation.lines) or sureness(kept.generation.tokens),
        width=width,
        height=height,
        blank=image.blank,
        rotation=image.rotation,
        skew=image.skew,
        scale=image.scale,
        engine=kept.engine,
        fields=fields.values if fields else None,
        fields_text=storable_text(fields.text) if fields and fields.text is not None else None,
        shrunk=Shrunk(width=kept.seen[0], height=kept.seen[1]) if kept.seen != (width, height) else None,
        change=kept.change,
        attempts=(*(one.attempt() for one in others), *(one.attempt(fields=True) for one in forms)),
        usage=spent([kept, *([fields.kept] if fields and fields.kept else [])], [*others, *forms]),
        timings=timings.model_copy(update={"first_token": kept.generation.first_token_s}),
    )


def spent(kept: Iterable[Reading], others: Iterable[Reading]) -> TokenUsage:
    """Return the tokens of all; what was thrown away is `wasted` as well, from its first token to its last."""
    lost = [reading.generation.usage for reading in others]
    wasted = sum(usage.prompt + usage.output for usage in lost)
    return sum([*(reading.generation.usage for reading in kept), *lost], TokenUsage(wasted=wasted))
