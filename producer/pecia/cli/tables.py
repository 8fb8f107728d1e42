"""Tables on a terminal, without rich: it takes longer to load than `pecia list` to ask."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[\d+m")
_PIPED: Final = 200
"""Columns where no terminal says how many."""
_LEAST: Final = 8
"""Of the last column, however narrow the terminal."""


def fitting(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int | None = None
) -> str:
    """Return a table without as many of the spare columns, the first one first, as the terminal has no room for.

    What the last column has no room for goes on below.
    """
    width = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED)
    columns = {heading: [heading, *cells] for heading, *cells in zip(headings, *rows, strict=True)}
    for heading in spare:
        if sum(_widths(columns)) + 2 * len(columns) - 1 <= width:
            break
        del columns[heading]
    *widths, last = _widths(columns)
    last = max(_LEAST, min(last, width - sum(widths) - 2 * len(widths) - 1))
    heads, *lines = (_line(row, [*widths, last]) for row in zip(*columns.values(), strict=True))
    rule = " " + "─" * (sum(widths) + 2 * len(widths) + last)
    return "\n".join(["", heads, rule, *lines, ""])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row, which is several lines if its last cell is too long for one."""
    indent = " " * (sum(widths[:-1]) + 2 * len(widths) - 1)
    cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
    first, *more = _folded(row[-1], widths[-1])
    return "\n".join([" " + "  ".join([*cells, first]).rstrip(), *(indent + part for part in more)])


def _folded(cell: str, width: int) -> list[str]:
    if _width(cell) <= width:
        return [cell]
    return [cell[start : start + width] for start in range(0, len(cell), width)]


def _widths(columns: dict[str, list[str]]) -> list[int]:
    return [max(map(_width, cells)) for cells in columns.values()]


def _width(cell: str) -> int:
    """Return the columns that a cell takes: two for each character of East Asia, none for its colour."""
    plain = _COLOUR.sub("", cell)
    if plain.isascii():
        return len(plain)
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in plain)
