"""What values look like: numbers, doses, dates, times, ranges and codes; and what else a word may be that looks alike.

The shapes are those of ISO 8601 and of dates as they are written, of UCUM's units, ICD-10, ATC, LOINC and OPS.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pecia_workers.layout.lines import is_unit

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
_KNOWN: Final = tuple(
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
"""Signs that are taken for each other."""
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

    3: it is a name or a unit that is known; 2: its shape is that of a value, with its unit or without;
    1: it may be a value; 0: it is none.
    """
    text = bare(word)
    if is_unit(text) or _NAME.fullmatch(text):
        return 3
    if any(shape.fullmatch(text) for shape in _KNOWN):
        return 2
    parts = _WITH_UNIT.fullmatch(text)
    if parts and is_unit(parts[3]):
        return 2
    return int(any(shape.fullmatch(text) for shape in _POSSIBLE))


def are_alike(sign: str, other: str) -> bool:
    """Return whether two signs are taken for each other."""
    return other in _ALIKE.get(sign, "")


def is_raised(sign: str, other: str) -> bool:
    """Return whether the other sign is the same digit, raised."""
    return _RAISED.get(sign) == other


@lru_cache(maxsize=8192)
def others_alike(word: str) -> tuple[tuple[int, str], ...]:
    """Return which signs of a word may be others: place and sign, where the word keeps a known shape.

    Of a number it is the first, for codes begin with a letter; of a sign alone it is none.
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
