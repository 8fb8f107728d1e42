"""Reader cards of model families, in `cards/`, and presets for sampling, in `presets.toml`."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import CaptionStyle, CaptionVideo, GenerationOptions, Preset, ReadPages
from pecia_workers.engines.models import picture_limits
from pecia_workers.protocol.base import LANGUAGE_MODEL, Capabilities, EngineUnavailableError, Sampling

_ANY_OTHER: Final = "markdown"


class AnswerFormat(StrEnum):
    """Format in which a model writes a page."""

    MARKDOWN = "markdown"
    """With HTML in it, as most models write."""
    FRONT_MATTER = "front_matter"
    """YAML about the page, then Markdown."""
    TAGGED = "tagged"
    """Markdown with tags of its own around page numbers, watermarks and the like."""
    GROUNDED = "grounded"
    """Markdown in pieces, each with its kind and its place in thousandths of the page."""
    HTML = "html"
    """A `div` a block, with kind and place in thousandths of the page."""
    LAYOUT = "layout"
    """A list of JSON objects with category, place in pixels and text."""
    LAYOUT_1000 = "layout_1000"
    """The same, with places in thousandths of the page."""
    MARKED = "marked"
    """Markdown in pieces, each behind a picture's mark with its kind and its place in thousandths of the page."""
    DOCTAGS = "doctags"
    """Docling's own markup, with places on a grid of 500."""


class Data(BaseModel):
    """Contents of a packaged file; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_File = TypeVar("_File", bound=Data)


def packaged(name: str, model: type[_File]) -> _File:
    """Return the contents of a TOML file of this package."""
    text = (files("pecia_workers.engines") / name).read_text(encoding="utf-8")
    return model.model_validate(tomllib.loads(text))


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """Return a hint with the closest known name."""
    names = list(there)
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."


class Card(Data):
    """One family of models."""

    title: str
    names: tuple[str, ...]
    """Parts of its models' names, ignoring case, dots and dashes."""
    license: str
    warning: str = ""
    """Uses that its licence excludes, or that these are unknown; such models are not recommended. Empty: none."""
    sources: tuple[str, ...] = ()
    """Sources of the card."""
    checkpoint: str = ""
    """One of its models, by its name on the Hugging Face Hub."""
    weights_gb: float = 0
    """Its size in 10^9 bytes, by its number of weights; 0: unknown."""
    answer: AnswerFormat
    prompt: str | None = None
    """Its prompt for a page; None: the fleet's own, by type of document and language."""
    other_prompts: dict[str, str] = {}
    """Further prompts that it knows, for a task's `instructions`."""
    system: str | None = None
    """System message; None: what the chat template says by itself."""
    fields: bool = False
    """Whether it fills `fields`."""
    instructions: bool = True
    """Whether it reads a task's own instructions."""
    sampling: Sampling = Sampling()
    """How the family's makers let it pick its words."""
    most_pixels: int = 4096 * 4096
    longest_side: int = 4096 * 4096
    """Longest side of a page, in pixels; larger pages are reduced, without loss of accuracy."""
    engine_options: dict[str, Any] = {}
    """Arguments that vLLM needs for it, by vLLM's names."""
    needs: str = ""
    """What an operator has to provide."""
    limits: str = ""
    """Its limitations."""


@cache
def cards() -> dict[str, Card]:
    """Return the cards that come with the fleet, by the names of their files."""
    found = sorted(file.name for file in (files("pecia_workers.engines") / "cards").iterdir())
    return {name.removesuffix(".toml"): packaged(f"cards/{name}", Card) for name in found}


@cache
def card_of(model: str, named: str = "") -> Card:
    """Return the card of this name, else of the model's family, else the one for Markdown.

    A model is a name on the Hub or of a server, or a directory; of several families in its name the last one counts.
    Raises `EngineUnavailableError` if there is no card of this name.
    """
    if named and named not in cards():
        raise EngineUnavailableError(f"There is no reader card {named!r}. {did_you_mean(named, cards())}")
    plain = _plain(model)
    places = [
        (plain.rfind(_plain(name)) + len(_plain(name)), len(name), key)
        for key, card in cards().items()
        for name in card.names
        if _plain(name) in plain
    ]
    return cards()[named or max(places, default=(0, 0, _ANY_OTHER))[-1]]


def language_model(name: str, settings: WorkerSettings, model: str) -> Capabilities:
    """Return the capabilities of an engine with a model, by its card and the settings."""
    card = card_of(model, settings.card)
    capabilities = Capabilities(
        name=name,
        model=model,
        stages=LANGUAGE_MODEL,
        fields=card.fields,
        instructions=card.instructions,
        adapters=frozenset(settings.adapters),
    )
    limits: dict[str, Any] = picture_limits(model, settings.engine_options)
    return replace(capabilities, **limits)


def readers_for(memory_bytes: int) -> tuple[str, ...]:
    """Return models for documents under permissive licences that use at most half of a GPU's memory."""
    return tuple(
        card.checkpoint
        for card in cards().values()
        if card.checkpoint and not card.warning and 0 < 2e9 * card.weights_gb <= memory_bytes
    )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


class PresetValues(Data):
    """How a model picks its words by one preset; the defaults are greedy decoding."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    caption_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most output tokens of a caption; None: by its style."""


class CaptionRules(Data):
    """Rules for captions."""

    preset: Preset
    """Default preset of captions."""
    tokens: dict[CaptionStyle, int]
    languages: dict[str, dict[str, tuple[float, float]]]
    """Bounds of a preset's values for one language."""


class Presets(Data):
    """Contents of `presets.toml`."""

    presets: dict[Preset, PresetValues]
    documents: dict[str, float]
    """Sampling of pages, which overrides presets."""
    captions: CaptionRules


@cache
def presets() -> Presets:
    """Return the presets that come with the fleet."""
    return packaged("presets.toml", Presets)


def sampling_for(
    task: ReadPages[Any] | CaptionVideo, *, caption_tokens: int = 0, card: Card | None = None
) -> tuple[Sampling, int | None]:
    """Return the sampling parameters of a task, and the most tokens of one page or caption; None: the fleet's setting.

    `caption_tokens`: the fleet's bound on captions, 0 without one. A task's own options override that, its preset, the
    rules of its language and the reader card.
    """
    values: dict[str, Any] = {}
    sampling, most, rules = Sampling(), None, presets().captions
    if isinstance(task, CaptionVideo):
        preset = presets().presets[Preset(task.preset or rules.preset)]
        most = preset.caption_tokens or rules.tokens[CaptionStyle(task.style)]
        most = min(most, caption_tokens or most)
        values = preset.model_dump(exclude={"caption_tokens"})
        for name, (lowest, highest) in rules.languages.get(task.language, {}).items():
            values[name] = min(max(values[name], lowest), highest)
    else:
        sampling = (card or card_of("")).sampling
        if task.preset is not None:  # else the card says, for copying has one right answer
            values = presets().presets[Preset(task.preset)].model_dump(exclude={"caption_tokens"})
            values |= presets().documents
    options = task.options or GenerationOptions()
    changed = options.model_dump(exclude_none=True, exclude={"max_output_tokens"})
    return replace(sampling, **(values | changed)), options.max_output_tokens or most
