"""Chooses between similar readings of a word, and estimates its probability of error, from grammar, scores and pixels.

Values are numbers, doses, dates, times, ranges and codes. Their shapes are those of ISO 8601 and of dates as they are
written, of UCUM's units, ICD-10, ATC, LOINC and OPS. `benchmarks/calibrate.py` fits and writes the logistic models.

Needs OpenCV (pecia[cpu]).
"""

import math
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

from pecia_workers.layout.characters import Character, sureness_of, text_of_characters
from pecia_workers.layout.glyph_shapes import LOW, Glyph, digit_height, looks_like
from pecia_workers.layout.lines import is_unit

_LEAST_SCORE: Final = 1e-3
"""Score of a rival that the recogniser does not report."""
_SAME_INK: Final = {"I", "l"}
_LEAST_SCORE_OF_SAME: Final = 0.1
"""The same for signs that most sans-serif faces draw alike: the recogniser distinguishes them only by words."""
_NAMED: Final = 0.02
"""Score from which a rival counts for any shape of word."""
_KNOWN: Final = 2
"""Shape strength from which a word without a digit may be a value."""
_MOST_CHANGES: Final = 2
_LIKELY: Final = 0.5
_LEAST_PROBABILITY: Final = 0.05
"""Probability from which another reading counts."""
_UNLIKELY: Final = 1e-3
"""Probability up to which another reading needs no second look."""


class Other(NamedTuple):
    """A word with another sign at one place."""

    place: int
    sign: str
    text: str
    probability: float
    """Probability that it is the right one of the two."""
    pixels: int
    """1 where the sign's shape supports it, -1 where it contradicts it, 0 where it is unclear."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A word as it should be read."""

    characters: tuple[Character, ...]
    wrong: float
    """Probability that it is wrong, except in similar signs."""
    unsettled: float
    """Probability that it is a similar word."""
    other: str | None
    """The next likely reading, if any."""
    evidence: Mapping[str, float]
    """Evidence from which `wrong` is computed."""

    @property
    def confidence(self) -> float:
        """Probability that it is right."""
        return (1 - self.wrong) * (1 - self.unsettled)

    @property
    def text(self) -> str:
        """Its text."""
        return text_of_characters(self.characters)


def settled(word: Sequence[Character], signs: Sequence[Glyph | None], height: int) -> Settled:
    """Return a word of a line, `height` pixels high, as it should be read."""
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
    """Return the likeliest similar word, without those that differ at settled places."""
    rest = (other for other in others(word, signs) if other.place not in settled)
    return max(rest, key=lambda other: other.probability, default=None)


def confirmed(read: Settled, again: Sequence[Character]) -> Settled:
    """Return a word after a second, enlarged look."""
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
    """Return the evidence of a second look. `before`: earlier probability that the word is wrong, or another."""
    sure = max(0.0, log_odds(sureness_apart(again))) if again else 0.0
    first, second = bare(text), bare(text_of_characters(again).replace(" ", ""))
    said = "same" if first == second else "alike" if looks_the_same(first, second) else "other"
    return {"before": log_odds(before), said: 1.0, f"{said}_sureness": sure}


def evidence_of_word(word: Sequence[Character], height: int) -> dict[str, float]:
    """Return the features of a word, without its similar signs."""
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
    """Return the confidence of a word without similar signs, for which ink and shape are better evidence."""
    signs, alike = list(word), set(places_alike(word))
    for place, sign in enumerate(word):
        if (place, sign.rival) in alike:
            signs[place] = sign._replace(confidence=sureness_of_either(sign))
    return sureness_of(signs)


def looks_the_same(text: str, other: str) -> bool:
    """Return whether two texts differ only in similar signs."""
    return len(text) == len(other) and all(
        first == second or are_alike(first, second) or is_raised(first, second) or is_raised(second, first)
        for first, second in zip(text, other, strict=True)
    )


def others(word: Sequence[Character], signs: Sequence[Glyph | None]) -> Iterator[Other]:
    """Yield the other possible readings of a word."""
    for place, sign in places_alike(word):
        evidence = evidence_of_other(word, place, sign, signs)
        probability = calibration().other.probability(evidence)
        yield Other(place, sign, changed(word, place, sign), probability, round(evidence["pixels"]))


