"""Which of two readings that look alike a word is, and how likely it is wrong: grammar, scores and pixels together.

Needs OpenCV (pecia[cpu]).
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pecia_workers.layout.calibration import calibration, log_odds
from pecia_workers.layout.characters import Character, sureness_of, text_of_characters
from pecia_workers.layout.glyph_shapes import LOW, Glyph, digit_height, looks_like
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
_UNLIKELY: Final = 1e-3
"""Of another reading, up to which a second look says no more of it."""


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
    wrong: float
    """Probability that it is wrong, signs that look alike apart."""
    unsettled: float
    """Probability that it is another word that looks alike."""
    other: str | None
    """The next likely reading, if there is one."""
    evidence: Mapping[str, float]
    """What `wrong` follows from."""

    @property
    def confidence(self) -> float:
        """Probability that it is right."""
        return (1 - self.wrong) * (1 - self.unsettled)

    @property
    def text(self) -> str:
        """What it says."""
        return text_of_characters(self.characters)


def settled(word: Sequence[Character], signs: Sequence[Glyph | None], height: int) -> Settled:
    """Return a word of a line, so many pixels high, as it is to be read."""
    characters, taken, certain = list(word), set[int](), 1.0
    best = likeliest = likeliest_other(characters, signs)
    while best and len(taken) < _MOST_CHANGES and best.probability >= _LIKELY and best.pixels >= 0:
        old, sure = characters[best.place], sureness_of_either(characters[best.place])
        characters[best.place] = Character(best.sign, old.middle, sure, old.text)
        taken.add(best.place)
        certain *= best.probability
        best = likeliest_other(characters, signs, taken)
    unsettled = 1 - certain * (1 - best.probability if best else 1.0)
    likeliest = likeliest if likeliest and likeliest.probability >= _LEAST_PROBABILITY else None
    other = text_of_characters(word) if taken else likeliest and likeliest.text
    evidence = evidence_of_word(characters, height)
    return Settled(tuple(characters), calibration().wrong.probability(evidence), unsettled, other, evidence)


def likeliest_other(
    word: Sequence[Character], signs: Sequence[Glyph | None], settled: Container[int] = ()
) -> Other | None:
    """Return the likeliest word that looks alike, those apart that differ at places which are settled."""
    rest = (other for other in others(word, signs) if other.place not in settled)
    return max(rest, key=lambda other: other.probability, default=None)


def confirmed(read: Settled, again: Sequence[Character]) -> Settled:
    """Return a word after a second look at it alone, drawn larger."""
    text = text_of_characters(again).strip()
    known = calibration()
    wrong = known.again.probability(evidence_of_second_look(read.wrong, read.text, again))
    unsettled = read.unsettled
    if unsettled > _UNLIKELY:
        evidence = evidence_of_second_look(unsettled, read.text, again)
        unsettled = known.other_again.probability(evidence)
    other = read.other if text == read.text else text or read.other
    return replace(read, wrong=wrong, unsettled=unsettled, other=other)


def evidence_of_second_look(before: float, text: str, again: Sequence[Character]) -> dict[str, float]:
    """Return what a second look says of a word. `before`: how likely it seemed that it is wrong, or another."""
    sure = max(0.0, log_odds(sureness_apart(again))) if again else 0.0
    first, second = bare(text), bare(text_of_characters(again).replace(" ", ""))
    said = "same" if first == second else "alike" if looks_the_same(first, second) else "other"
    return {"before": log_odds(before), said: 1.0, f"{said}_sureness": sure}


def evidence_of_word(word: Sequence[Character], height: int) -> dict[str, float]:
    """Return the features of a word, without its look-alike signs."""
    text, sure = text_of_characters(word), log_odds(sureness_apart(word))
    strength = shape_strength(text)
    is_value = strength > 0 or any(map(str.isdigit, text))
    return {
        "sureness": sure,
        "height": math.log(height),
        "value": float(is_value),
        "value_sureness": sure if is_value else 0.0,
        f"value_of_shape_{strength}": float(is_value),
    }


def sureness_of_either(sign: Character) -> float:
    """Return the probabilities of the sign that was read and of its rival."""
    return min(1.0, sign.confidence + sign.rival_confidence)


def sureness_apart(word: Sequence[Character]) -> float:
    """Return the confidence of a word apart from signs that look alike, of which the ink and the shape tell more."""
    signs, alike = list(word), set(places_alike(word))
    for place, sign in enumerate(word):
        if (place, sign.rival) in alike:
            signs[place] = sign._replace(confidence=sureness_of_either(sign))
    return sureness_of(signs)


def looks_the_same(text: str, other: str) -> bool:
    """Return whether two texts differ by signs that look alike."""
    return len(text) == len(other) and all(
        first == second or are_alike(first, second) or is_raised(first, second) or is_raised(second, first)
        for first, second in zip(text, other, strict=True)
    )


def others(word: Sequence[Character], signs: Sequence[Glyph | None]) -> Iterator[Other]:
    """Yield what else a word may be."""
    for place, sign in places_alike(word):
        evidence = evidence_of_other(word, place, sign, signs)
        probability = calibration().other.probability(evidence)
        yield Other(place, sign, changed(word, place, sign), probability, round(evidence["pixels"]))


def places_alike(word: Sequence[Character]) -> list[tuple[int, str]]:
    """Return which signs may be others: where the word keeps a known shape, and where the recogniser names a rival."""
    text = text_of_characters(word)
    has_digit = any(map(str.isdigit, text))
    places = set(others_alike(text)) if has_digit or "/" in text else set()
    is_part = len(bare(text)) > 1  # a sign alone is no unit that looks like it
    for place, sign in enumerate(word):
        is_named = sign.rival_confidence >= _NAMED and are_alike(sign.text, sign.rival)
        if is_raised(sign.text, sign.rival) or (
            is_named
            and (is_part or sign.rival == "$")
            and (has_digit or shape_strength(changed(word, place, sign.rival)) >= _KNOWN)
        ):
            places.add((place, sign.rival))
    return sorted(places)


def changed(word: Sequence[Character], place: int, sign: str) -> str:
    """Return a word's text with another sign at a place."""
    return f"{text_of_characters(word[:place])}{sign}{text_of_characters(word[place + 1 :])}"


def evidence_of_other(
    word: Sequence[Character], place: int, sign: str, signs: Sequence[Glyph | None]
) -> dict[str, float]:
    """Return what speaks for another sign at a place of a word."""
    read = word[place]
    score = read.rival_confidence if read.rival == sign else _LEAST_SCORE
    has_same_ink = {read.text, sign} == _SAME_INK
    if has_same_ink:
        score = max(score, _LEAST_SCORE_OF_SAME)
    before, after = shape_strength(text_of_characters(word)), shape_strength(changed(word, place, sign))
    evidence = {
        "score": math.log(max(score, _LEAST_SCORE) / max(read.confidence, _LEAST_SCORE)),
        f"shape_{before}_to_{after}": 1.0,
        "raised": float(is_raised(read.text, sign)),
        "same_ink": float(has_same_ink),
        "pixels": 0.0,
    }
    is_low = len({read.text, sign} & LOW) == 1
    if is_low or {read.text, sign} in TOLD_BY_INK:
        look = looks_like(signs[place], read.text + sign, digit_height(signs, word, place))
        evidence["pixels"] = float((look == sign) - (look == read.text))
        evidence["size" if is_low else "ring" if "0" in (read.text, sign) else "stem"] = evidence["pixels"]
    return evidence
