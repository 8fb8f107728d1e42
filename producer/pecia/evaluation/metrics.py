"""Metrics that compare text, tables and marks with the truth. Needs `pecia[eval]`."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, NamedTuple, TypeVar

from rapidfuzz import fuzz
from rapidfuzz.distance import Levenshtein

from pecia_schemas.blocks import Mark, Table

T = TypeVar("T")

_ALIKE_SIGNS: Final = {"'": "‘’", '"': "“”", "-": "‐‑–—−", "☑": "☒🗹◉", "☐": "❑❏□▢○", "": "\u00ad"}  # noqa: RUF001
_ONE_SIGN: Final = str.maketrans({sign: one for one, signs in _ALIKE_SIGNS.items() for sign in signs})
_RULE: Final = re.compile(r"_{2,}|\.{4,}|[\ue000-\uf8ff]+")
"""Lines to write on, leaders of a table of contents, and signs of a private font. They are not text."""
HAN: Final = r"\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Character classes of scripts without spaces: spaces beside them are ignored, and each character is a word."""
_SPACE_OF_HAN: Final = re.compile(rf"(?<=[{HAN}]) | (?=[{HAN}])")
_WORD: Final = re.compile(rf"[{HAN}]|\d+(?:[.,:/]\d+)*|(?:(?![{HAN}])[^\W\d_])+|[☑☐<>≤≥±+=%]")
_LIKENESS: Final = 85.0
"""Likeness in per cent from which a line of the truth, or a mark's label, counts as read."""
_PLACED: Final = 4
"""Minimum length of a line that is searched for."""


class Share(NamedTuple):
    """A share as numerator and denominator."""

    part: float
    whole: float


def plain(text: str) -> str:
    """Return the text with look-alike signs unified, and all white space as single spaces.

    Unifies ligatures, full-width letters, quotation marks, dashes and boxes. Superscripts and subscripts stay.
    """
    raised = ("<super>", "<sub>")
    signs = "".join(
        sign if unicodedata.decomposition(sign).startswith(raised) else unicodedata.normalize("NFKC", sign)
        for sign in text
    )
    return _SPACE_OF_HAN.sub("", " ".join(_RULE.sub(" ", signs.translate(_ONE_SIGN)).split()))


def words(text: str) -> list[str]:
    """Return the words and numbers of a text; every Chinese or Japanese character is a word.

    Punctuation does not count. A number and its unit are two words, with or without a space between them.
    """
    return _WORD.findall(plain(text))


def character_errors(read: str, true: str) -> Share:
    """Return the characters to insert, delete or replace, out of all true ones. The order counts."""
    true = plain(true)
    return Share(Levenshtein.distance(plain(read), true), len(true))


def word_errors(read: Sequence[str], true: Sequence[str]) -> Share:
    """Return the words to insert, delete or replace, out of all true ones. The order counts."""
    return Share(Levenshtein.distance(read, true), len(true))


def found(read: Iterable[str], true: Iterable[str]) -> Share:
    """Return the true words that were read in any order, out of all true ones."""
    expected = Counter(true)
    return Share((Counter(read) & expected).total(), expected.total())


def numeric(words: Iterable[str]) -> list[str]:
    """Return the words that are numbers, dates or times."""
    return [word for word in words if word[0].isdigit()]


def doubted(read: Iterable[str], true: Iterable[str], doubts: Iterable[str]) -> tuple[Share, Share]:
    """Return the wrong words in doubt, out of all wrong ones, and the right words in doubt, out of all right ones."""
    written, about = Counter(read), Counter(doubts)
    wrong = written - Counter(true)
    right = written - wrong
    seen = about & wrong
    return Share(seen.total(), wrong.total()), Share(((about - seen) & right).total(), right.total())


def cells(read: Sequence[Table], true: Sequence[Table]) -> Share:
    """Return the cells with right place, spans and text, out of all true ones, including empty ones.

    Each true table is compared with the read table that shares most cells with it; each read table is used once.
    """
    left = [_placed(table) for table in read]
    right, whole = 0, 0
    for expected in map(_placed, true):
        best = max(left, key=lambda one: len(one & expected), default=set())
        right, whole = right + len(best & expected), whole + len(expected)
        if best & expected:
            left.remove(best)
    return Share(right, whole)


def marks(read: Sequence[Mark], true: Sequence[Mark]) -> Share:
    """Return the marks with the right state, out of all that exist or were read. Labels identify marks."""
    left, right = list(read), 0
    for expected in true:
        alike = [(fuzz.ratio(plain(expected.label), plain(one.label)), -n) for n, one in enumerate(left)]
        likeness, number = max(alike, default=(0.0, 0))
        if likeness >= _LIKENESS:
            right += left.pop(-number).state is expected.state
    return Share(right, len(true) + len(left))


def order(read: str, true: str) -> float | None:
    """Return Kendall's tau between the order of the true lines and that of their places in the read text.

    1 is in order, 0 random, -1 reversed. Only lines that occur once and were found count; None if fewer than two do.
    """
    text, lines = plain(read), [plain(line) for line in true.splitlines()]
    whole = "\n".join(lines)
    once = [line for line in lines if _PLACED <= len(line) <= len(text) and whole.count(line) == 1]
    found = [fuzz.partial_ratio_alignment(line, text, score_cutoff=_LIKENESS) for line in once]
    places = [one.dest_start for one in found if one]
    pairs = [(earlier < later) - (earlier > later) for earlier, later in combinations(places, 2)]
    return sum(pairs) / len(pairs) if pairs else None


def _placed(table: Table) -> set[tuple[object, ...]]:
    return {
        (cell.row, cell.column, cell.row_span, cell.column_span, plain(cell.text).replace(" ", ""))
        for cell in table.cells
    }
