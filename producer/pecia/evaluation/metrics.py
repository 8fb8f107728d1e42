"""How what was read compares with the truth: text, words, values, tables and marks. Needs `pecia[eval]`.

A value is a word with a digit in it: numbers, dates and times as well as codes, `I10` and `HbA1c`.

Pairs of neighbouring cells forgive a row that is missing and punish cells that are joined, and a table that is not
there counts as wrong: M. Göbel, T. Hassan, E. Oro, G. Orsi, "A Methodology for Evaluating Algorithms for Table
Understanding in PDF Documents", DocEng (2012).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict
from rapidfuzz import fuzz
from rapidfuzz.distance import Levenshtein

from pecia.evaluation.truth import TrueDocument
from pecia_schemas.blocks import Cell, Doubt, DoubtReason, Mark, Table
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Identity, Subject

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

    @classmethod
    def total(cls, shares: Iterable[tuple[float, float]]) -> Self:
        """Return the sums of both."""
        parts, wholes = 0.0, 0.0
        for part, whole in shares:
            parts, wholes = parts + part, wholes + whole
        return cls(parts, wholes)

    @property
    def rate(self) -> float | None:
        """The quotient; None of nothing."""
        return self.part / self.whole if self.whole else None


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


Pair: TypeAlias = tuple[str, str, str]
"""`right` or `below`, the text of a cell, and that of its neighbour in this direction."""

_NUMERIC: Final = re.compile(r"\W*\d[\d\W]*")
_LEADER: Final = re.compile(r"\.{3,}")
_HALF: Final = 0.5


class Overlap(NamedTuple):
    """Number of read pairs that are true, of all read pairs and of all true pairs."""

    right: int = 0
    read: int = 0
    true: int = 0

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall, or None without pairs."""
        return 2 * self.right / (self.read + self.true) if self.read + self.true else None


def adjacency(read: Sequence[Table], true: Sequence[Table]) -> Overlap:
    """Return how many pairs of neighbouring cells agree. Empty cells between neighbours are skipped."""
    pairs, expected = (Counter(chain.from_iterable(map(_pairs, tables))) for tables in (read, true))
    return Overlap((pairs & expected).total(), pairs.total(), expected.total())


def cells(read: Sequence[Table], true: Sequence[Table]) -> Share:
    """Return the cells whose place, spans and text are right, of all that are true, empty ones included."""
    matched = _matched(map(_placed, read), map(_placed, true))
    return Share.total((len(right), len(expected)) for right, expected in matched)


def in_place(read: Sequence[Table], true: Sequence[Table]) -> list[tuple[Share, Share]]:
    """Return of each true table the cells with text that stand in their row and column, all and those with numbers."""
    return [
        (
            Share(len(right), len(expected)),
            Share(
                sum(_is_numeric(text) for _, _, text in right),
                sum(_is_numeric(text) for _, _, text in expected),
            ),
        )
        for right, expected in _matched(map(_texts, read), map(_texts, true))
    ]


def _matched(read: Iterable[set[T]], true: Iterable[set[T]]) -> Iterator[tuple[set[T], set[T]]]:
    """Yield, of each true table, the right cells and all: right are those of the table that has most of them.

    Each table that was read is used once.
    """
    remaining = list(read)
    for expected in true:
        best: set[T] = max(remaining, key=lambda table: len(table & expected), default=set())
        if best & expected:
            remaining.remove(best)
        yield best & expected, expected


def destroyed(shares: Sequence[Share], doubts: Sequence[Doubt]) -> Share:
    """Return the undoubted tables with less than half of their cells in place, out of all tables of the page."""
    doubted = any(doubt.reason is DoubtReason.TABLE_UNCLEAR for doubt in doubts)
    lost = sum(share.part < _HALF * share.whole for share in shares)
    return Share(0 if doubted else lost, len(shares))


def _pairs(table: Table) -> Iterator[Pair]:
    """Yield the pairs of each cell with text and its neighbours on the right and below, each pair once."""
    owners: dict[tuple[int, int], Cell] = {}
    for cell in table.cells:
        if _compact(cell.text):
            rows = range(cell.row, cell.row + cell.row_span)
            columns = range(cell.column, cell.column + cell.column_span)
            owners |= {(row, column): cell for row in rows for column in columns}
    by_row, by_column = sorted(owners), sorted(owners, key=lambda place: place[::-1])
    for way, line, places in (("right", 0, by_row), ("below", 1, by_column)):
        neighbours = {
            (owners[first], owners[second]): None
            for first, second in pairwise(places)
            if first[line] == second[line] and owners[first] is not owners[second]
        }
        for one, other in neighbours:
            yield way, _compact(one.text), _compact(other.text)


