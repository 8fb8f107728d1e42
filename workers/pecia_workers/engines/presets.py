"""How a language model writes for a task: its preset from `presets.toml`, and what the task changes of that."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from pecia_schemas import CaptionVideo, ReadDocument
from pecia_schemas.tasks import CaptionStyle, GenerationOptions, Preset
from pecia_workers.engines.base import Sampling
from pecia_workers.engines.reader_cards import Card, Data, PlainSampling, card_of

Bounds = tuple[float, float]


class PresetValues(PlainSampling):
    """One preset."""

    caption_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most new tokens of a caption; None: as its style says."""


class DocumentRules(Data):
    """What every preset gives way to on a page."""

    repetition_penalty: float


class LanguageBounds(Data):
    """Lowest and highest value that a preset may have for captions in one language."""

    temperature: Bounds
    repetition_penalty: Bounds


class CaptionRules(Data):
    """How captions are written."""

    preset: Preset
    """Of a task that names none."""
    tokens: dict[CaptionStyle, int]
    languages: dict[str, LanguageBounds]


class Presets(Data):
    """All of `presets.toml`."""

    presets: dict[Preset, PresetValues]
    documents: DocumentRules
    captions: CaptionRules


@cache
def presets() -> Presets:
    """Return the presets that come with the fleet."""
    text = (files("pecia_workers.engines") / "presets.toml").read_text(encoding="utf-8")
    return Presets.model_validate(tomllib.loads(text))


def sampling_for(
    task: ReadDocument | CaptionVideo, *, caption_tokens: int = 0, card: Card | None = None
) -> tuple[Sampling, int | None]:
    """Return how to write for the task, and the most tokens of one page or caption; None: as the fleet is set.

    `caption_tokens` is the fleet's bound on captions, 0 without one. The task's own options win over that, over its
    preset, over what its language asks for and over the reader card that reads its pages.
    """
    if isinstance(task, ReadDocument):
        sampling, most = (card or card_of("")).words(), None
        values = _page_values(task)
    else:
        values = _caption_values(task, caption_tokens)
        sampling, most = Sampling(), values.pop("caption_tokens")
    options = task.options or GenerationOptions()
    changed = options.model_dump(exclude_none=True, exclude={"max_output_tokens"})
    return replace(sampling, **(values | changed)), options.max_output_tokens or most


def _page_values(task: ReadDocument) -> dict[str, Any]:
    """Return what a page's preset says; without one its card does, for copying has one right answer."""
    if task.preset is None:
        return {}
    values = presets().presets[Preset(task.preset)].model_dump(exclude={"caption_tokens"})
    return values | {"repetition_penalty": presets().documents.repetition_penalty}


def _caption_values(task: CaptionVideo, most_tokens: int) -> dict[str, Any]:
    rules = presets().captions
    values = presets().presets[Preset(task.preset or rules.preset)]
    tokens = values.caption_tokens or rules.tokens[CaptionStyle(task.style)]
    changed: dict[str, float] = {"caption_tokens": min(tokens, most_tokens or tokens)}
    if bounds := rules.languages.get(task.language):
        changed["temperature"] = _within(values.temperature, bounds.temperature)
        changed["repetition_penalty"] = _within(values.repetition_penalty, bounds.repetition_penalty)
    return values.model_dump() | changed


def _within(value: float, bounds: Bounds) -> float:
    lowest, highest = bounds
    return min(max(value, lowest), highest)
