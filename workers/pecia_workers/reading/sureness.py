"""How sure a language model was of what it wrote: the log-probabilities of its tokens, by page and by word."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from typing import Final

from pecia_schemas.blocks import Doubt, DoubtReason
from pecia_workers.reading.values import is_value

_LEAST_OF_A_VALUE: Final = math.log(0.6)
_LEAST_OF_A_WORD: Final = math.log(0.2)
"""Log-probability of its least likely token below which a word is doubtful: of a word of prose less is asked, for often
another token would have changed the layout alone."""
_MARKUP: Final = "|*#`_<>"


def sureness(tokens: Sequence[tuple[str, float]]) -> float | None:
    """Return the geometric mean of the tokens' probabilities, 0 to 1; None without tokens."""
    return min(1.0, math.exp(sum(logged for _, logged in tokens) / len(tokens))) if tokens else None


def doubtful_words(tokens: Sequence[tuple[str, float]], written: str) -> tuple[Doubt, ...]:
    """Return the words of what was written that the model was not sure of, in its order, without their places.

    Special tokens, and characters that a tokenizer has torn into several tokens, are not in what was written.
    """
    found: list[Doubt] = []
    before = ""
    for word, least in _words(tokens):
        text = word.strip(_MARKUP + string.whitespace)
        on_value = is_value(text, before)
        if (
            least < (_LEAST_OF_A_VALUE if on_value else _LEAST_OF_A_WORD)
            and any(map(str.isalnum, text))
            and text in written
        ):
            found.append(Doubt(reason=DoubtReason.LOW_CONFIDENCE, text=text, on_value=on_value))
        before = "" if word.endswith("\n") else f"{before}{text} "
    return tuple(found)


def _words(tokens: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield each word, with the white space after it, and the log-probability of its least likely token."""
    word, least = "", 0.0
    for text, logged in tokens:
        for piece in text.splitlines(keepends=True):
            for part in _apart(piece):
                if word and word[-1].isspace() and not part[0].isspace():
                    yield word, least
                    word, least = "", 0.0
                word += part
                least = min(least, logged) if not part.isspace() else least
    if word.strip():
        yield word, least


def _apart(text: str) -> Iterator[str]:
    """Yield runs of white space, and what is between them."""
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or text[end].isspace() != text[start].isspace():
            yield text[start:end]
            start = end