def _texts(table: Table) -> set[tuple[int, int, str]]:
    """Return the texts of a table with their rows and columns, counted from the first row and column with text."""
    filled = [(cell.row, cell.column, text) for cell in table.cells if (text := _compact(cell.text))]
    top = min((row for row, _, _ in filled), default=0)
    left = min((column for _, column, _ in filled), default=0)
    return {(row - top, column - left, text) for row, column, text in filled}


def _is_numeric(text: str) -> bool:
    return _NUMERIC.fullmatch(text) is not None


def _compact(text: str) -> str:
    """Return a text without white space and leaders."""
    return _LEADER.sub("", plain(text).replace(" ", ""))


def _placed(table: Table) -> set[tuple[object, ...]]:
    return {
        (cell.row, cell.column, cell.row_span, cell.column_span, plain(cell.text).replace(" ", ""))
        for cell in table.cells
    }


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


class BundleScore(BaseModel):
    """Scores of one bundle. Shares are counts, so that those of many bundles can be added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    found: Share
    """True beginnings that were found, out of all but the first."""
    right: Share
    """Reported beginnings that are true, out of all reported but the first."""
    whole: bool
    """Whether all documents are the true ones, page by page."""
    kinds: Share
    """Documents of the right kind, out of those of known kind. Missing ones count as wrong, also in `identities`."""
    identities: Share
    """Documents whose identity has all that is known of their patient."""
    untold: Share
    """Documents with pages of two patients and no conflict, out of all reported ones."""
    false_conflicts: Share
    """Documents of one patient with a conflict, out of all reported ones."""


class BundleSummary(BaseModel):
    """Summary of many bundles. None where no bundle has a value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: int
    recall: float | None
    precision: float | None
    whole: float
    kinds: float | None
    identities: float | None
    untold: float | None
    false_conflicts: float | None

    @classmethod
    def of(cls, scores: Sequence[BundleScore]) -> "BundleSummary":
        """Return the summary of at least one bundle."""

        def rate(name: str) -> float | None:
            return Share.total(getattr(one, name) for one in scores).rate

        return cls(
            bundles=len(scores),
            recall=rate("found"),
            precision=rate("right"),
            whole=sum(one.whole for one in scores) / len(scores),
            kinds=rate("kinds"),
            identities=rate("identities"),
            untold=rate("untold"),
            false_conflicts=rate("false_conflicts"),
        )


def score_bundle(bundle: Bundle | None, truth: Sequence[TrueDocument], *, file: str) -> BundleScore:
    """Compare the documents of a bundle with the true ones; None if the bundle was not read."""
    told = bundle.split.documents if bundle and bundle.split else ()
    by_start = {document.pages[0]: document for document in told}
    true_by_start = {document.numbers[0]: document for document in truth}
    first = min(true_by_start)
    right = [start for start in by_start if start in true_by_start]
    patients = {page: document.patient for document in truth for page in document.numbers if document.patient}
    mixed = [part for part in told if len({patients[page] for page in part.pages if page in patients}) > 1]
    pairs = [(document, by_start.get(start)) for start, document in true_by_start.items()]
    kinds = [part and part.kind is document.kind for document, part in pairs if document.kind]
    named = [
        part is not None and _names(part.identity, document.identity)
        for document, part in pairs
        if document.identity
    ]
    return BundleScore(
        file=file,
        found=Share(len(set(right) - {first}), len(true_by_start) - 1),
        right=Share(len(set(right) - {first}), len(set(by_start) - {first})),
        whole=[list(part.pages) for part in told] == [document.numbers for document in truth],
        kinds=Share(sum(map(bool, kinds)), len(kinds)),
        identities=Share(sum(named), len(named)),
        untold=Share(sum(not part.has_conflict for part in mixed), len(told)),
        false_conflicts=Share(sum(part.has_conflict and part not in mixed for part in told), len(told)),
    )


def _names(identity: Identity, patient: Subject) -> bool:
    """Return whether an identity has all known data of the patient: names in any order, numbers without spaces."""
    return (
        _words(identity.name) == _words(patient.name)
        and identity.birth_date == patient.birth_date
        and _numbers(patient.record_numbers) <= _numbers(identity.record_numbers)
        and _numbers(patient.insurance_numbers) <= _numbers(identity.insurance_numbers)
    )


def _words(name: str | None) -> list[str]:
    return sorted("".join(sign if sign.isalpha() else " " for sign in (name or "").casefold()).split())


def _numbers(written: Iterable[str]) -> set[str]:
    return {"".join(filter(str.isalnum, number.upper())) for number in written}
