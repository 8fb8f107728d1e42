"""Walls between rows and columns without drawn lines: repeated white space and aligned numbers.

Lengths are in heights of a line.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Line, Table
from pecia_workers.layout.lines import around, middle, runs_of, words_of

NUMBER: Final = re.compile(
    r"[^\w]*\d[\d.,:/%()\[\]\s+\u2212\u2013\u00b1*-]*[^\w]*[a-z]?|[-\u2013\u2014\u2212*.]+|n\.?/?a\.?|:"
)
_VALUE: Final = re.compile(r"[-+\u2212<>]?[$\u20ac\u00a3]?\d[\d.,:/]*%?")
_THOUSANDS: Final = re.compile(r"\d{3}([.,]\d+)?")
SIGN: Final = re.compile(r"[^\w\s]{1,2}")
_SPACE: Final = 0.8
"""White space between two words that may belong to two cells."""
_GAP: Final = 0.3
_SURE_GAP, _SURE = 0.1, 0.75
"""Narrowest white space between columns; the same where it divides most rows."""
_CROSSED: Final = 0.15
"""Share of rows that may cross that space, such as a heading of two columns."""
_TWICE: Final = re.compile(
    r"(?<!\S)(?!999 999(?!\S))((?:[^9\s]+ ){0,2}[^\s;,]*9[^\s;,]*(?: [^9\s]+)?) \1(?!\S)"
    r"|(?<!\S)(?:9{4}-99-99|9{1,2}[./-]9{1,2}[./-](?:9{4}|99)?){2}"
)
"""Two names of one form in a head, as `13.03. 21.03.` or `Day 1 Day 2`, also dates without a space between them."""
_FLAG: Final = r"[(\[]?(?:[HL]{1,2}|[\u2191\u2193*!+])[)\]]?"
_FLAGGED: Final = rf"[<>]?\d[\d.,]*\s*{_FLAG}|{_FLAG}"
_BEHIND_FLAG: Final = rf"{_FLAG}\s+[<>]?\d[\d.,]*(?:\s*{_FLAG})?"
_FLAG_BETWEEN: Final = r"\d\s*(?:[HL]{1,2}|[\u2191\u2193])\s+[<>]?\d"
_JOINED: Final = 3
_HEAD: Final = 2
_NAMED: Final = 0.7
"""Rows of two columns of names, relative to each other."""
_MIN_PARTED, _PARTED = 2, 0.5
"""Least rows with text on both sides of a wall that is not drawn, and their share of rows with text."""


def atoms_of(piece: Line, height: float) -> Iterator[Line]:
    """Yield the parts of a piece between wide white spaces; of a piece of several numbers, each number."""
    words = words_of(piece)
    starts = [
        0,
        *(
            number
            for number, (before, after) in enumerate(pairwise(words), 1)
            if after.box.left - before.box.right > _SPACE * height or _are_numbers(before.text, after.text)
        ),
    ]
    if len(starts) == 1:
        yield piece
        return
    for start, end in pairwise([*starts, len(words)]):
        part = words[start:end]
        yield Line(
            text=" ".join(word.text for word in part),
            box=around(word.box for word in part),
            confidence=piece.confidence,
            words=part if piece.words else (),
        )


def _are_numbers(before: str, after: str) -> bool:
    """Return whether two words are separate numbers, rather than thousands of one."""
    return (
        all(_VALUE.fullmatch(word) for word in (before, after))
        and not (_THOUSANDS.fullmatch(after) and len(before.strip("-+\u2212")) <= 3)  # noqa: PLR2004
    )


def _are_decimals(before: str, after: str) -> bool:
    """Return whether two words are separate numbers, and one of them no whole one."""
    return _are_numbers(before, after) and any(re.search(r"\d[.,]\d", word) for word in (before, after))


def is_number(text: str) -> bool:
    """Return whether a text is a number, or the sign for an unknown value."""
    return NUMBER.fullmatch(text.strip()) is not None


def looks_joined(table: Table) -> bool:
    """Return whether a cell holds three numbers side by side or below each other, and so joins several cells."""
    for cell in table.cells:
        lines = [line.split() for line in cell.text.split("\n")]
        beside = (sum(_are_numbers(*pair) for pair in pairwise(words)) >= _JOINED - 1 for words in lines)
        below = len(lines) >= _JOINED and all(
            len(words) == 1 and _VALUE.fullmatch(words[0]) for words in lines
        )
        if below or any(beside):
            return True
    return False


def looks_shifted(table: Table) -> bool:
    """Return whether values may be of another column.

    If a column of values has no name beside named ones, names or values of two columns are in one cell, or flags are
    before and after values.
    """
    texts = [cell.text.strip() for cell in table.cells]
    if any(re.fullmatch(_BEHIND_FLAG, text) for text in texts):
        return any(re.fullmatch(_FLAGGED, text) for text in texts)
    pairs = sum(any(_are_decimals(*pair) for pair in pairwise(text.split(" "))) for text in texts)
    if pairs >= _JOINED or any(re.search(_FLAG_BETWEEN, text) for text in texts) or _lacks_name(table):
        return True
    for row in range(_HEAD):
        names = [cell.text for cell in table.cells if cell.row == row and cell.column]
        lines = [line for name in names for line in name.split("\n")]
        if any(_TWICE.search(re.sub(r"[^\W\d]+", "a", re.sub(r"\d", "9", line))) for line in lines):
            return True
        if any(map(is_number, names)):
            break
    return False


def _lacks_name(table: Table) -> bool:
    """Return whether a column of values has no name in a first row that names others."""
    named = [cell for cell in table.cells if cell.row == 0 and cell.text]
    columns = {column for cell in named for column in range(cell.column, cell.column + cell.column_span)}
    for column in range(1, table.columns if len(named) > 1 else 0):
        below = [cell.text for cell in table.cells if cell.column == column and cell.text]
        values = sum(any(map(str.isdigit, text)) for text in below)
        if column not in columns and values >= _HEAD and 2 * values > len(below):
            return True
    return False


def looks_double(table: Table) -> bool:
    """Return whether a second column of names, without a heading or with the first one's, may start another table."""
    columns: list[dict[int, str]] = [{} for _ in range(table.columns)]
    for cell in table.cells:
        if cell.text and cell.column_span == 1:
            columns[cell.column][cell.row] = cell.text
    numeric = [sum(map(is_number, texts.values())) > 0.5 * len(texts) for texts in columns]
    values = [
        row
        for texts, has in zip(columns, numeric, strict=True)
        if has
        for row in texts
        if is_number(texts[row])
    ]
    names = [column for column, has in enumerate(numeric) if not has]
    if names[:1] != [0] or len(names) != 2 or not 1 < names[1] < table.columns - 1 or not values:  # noqa: PLR2004
        return False
    heads = [[text for row, text in columns[column].items() if row < min(values)] for column in names]
    counts = [len(columns[column]) - len(head) for column, head in zip(names, heads, strict=True)]
    return heads[1] in ([], heads[0]) and min(counts) > _NAMED * max(counts)


