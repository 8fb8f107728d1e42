"""Which of two readings that look alike a word is, and how likely it is wrong: grammar, scores and pixels together.

Needs OpenCV (pecia[cpu]).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pecia_workers.layout.calibration import calibration, log_odds
from pecia_workers.layout.characters import Character, sureness_of, text_of_characters
from pecia_workers.layout.glyph_shapes import Glyph, looks_like
from pecia_workers.layout.values import TOLD_BY_INK, are_alike, bare, is_raised, others_alike, shape_strength

_LEAST_SCORE: Final = 1e-3
"""Of a rival that the recogniser does not name."""
_SAME_INK: Final = {"I", "l"}
_LEAST_SCORE_OF_SAME: Final = 0.1
"""Of a sign that most faces without serifs draw alike: the recogniser's scores tell them apart by words alone."""
_NAMED: Final = 0.02
"""Score from which a rival counts, whatever the word's shape."""
_KNOWN: Final = 2
"""Strength of a shape from which a word without a digit may be a value."""
_MOST_CHANGES: Final = 2
_LIKELY: Final = 0.5
_LEAST_PROBABILITY: Final = 0.05
"""Of another reading, from which it counts."""
_UNLIKELY: Final = log_odds(_LEAST_PROBABILITY)


class Other(NamedTuple):
    """A word with another sign at one place."""

    place: int
    sign: str
    text: str
    probability: float
    """That it is the right one of the two."""
    pixels: int
    """1 where the sign's shape speaks for it, -1 against it, 0 where it is not clear."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A word as it is to be read."""

    characters: tuple[Character, ...]
    confidence: float
    """Probability that it is right."""
    other: str | None
    """The next likely reading, if there is one."""
    evidence: Mapping[str, float]
    """What its confidence follows from."""

    @property
    def text(self) -> str:
        """What it says."""
        return text_of_characters(self.characters)


def settled(word: Sequence[Character], signs: Sequence[Glyph | None], height: int) -> Settled:
    """Return a word of a line, so many pixels high, as it is to be read."""
    characters, changes = list(word), 0
    best = max(others(characters, signs), key=lambda other: other.probability, default=None)
    likeliest = best
    while best and changes < _MOST_CHANGES and best.probability >= _LIKELY and best.pixels >= 0:
        old = characters[best.place]
        characters[best.place] = Character(
            best.sign, old.middle, best.probability, old.text, 1 - best.probability
        )
        changes += 1
        taken = best.place
        best = max(
            (other for other in others(characters, signs) if other.place != taken),
            key=lambda other: other.probability,
            default=None,
        )
    text = text_of_characters(word)
    likeliest = likeliest if likeliest and likeliest.probability >= _LEAST_PROBABILITY else None
    other = text if changes else likeliest and likeliest.text
    unsettled = best.probability if best else 0.0
    evidence = evidence_of_word(characters, unsettled, height)
    return Settled(tuple(characters), 1 - calibration().wrong.probability(evidence), other, evidence)


def confirmed(read: Settled, again: Sequence[Character]) -> Settled:
    """Return a word after a second look at it alone, drawn larger."""
    text = text_of_characters(again).strip()
    evidence = evidence_of_second_look(read, again)
    confidence = 1 - calibration().again.probability(evidence)
    other = read.other if text == read.text else text or read.other
    return replace(read, confidence=confidence, other=other)


def evidence_of_second_look(read: Settled, again: Sequence[Character]) -> dict[str, float]:
    """Return what a second look says of a word."""
    sure = max(0.0, log_odds(sureness_of(again))) if again else 0.0
    is_same = bare(text_of_characters(again).strip()) == bare(read.text)
    return {
        "before": log_odds(1 - read.confidence),
        "same": float(is_same),
        "same_sureness": sure * is_same,
        "other_sureness": sure * (not is_same),
    }


def evidence_of_word(word: Sequence[Character], unsettled: float, height: int) -> dict[str, float]:
    """Return what is known of a word. `unsettled`: the probability of its likeliest other reading."""
    text, sure = text_of_characters(word), log_odds(sureness_of(word))
    strength = shape_strength(text)
    is_value = strength > 0 or any(map(str.isdigit, text))
    return {
        "sureness": sure,
        "other": max(0.0, log_odds(unsettled) - _UNLIKELY),
        "height": math.log(height),
        "value": float(is_value),
        "value_sureness": sure if is_value else 0.0,
        f"value_of_shape_{strength}": float(is_value),
    }


def others(word: Sequence[Character], signs: Sequence[Glyph | None]) -> Iterator[Other]:
    """Yield what else a word may be."""
    for place, sign in places_alike(word):
        evidence = evidence_of_other(word, place, sign, signs[place])
        probability = calibration().other.probability(evidence)
        yield Other(place, sign, changed(word, place, sign), probability, round(evidence["pixels"]))


def places_alike(word: Sequence[Character]) -> list[tuple[int, str]]:
    """Return which signs may be others: where the word keeps a known shape, and where the recogniser names a rival."""
    text = text_of_characters(word)
    has_digit = any(map(str.isdigit, text))
    places = set(others_alike(text)) if has_digit or "/" in text else set()
    for place, sign in enumerate(word):
        if is_raised(sign.text, sign.rival) or (
            sign.rival_confidence >= _NAMED
            and are_alike(sign.text, sign.rival)
            and (has_digit or (len(word) > 1 and shape_strength(changed(word, place, sign.rival)) >= _KNOWN))
        ):
            places.add((place, sign.rival))
    return sorted(places)


def changed(word: Sequence[Character], place: int, sign: str) -> str:
    """Return a word's text with another sign at a place."""
    return f"{text_of_characters(word[:place])}{sign}{text_of_characters(word[place + 1 :])}"


def evidence_of_other(
    word: Sequence[Character], place: int, sign: str, glyph: Glyph | None
) -> dict[str, float]:
    """Return what speaks for another sign at a place of a word."""
    read = word[place]
    score = read.rival_confidence if read.rival == sign else _LEAST_SCORE
    if {read.text, sign} == _SAME_INK:
        score = max(score, _LEAST_SCORE_OF_SAME)
    before, after = shape_strength(text_of_characters(word)), shape_strength(changed(word, place, sign))
    evidence = {
        "score": math.log(max(score, _LEAST_SCORE) / max(read.confidence, _LEAST_SCORE)),
        f"shape_{before}_to_{after}": 1.0,
        "raised": float(is_raised(read.text, sign)),
        "pixels": 0.0,
    }
    if {read.text, sign} in TOLD_BY_INK:
        look = looks_like(glyph, read.text)
        evidence["pixels"] = float((look == sign) - (look == read.text))
        evidence["ring" if "0" in (read.text, sign) else "stem"] = evidence["pixels"]
    return evidence
