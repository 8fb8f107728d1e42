"""How a text, a table and marks that were read compare with the truth. Needs `pecia[eval]`."""

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
"""Lines to write on, leaders of a table of contents, and signs that only the file's own font knows: no text."""
HAN: Final = r"\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts written without spaces: a space beside their signs means nothing, and each sign is a word."""
_SPACE_OF_HAN: Final = re.compile(rf"(?<=[{HAN}]) | (?=[{HAN}])")
_WORD: Final = re.compile(rf"[{HAN}]|\d+(?:[.,:/]\d+)*|(?:(?![{HAN}])[^\W\d_])+|[☑☐<>≤≥±+=%]")
_LIKENESS: Final = 85.0
"""Likeness in per cent from which a line of the truth, or a mark's label, counts as read."""
_PLACED: Final = 4
"""Characters that a line must have to be found again."""


class Share(NamedTuple):
    """So many of so many."""

    part: float
    whole: float


def plain(text: str) -> str:
    """Return the text with one sign for those that look alike, and one space for all white space.

    Ligatures, full-width letters, quotation marks, dashes and boxes are made alike; superscripts and subscripts stay.
    """
    raised = ("<super>", "<sub>")
    signs = "".join(
        sign if unicodedata.decomposition(sign).startswith(raised) else unicodedata.normalize("NFKC", sign)
        for sign in text
    )
    return _SPACE_OF_HAN.sub("", " ".join(_RULE.sub(" ", signs.translate(_ONE_SIGN)).split()))


def words(text: str) -> list[str]:
    """Return the words and numbers of a text; every Chinese or Japanese sign is one.

    Punctuation is none, and a number and the unit behind it are two, whether or not a space stands between them.
    """
    return _WORD.findall(plain(text))


def character_errors(read: str, true: str) -> Share:
    """Return the characters to insert, delete or replace, of all that are true. The order counts."""
    true = plain(true)
    return Share(Levenshtein.distance(plain(read), true), len(true))


def word_errors(read: Sequence[str], true: Sequence[str]) -> Share:
    """Return the words to insert, delete or replace, of all that are true. The order counts."""
    return Share(Levenshtein.distance(read, true), len(true))


def found(read: Iterable[str], true: Iterable[str]) -> Share:
    """Return the true words that were read, wherever they stand, of all that are true."""
    expected = Counter(true)
    return Share((Counter(read) & expected).total(), expected.total())


def numeric(words: Iterable[str]) -> list[str]:
    """Return those of the words that are numbers, dates or times."""
    return [word for word in words if word[0].isdigit()]


def doubted(read: Iterable[str], true: Iterable[str], doubts: Iterable[str]) -> tuple[Share, Share]:
    """Return the wrong words that are in doubt, of all wrong ones, and the right ones that are, of all right ones."""
    written, about = Counter(read), Counter(doubts)
    wrong = written - Counter(true)
    right = written - wrong
    seen = about & wrong
    return Share(seen.total(), wrong.total()), Share(((about - seen) & right).total(), right.total())


def cells(read: Sequence[Table], true: Sequence[Table]) -> Share:
    """Return the cells whose place, spans and text are right, of all that are true, empty ones included.

    Each true table is compared with the table that has most of its cells; each table is used once.
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
    """Return the marks whose state is right, of all that are there or were read. A mark is found by its label."""
    left, right = list(read), 0
    for expected in true:
        alike = [(fuzz.ratio(plain(expected.label), plain(one.label)), -n) for n, one in enumerate(left)]
        likeness, number = max(alike, default=(0.0, 0))
        if likeness >= _LIKENESS:
            right += left.pop(-number).state is expected.state
    return Share(right, len(true) + len(left))


def order(read: str, true: str) -> float | None:
    """Return Kendall's tau between the true lines and where they stand in the text that was read.

    1: in order; 0: at random; -1: from the end. Counted are lines that occur once and were found; None if those are
    fewer than two.
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