def walls_of(levels: Sequence[Sequence[Line]], left: float, right: float, height: float) -> Iterator[float]:
    """Yield the walls of white space that divide the cells of most rows between two places of a table."""
    rows = [[piece for piece in level if left < middle(piece.box)[0] < right] for level in levels]
    rows = [[piece for piece in row if not SIGN.fullmatch(piece.text.strip())] for row in rows]
    rows = [row for row in rows if row]
    several = [row for row in rows if len(row) > 1]
    if len(several) < _MIN_PARTED:
        return
    for width, place in free_strips([piece for row in rows for piece in row], _CROSSED * len(rows)):
        parted = sum(_is_parted(row, place, height) for row in several)
        narrowest = _SURE_GAP if parted >= _SURE * len(rows) else _GAP
        if width > narrowest * height and parted >= max(_MIN_PARTED, _PARTED * len(rows)):
            yield place


def free_strips(
    pieces: Sequence[Line], crossed: float, others: Sequence[Line] = ()
) -> list[tuple[float, float]]:
    """Return the widths of strips crossed by at most this many pieces, and the places that fewest cross.

    They are between the first and last piece. `others`: pieces that count only for the place, such as a head's.
    """
    if not pieces:
        return []
    first, last = min(piece.box.left for piece in pieces), max(piece.box.right for piece in pieces)

    def count(some: Sequence[Line]) -> NDArray[np.intp]:
        steps: NDArray[np.intp] = np.zeros(last - first + 2, dtype=np.intp)
        for box in (piece.box for piece in some):
            steps[min(max(box.left - first, 0), last - first)] += 1
            steps[min(max(box.right - first, 0), last - first)] -= 1
        return np.cumsum(steps)

    counts, every = count(pieces), count([*pieces, *others])
    return [
        (float(end - start), _middle_of_fewest(every[start:end]) + start + first)
        for start, end in runs_of(counts <= crossed).tolist()
        if start > 0 and end < counts.size - 1
    ]


def _middle_of_fewest(counts: NDArray[np.intp]) -> float:
    runs: list[tuple[int, int]] = runs_of(counts == counts.min()).tolist()
    start, end = max(runs, key=lambda run: run[1] - run[0])
    return (start + end) / 2


def _is_parted(row: Sequence[Line], place: float, height: float) -> bool:
    """Return whether two cells are side by side there, rather than a value and its attribute."""
    before = [piece for piece in row if piece.box.right <= place + 0.2 * height]
    after = [piece for piece in row if piece.box.left >= place - 0.2 * height]
    if not before or not after:
        return False
    return not after[0].text.startswith("(") and any(map(str.isalnum, before[-1].text))
