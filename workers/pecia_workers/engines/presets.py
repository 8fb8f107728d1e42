"""How a language model writes for a task: its preset from `presets.toml`, and what the task changes of that."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pecia_schemas import CaptionVideo, ReadDocument
from pecia_schemas.tasks import CaptionStyle, GenerationOptions, Preset
from pecia_workers.engines.base import Sampling

Bounds = tuple[float, float]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PresetValues(_Data):
    """One preset; the defaults are greedy decoding."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    caption_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most new tokens of a caption; None: as its style says."""


class DocumentRules(_Data):
    """What every preset gives way to on a page."""

    repetition_penalty: float


class LanguageBounds(_Data):
    """Lowest and highest value that a preset may have for captions in one language."""

    temperature: Bounds
    repetition_penalty: Bounds


class CaptionRules(_Data):
    """How captions are written."""

    preset: Preset
    """Of a task that names none."""
    tokens: dict[CaptionStyle, int]
    languages: dict[str, LanguageBounds]


class Presets(_Data):
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
    task: ReadDocument | CaptionVideo, *, caption_tokens: int = 0
) -> tuple[Sampling, int | None]:
    """Return how to write for the task, and the most tokens of one page or caption; None: as the fleet is set.

    `caption_tokens` is the fleet's bound on captions, 0 without one. The task's own options win over that, over its
    preset and over what its language asks for.
    """
    values = _page_values(task) if isinstance(task, ReadDocument) else _caption_values(task, caption_tokens)
    options = task.options or GenerationOptions()
    changed = options.model_dump(exclude_none=True, exclude={"max_output_tokens"})
    sampling = Sampling(**(values.model_dump(exclude={"caption_tokens"}) | changed))
    return sampling, options.max_output_tokens or values.caption_tokens


def _page_values(task: ReadDocument) -> PresetValues:
    """Return a page's values: greedy without a preset, for copying has one right answer."""
    if task.preset is None:
        return PresetValues()
    changed = {"repetition_penalty": presets().documents.repetition_penalty, "caption_tokens": None}
    return presets().presets[Preset(task.preset)].model_copy(update=changed)


def _caption_values(task: CaptionVideo, most_tokens: int) -> PresetValues:
    rules = presets().captions
    values = presets().presets[Preset(task.preset or rules.preset)]
    tokens = values.caption_tokens or rules.tokens[CaptionStyle(task.style)]
    changed: dict[str, float] = {"caption_tokens": min(tokens, most_tokens or tokens)}
    if bounds := rules.languages.get(task.language):
        changed["temperature"] = _within(values.temperature, bounds.temperature)
        changed["repetition_penalty"] = _within(values.repetition_penalty, bounds.repetition_penalty)
    return values.model_copy(update=changed)


def _within(value: float, bounds: Bounds) -> float:
    lowest, highest = bounds
    return min(max(value, lowest), highest)
