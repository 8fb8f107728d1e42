"""Measures how reliable the numbers of a page are, by its values, the true values and the page's verdict.

A value is a word with a digit: numbers, dates, times, and codes such as `I10` and `HbA1c`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from pecia.evaluation.metrics import HAN, Share, plain
from pecia_schemas.results import Verdict

_RAISED: Final = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_LETTER: Final = r"[^\W\d_]"
_SEPARATORS: Final = (
    (re.compile(rf"[{HAN}，。、：；]"), " "),  # noqa: RUF001  Chinese has its own signs
    (re.compile(rf"(?<=[^\s{_RAISED}])(?=[{_RAISED}])(?<![{_RAISED}])"), " "),
    (re.compile(r"[()\[\]{}|\"*#=<>≤≥~$€£¥₩%&@+±;_]"), " "),
    (re.compile(r"(?<=\d)\s*[xX×]\s*(?=\d)"), " "),  # noqa: RUF001  the sign of multiplication
    (re.compile(r"(?<=\w)\s*-\s*(?=\w)"), " "),
    (re.compile(rf"(?<={_LETTER})\s*[/.,:]\s*(?=\d)|(?<=\d)\s*[/.,:]\s*(?={_LETTER})"), " "),
    (re.compile(r"(?<=\d)\s*/\s*(?=\d)"), "/"),
    (re.compile(rf"(?<![\w.,])(\d+(?:[.,:]\d+)*)(?={_LETTER})"), r"\1 "),
    (re.compile(r"\b(RM|USD|EUR|GBP|KRW|CNY)(?=\d)"), r"\1 "),
)
"""Separators around values, and places where a space makes no difference: units, currencies, ranges and strokes."""
_AROUND: Final = ".,:;!?'/"


class Values(NamedTuple):
    """Numbers of values on a page, compared with the truth."""

    found: int
    true: int
    invented: int
    """Values that were read and do not exist."""


def values(text: str) -> list[str]:
    """Return the words with a digit. Raised signs, units and the ends of a range are separated."""
    text = plain(text)
    for separator, between in _SEPARATORS:
        text = separator.sub(between, text)
    words = (word.strip(_AROUND).rstrip("-") for word in text.split())
    return [word for word in words if any(map(str.isdigit, word))]


def compared(read: str, true: str, *, is_whole: bool) -> Values:
    """Return the numbers of true, found and invented values, in any order.

    `is_whole` means that the truth is the page's complete text; a PDF's text layer lacks the text of its pictures.
    """
    written, expected = Counter(values(read)), Counter(values(true))
    invented = (written - expected).total() if is_whole else 0
    return Values((written & expected).total(), expected.total(), invented)


class JudgedPage(NamedTuple):
    """The input of the two measures of trust for a page."""

    verdict: str
    words: Share
    values: Values

    @property
    def has_wrong_number(self) -> bool:
        """Whether a value is missing or invented."""
        return self.values.found < self.values.true or self.values.invented > 0

    @property
    def is_right(self) -> bool:
        """Whether all words and numbers of the page are right."""
        return self.words.part == self.words.whole and not self.has_wrong_number


def found_share(pages: Sequence[JudgedPage]) -> Share:
    """Return the true values that were read, out of all."""
    return Share(sum(page.values.found for page in pages), sum(page.values.true for page in pages))


def ok_with_wrong_number(pages: Sequence[JudgedPage]) -> Share:
    """Return the pages with a wrong number, out of those with verdict `ok`."""
    ok = [page for page in pages if page.verdict == Verdict.OK]
    return Share(sum(page.has_wrong_number for page in ok), len(ok))


def right_but_flagged(pages: Sequence[JudgedPage]) -> Share:
    """Return the pages that are neither `ok` nor `blank`, out of those with all words and numbers right."""
    right = [page for page in pages if page.is_right]
    return Share(sum(page.verdict not in (Verdict.OK, Verdict.BLANK) for page in right), len(right))
