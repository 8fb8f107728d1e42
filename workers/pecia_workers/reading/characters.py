"""The characters of a line as an engine recognised them: its words, how sure they are, spaces that it lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import Final, NamedTuple

_AROUND: Final = " .,;:!?()[]\"'“”‘’_□–—"  # noqa: RUF001  all of them
"""What may stand at a word's ends and is no part of what it says; or between words."""


class Character(NamedTuple):
    """One character of a line as it was recognised."""

    text: str
    middle: float
    """From left to right, in shares of the line's width."""
    confidence: float


def text_of_characters(line: Sequence[Character]) -> str:
    """Return their text."""
    return "".join(one.text for one in line)


def words_and_spaces(line: Sequence[Character]) -> Iterator[Sequence[Character]]:
    """Yield the words of a line, and the spaces between them."""
    for _, group in groupby(line, key=lambda one: one.text.isspace()):
        yield tuple(group)


def sureness_of(word: Sequence[Character]) -> float:
    """Return the confidence of a word: of its weakest character, punctuation around it aside; that of a space is 1."""
    text = text_of_characters(word)
    start, end = len(text) - len(text.lstrip(_AROUND)), len(text.rstrip(_AROUND))
    return min((one.confidence for one in word[start:end]), default=1.0)


def agreed(first: Sequence[Character], second: Sequence[Character]) -> list[Character]:
    """Return the first of two readings of a line with those words of the second that are surer.

    A word that both have is as sure as the surer of them is of it; others are exchanged if both have as many.
    """
    lines = [list(words_and_spaces(line)) for line in (first, second)]
    words, others = lines
    texts = [[text_of_characters(word) for word in line] for line in lines]
    for tag, start, end, other, other_end in SequenceMatcher(
        None, texts[0], texts[1], autojunk=False
    ).get_opcodes():
        if tag == "equal" or (len(words) == len(others) and end - start == other_end - other):
            pairs = zip(words[start:end], others[other:other_end], strict=True)
            words[start:end] = [max(pair, key=sureness_of) for pair in pairs]
    return [one for word in words for one in word]