def places_alike(word: Sequence[Character]) -> list[tuple[int, str]]:
    """Return the signs that may be others: where the word keeps a known shape, or the recogniser reports a rival."""
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
    """Return the evidence for another sign at a place of a word."""
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


_NUMBER: Final = r"(?:[1-9]\d{0,2}(?:[,.'’]\d{3})+|0|[1-9]\d*)(?:[.,]\d+)?"  # noqa: RUF001  Swiss thousands
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:1[89]|20)\d\d"
_MONTH_NAME: Final = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
_TIME: Final = r"(?:[01]?\d|2[0-4])[:.][0-5]\d(?:[:.][0-5]\d)?(?:[aApP][mM]|h)?"
_EXPONENT: Final = r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"
_NAMES: Final = (
    r"H[Bb]A1c|(?:[A-Z][a-z]*-?)?(?:B1|B2|B3|B6|B12|D2|D3|K1|K2|Q10)|[fF]?T[34]|C[34]|CD\d{1,3}\+?|CA\d{2,3}"
    r"|[tpsPS]?C?O2|[pS][paevtc]?C?O2|CO2|H2O|N2O|Ig[GA][1-4]|H\d{1,2}N\d{1,2}|[pcy]?T(?:\d[a-d]?|is)N\d[a-c]?M[01]"
    r"|[pcG][TNM]?\d[a-d]?|FEV1|P450|S100|[kdcmµ]?m[²³]|ft[²³]|in[²³]|[CTLS]\d{1,2}[/-][CTLS]?\d{1,2}|COVID-19|NT-proBNP1"
)
_SHAPES: Final = tuple(
    re.compile(shape)
    for shape in (
        rf"[+\-±<>≤≥~≈№$€£¥]*{_NUMBER}(?:{_EXPONENT})?[%‰°]?",
        rf"{_NUMBER}(?:[-–/:xX×*]{_NUMBER}){{1,3}}%?",  # noqa: RUF001  a range, a ratio, a schedule
        rf"{_DAY}[./-]{_MONTH}[./-](?:{_YEAR}|\d\d)?",
        rf"{_MONTH}[./-]{_DAY}[./-](?:{_YEAR}|\d\d)",
        rf"{_YEAR}[-/.](?:0[1-9]|1[0-2])(?:[-/.](?:0[1-9]|[12]\d|3[01]))?(?:[T ]{_TIME}Z?)?",
        rf"{_DAY}(?:st|nd|rd|th)?[-./]?{_MONTH_NAME}[-./,]?(?:{_YEAR}|'?\d\d)?",
        _TIME,
        r"[A-TV-Z]\d[\dAB](?:\.[\dA-Z]{1,4})?",
        r"[A-DGHJ-NPRSV](?:0[1-9]|1[0-6]|20|5[1-4])[A-Z]{2}\d\d",
        r"\d-\d{2,3}\.[\da-z]{1,2}",
        r"\d+(?:st|nd|rd|th)",
        r"[qQ]\d{1,2}[hH]",
        rf"10{_EXPONENT}",
    )
)
_NAME: Final = re.compile(_NAMES)
_POSSIBLE: Final = tuple(
    re.compile(shape)
    for shape in (
        r"[A-Z]{1,3}-?\d{1,12}",  # a room, a lot, an article, an insurance
        r"\d{1,3}[A-Fa-f]",
        r"[+(]?\d[\d\-/:)]*\d",  # a telephone, an account: zeros may come first
        r"(?:m|cm|mm|km|ft|in)[23]",
    )
)
_WITH_UNIT: Final = re.compile(
    rf"((?:{_NUMBER}(?:[-–/]{_NUMBER})?|10{_EXPONENT})(?:{_EXPONENT})?)(/?)([^\W\d_µμ°].*|[%‰°µμ].*)"  # noqa: RUF001
)
_AROUND: Final = ".,;:!?()[]{}\"'“”‘’*_|"  # noqa: RUF001  all of them
_GROUPS: Final = ("1Il|", "0Oo", "5Ss$", "8B", "2Zz", "9gq", "6Gb", "Cc", "Uu", "Vv", "Ww", "Xx")
"""Groups of signs that are confused with each other."""
_ALIKE: Final = {sign: group.replace(sign, "") for group in _GROUPS for sign in group}
_RAISED: Final = dict(zip("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True))
TOLD_BY_INK: Final = ({"0", "O"}, {"1", "I"})
"""Signs whose shapes tell them apart in nearly every face."""
_MOST_SIGNS: Final = 12


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return word.strip(_AROUND)


@lru_cache(maxsize=8192)
def shape_strength(word: str) -> int:
    """Return how well a word's shape is known.

    3: a known name or unit; 2: the shape of a value, with or without unit; 1: possibly a value; 0: no value.
    """
    text = bare(word)
    if is_unit(text) or _NAME.fullmatch(text):
        return 3
    if any(shape.fullmatch(text) for shape in _SHAPES):
        return 2
    parts = _WITH_UNIT.fullmatch(text)
    if parts and is_unit(parts[3]):
        return 2
    return int(any(shape.fullmatch(text) for shape in _POSSIBLE))


def are_alike(sign: str, other: str) -> bool:
    """Return whether two signs are confused with each other."""
    return other in _ALIKE.get(sign, "")


def is_raised(sign: str, other: str) -> bool:
    """Return whether the other sign is the same digit, raised."""
    return _RAISED.get(sign) == other


@lru_cache(maxsize=8192)
def others_alike(word: str) -> tuple[tuple[int, str], ...]:
    """Return the signs of a word that may be others, by place, where the word keeps a known shape.

    In a number only the first sign, since codes begin with a letter; none in a single sign.
    """
    return tuple(_others_alike(word))


def _others_alike(word: str) -> Iterator[tuple[int, str]]:
    text = bare(word)
    start, known = word.find(text), shape_strength(word)
    is_number = known > 0 and not any(map(str.isalpha, text))
    places = range(start, start + (int(len(text) > 1) if is_number else min(len(text), _MOST_SIGNS)))
    for place in places:
        for sign in _ALIKE.get(word[place], ""):
            changed = f"{word[:place]}{sign}{word[place + 1 :]}"
            least = 1 if {word[place], sign} in TOLD_BY_INK else max(1, known)
            if shape_strength(changed) >= least:
                yield place, sign


_MOST: Final = 30.0
"""Bound of a sum of evidence: beyond it the probability is 0 or 1 to thirteen places."""
MODELS: Final = ("other", "wrong", "again", "other_again")


@dataclass(frozen=True, slots=True)
class Logistic:
    """A logistic model: the log-odds are a weighted sum of evidence."""

    weights: Mapping[str, float]

    def probability(self, evidence: Mapping[str, float]) -> float:
        """Return the probability; evidence without a weight is ignored."""
        total = self.weights.get("constant", 0.0)
        total += sum(self.weights.get(name, 0.0) * value for name, value in evidence.items())
        return 1 / (1 + math.exp(-min(max(total, -_MOST), _MOST)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted models."""

    other: Logistic
    """Probability that a word was misread as another that looks alike."""
    wrong: Logistic
    """Probability that a word is wrong, except in similar signs."""
    again: Logistic
    """The same for a word after a second look."""
    other_again: Logistic
    """Probability that such a word is the other one."""
    doubtful: float
    """Probability of error from which a word gets a second look, and after that a doubt."""


@cache
def calibration() -> Calibration:
    """Return the calibration measured for the CPU engine."""
    known = tomllib.loads(files("pecia_workers.layout").joinpath("calibration.toml").read_text("utf-8"))
    other, wrong, again, other_again = (Logistic(known[name]) for name in MODELS)
    return Calibration(other, wrong, again, other_again, known["doubtful"])


def log_odds(probability: float, least: float = 1e-4) -> float:
    """Return the log-odds, bounded where a recogniser's confidence carries no information."""
    bounded = min(max(probability, least), 1 - least)
    return math.log(bounded / (1 - bounded))
