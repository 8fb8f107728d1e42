"""Whether the numbers of a page can be relied on: its values, beside the truth and the page's verdict.

A value is a word with a digit in it: numbers, dates and times as well as codes, `I10` and `HbA1c`.
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
"""What stands beside a value; where a space makes no difference: about units, currencies, a range's dash, strokes."""
_AROUND: Final = ".,:;!?'/"


class Values(NamedTuple):
    """The values of a page beside the true ones."""

    found: int
    true: int
    invented: int
    """Values that were read and are not there."""


def values(text: str) -> list[str]:
    """Return the words with a digit; raised signs, units and the ends of a range by themselves."""
    text = plain(text)
    for separator, between in _SEPARATORS:
        text = separator.sub(between, text)
    words = (word.strip(_AROUND).rstrip("-") for word in text.split())
    return [word for word in words if any(map(str.isdigit, word))]


def compared(read: str, true: str, *, is_whole: bool) -> Values:
    """Return how many true values were read, wherever they stand.

    `is_whole`: the truth is the page's complete text; the text layer of a PDF lacks the text of its pictures.
    """
    written, expected = Counter(values(read)), Counter(values(true))
    invented = (written - expected).total() if is_whole else 0
    return Values((written & expected).total(), expected.total(), invented)


class JudgedPage(NamedTuple):
    """What the two measures of trust ask of a page."""

    verdict: str
    words: Share
    values: Values

    @property
    def has_wrong_number(self) -> bool:
        """Whether a value is missing, or one was read that is not there."""
        return self.values.found < self.values.true or self.values.invented > 0

    @property
    def is_right(self) -> bool:
        """Whether it has all its words and numbers."""
        return self.words.part == self.words.whole and not self.has_wrong_number


def found_share(pages: Sequence[JudgedPage]) -> Share:
    """Return the true values that were read, of all."""
    return Share(sum(page.values.found for page in pages), sum(page.values.true for page in pages))


def ok_with_wrong_number(pages: Sequence[JudgedPage]) -> Share:
    """Return the pages with a wrong number, of those with verdict `ok`."""
    ok = [page for page in pages if page.verdict == Verdict.OK]
    return Share(sum(page.has_wrong_number for page in ok), len(ok))


def right_but_flagged(pages: Sequence[JudgedPage]) -> Share:
    """Return the pages that are neither `ok` nor `blank`, of those with all their words and numbers."""
    right = [page for page in pages if page.is_right]
    return Share(sum(page.verdict not in (Verdict.OK, Verdict.BLANK) for page in right), len(right))
