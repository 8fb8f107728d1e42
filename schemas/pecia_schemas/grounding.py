"""Where what was read stands on the page, and who else read it so."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from pecia_schemas.blocks import Box, Confidence, Source, Stored, Text


class Standing(StrEnum):
    """How a value stands beside a witness."""

    AGREES = "agrees"
    """The witness read the same."""
    DIFFERS = "differs"
    """The witness read something else there."""
    NOT_ON_PAGE = "not_on_page"
    """The witness finds it nowhere."""
    CONFIRMED = "confirmed"
    """A person has seen to it in a review."""


class MergeRule(StrEnum):
    """How a property that several pages fill becomes one."""

    AGREED = "agreed"
    """The value that most pages have, one that a witness read too before all others; of equals the first."""
    FIRST = "first"
    """That of the first page that has one."""
    ALL = "all"
    """A list of all: the items of lists one page after the other, and of single values each once."""
    SUM = "sum"
    """The sum of the numbers, of a list's items too."""


class Witnessed(Stored):
    """What an independent witness of a page says of its text, in words and numbers, punctuation aside."""

    source: Source
    """`layer`: the file's own text; `ocr`: the CPU engine."""
    words: int
    """Of the text."""
    agrees: int
    differs: int
    not_on_page: int
    only_witness: int
    """That the witness read and the text does not have."""
    values: int
    """Of the words that the witness can read: numbers, units, dates, codes and names."""
    values_agree: int
    seconds: float = 0.0
    """What the witness and the comparison took, in seconds: this page alone waited for it."""


class Place(Stored):
    """Where a value stands in a document."""

    page: int = Field(ge=1)
    box: Box


class Grounding(Stored):
    """One leaf of `fields`: a text, a number, a truth value or null."""

    path: str
    """JSON pointer (RFC 6901), as in `/items/0/amount`."""
    value: Any
    pages: tuple[int, ...] = ()
    """Pages whose fields have it."""
    places: tuple[Place, ...] = ()
    """Where it stands; empty: unknown."""
    witness: Source | None = None
    """None: there was none, or nothing to be looked for: null, true and false are written on no page."""
    standing: Standing | None = None
    other: Text | None = None
    """What the witness read there, if it `differs`."""
    confidence: Confidence | None = None
    """What the witness is sure of: 1 for a text layer that agrees, 0 for what is not on the page."""
    conflicts: tuple[Grounding, ...] = ()
    """Of a document: what other pages have in its place."""
