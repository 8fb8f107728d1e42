"""How far a reading can be trusted: what the engine says of it, held against what is on the page of text."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pecia_schemas.blocks import DoubtReason, mean_confidence
from pecia_schemas.results import Verdict
from pecia_workers.engines.base import Generation
from pecia_workers.reading.sureness import doubtful_words

_WORST_FIRST: Final = (
    Verdict.UNREADABLE,
    Verdict.REPETITION,
    Verdict.TRUNCATED,
    Verdict.INCOMPLETE,
    Verdict.LOW_CONFIDENCE,
    Verdict.REVIEW,
    Verdict.BLANK,
    Verdict.OK,
)
_DOUBTFUL_LINES: Final = 0.6
"""Mean confidence of its lines below which a page is doubtful."""
_DOUBTFUL_WORDS: Final = 0.01
"""Share of an OCR page's words that are doubtful, from which it is."""
_DOUBTFUL_MARKS: Final = 0.2
"""Share of a page's words that the model marked as unreadable, as its instruction wants it to, from which it is."""
_DOUBTFUL_CHARACTERS: Final = 0.01
"""Share of characters that stand for broken bytes, from which it is: print has none."""
_UNREAD: Final = "[?]"
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_FENCES: Final = ("```markdown", "```md", "```json")


def rank(verdict: Verdict) -> int:
    """Return a number that is larger the better the verdict."""
    return _WORST_FIRST.index(verdict)


def judged(generation: Generation) -> Generation:
    """Return the reading without the fence that models like to put around it, and with its final verdict.

    What an engine says against its own text stands; only what it calls `ok` is looked at again.
    """
    text = generation.text if generation.blocks else unfenced(generation.text)
    generation = replace(generation, doubts=(*generation.doubts, *doubtful_words(generation.tokens, text)))
    verdict = generation.verdict
    if text and not any(map(str.isalnum, text)):
        verdict = Verdict.UNREADABLE
    elif verdict is Verdict.OK:
        verdict = _looked_at(generation, text)
    return replace(generation, text=text, verdict=verdict)


def _looked_at(generation: Generation, text: str) -> Verdict:
    """Return the worst that the doubts and the text say of what the engine calls `ok`."""
    if any(doubt.reason is DoubtReason.UNCOVERED for doubt in generation.doubts):
        return Verdict.INCOMPLETE
    if _is_doubtful(generation, text):
        return Verdict.LOW_CONFIDENCE
    words = sum(len(line.words) for line in generation.lines)
    unsure = sum(doubt.reason is DoubtReason.LOW_CONFIDENCE for doubt in generation.doubts)
    if any(doubt.on_value for doubt in generation.doubts) or (words and unsure >= _DOUBTFUL_WORDS * words):
        return Verdict.REVIEW
    return Verdict.OK


def _is_doubtful(generation: Generation, text: str) -> bool:
    if generation.lines:
        confidence = mean_confidence(generation.lines)
        return confidence is not None and confidence < _DOUBTFUL_LINES
    words = len(text.split()) or 1
    marked = text.count(_UNREAD) / words
    broken = text.count(_BROKEN) / (len(text) or 1)
    return marked >= _DOUBTFUL_MARKS or broken >= _DOUBTFUL_CHARACTERS


def unfenced(text: str) -> str:
    """Return a whole answer without the labelled fence around it, if there is one."""
    first, *lines = text.strip().split("\n")
    if first.strip().lower() not in _FENCES:
        return text
    if lines and lines[-1].strip() == "```":
        lines.pop()
    return "\n".join(lines)
