"""Rows of the lists in a page's `fields`, compared with the rows on the page."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from pecia_schemas.blocks import Block, BlockKind, Box, Doubt, DoubtReason
from pecia_schemas.merging import pointer
from pecia_schemas.results import Page, Verdict
from pecia_workers.layout.lines import around
from pecia_workers.reading.fields import Fields, rows_of_lists
from pecia_workers.witness.leaves import numbers_of
from pecia_workers.witness.tokens import Token, tokens_of

_ASIDE: Final = frozenset({BlockKind.HEADER, BlockKind.FOOTER, BlockKind.PAGE_NUMBER})
_TOTAL: Final = re.compile(
    r"\W*(grand |sub-?|net |gross )?(total|sum|subtotal|balance|carried|brought|summe|gesamt|zwischensumme|übertrag"
    r"|somme|montant total|合计|总计|小计|합계|소계|총계)",
    re.IGNORECASE,
)
_MIN_ROWS: Final = 3
"""Least number of similar rows on a page that may belong to a list whose answer is empty."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table, or a line of text."""

    place: int
    text: str
    box: Box | None
    tokens: tuple[Token, ...]
    table: int
    """Columns of its table; 0: a line of text."""
    shape: tuple[str, ...]
    """Kinds of its cells: `n` number, `t` text, empty; for a line, its numbers and the words between them."""

    is_first: bool = False
    """Whether it is the first row of a table."""

    @property
    def is_counted(self) -> bool:
        """Whether it can be a row of values, that is no heading, total or line of words alone."""
        is_body = self.table and not self.is_first and len(self.shape) - self.shape.count("") > 1
        return ("n" in self.shape or bool(is_body)) and not _TOTAL.match(self.text)

    @property
    def kind(self) -> tuple[int, tuple[str, ...]]:
        """Key that the rows of one list share."""
        return self.table, self.shape


def with_missing_fields(page: Page, fields: Fields, schema: Mapping[str, Any]) -> Page:
    """Return the page with a doubt for each list in `fields` that lacks rows, and for a truncated answer."""
    if fields.values is None or fields.cut is not None:
        doubts = [_missing(fields.cut or "")]
    else:
        doubts = list(_missing_rows(page.blocks, fields.values, schema))
    if not doubts:
        return page
    verdict = Verdict.TRUNCATED if fields.is_cut else Verdict.REVIEW
    update = {"doubts": (*page.doubts, *doubts), "verdict": Verdict.worst(page.verdict, verdict)}
    return page.model_copy(update=update)


def _missing(path: str, rows: Sequence[_Row] = ()) -> Doubt:
    boxes = [row.box for row in rows if row.box]
    return Doubt(
        reason=DoubtReason.MISSING_FIELDS,
        box=around(boxes) if boxes else None,
        text=path,
        other="\n".join(row.text for row in rows) or None,
        on_value=True,
    )


def _missing_rows(
    blocks: Sequence[Block], values: Mapping[str, Any], schema: Mapping[str, Any]
) -> Iterator[Doubt]:
    rows = [*_rows(blocks)]
    lists = rows_of_lists(schema)
    given = {path: items for path, items in _lists(values) if path in lists and items}
    owners = _owners(rows, given)
    for path in given:
        missing = _like_owned(rows, owners, path)
        if missing:
            yield _missing(path, missing)
    for path in lists.keys() - given.keys():
        numbers = sum(lists[path].values())
        for missing in _alike(rows, owners) if numbers else ():
            shape = missing[0].shape
            if len(shape) - shape.count("") == len(lists[path]) and shape.count("n") >= numbers:
                yield _missing(path, missing)
                break


def _rows(blocks: Sequence[Block]) -> Iterator[_Row]:
    for number, block in enumerate(blocks):
        if block.table:
            cells = sorted(block.table.cells, key=lambda cell: (cell.row, cell.column))
            for _, group in groupby(cells, lambda cell: cell.row):
                row = list(group)
                tokens = [tuple(tokens_of(" ".join(cell.text.split()))) for cell in row]
                boxes = [cell.box for cell in row if cell.box]
                yield _Row(
                    place=number,
                    text="\t".join(cell.text for cell in row),
                    box=around(boxes) if boxes else None,
                    tokens=tuple(token for cell in tokens for token in cell),
                    table=block.table.columns,
                    shape=tuple(_kind(cell) for cell in tokens),
                    is_first=not row[0].row,
                )
        elif block.kind not in _ASIDE:
            texts = block.text.split("\n")
            boxed = (
                [line.box for line in block.lines] if len(block.lines) == len(texts) else [None] * len(texts)
            )
            for text, box in zip(texts, boxed, strict=True):
                line = tuple(tokens_of(text))
                kinds = groupby("n" if one.is_number else "t" for one in line)
                shape = tuple(sign for kind, group in kinds for sign in (group if kind == "n" else kind))
                yield _Row(number, text, box, line, 0, shape)


def _kind(cell: Sequence[Token]) -> str:
    """Return the kind of a cell; a number may have a sign before it."""
    words = [token for token in cell if token.is_number or token.text[0].isalpha()]
    return "" if not words else "n" if words[0].is_number else "t"


def _lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of an object that are not inside another list."""
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _lists(inner, pointer(path, name))


def _owners(rows: Sequence[_Row], lists: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """Return the row of each list item: the row that has most of the item's values."""
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    by_number: defaultdict[float, set[int]] = defaultdict(set)
    for number, row in enumerate(rows):
        for key in {token.key for token in row.tokens}:
            by_key[key].append(number)
        for known in {known for token in row.tokens for known in numbers_of(token)}:
            by_number[known].add(number)
    keys = [{token.key for token in row.tokens} for row in rows]
    owners: dict[int, str] = {}
    for path, items in lists.items():
        for item in items:
            leaves = [leaf for leaf in _leaves(item) if leaf not in (None, "") and not isinstance(leaf, bool)]
            hits: Counter[int] = Counter()
            for leaf in leaves:
                if isinstance(leaf, str):
                    words = {token.key for token in tokens_of(leaf)}
                    first = (
                        by_key.get(min(words, key=lambda key: len(by_key.get(key, ()))), ()) if words else ()
                    )
                    hits.update(number for number in first if words <= keys[number])
                else:
                    hits.update(by_number.get(leaf, ()))
            sure = [number for number, count in hits.items() if 2 * count > len(leaves)]
            if sure:
                owners.setdefault(
                    min(sure, key=lambda number: (number in owners, -hits[number], number)), path
                )
    return owners


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _like_owned(rows: Sequence[_Row], owners: Mapping[int, str], path: str) -> list[_Row]:
    """Return the rows without an item that resemble a list's rows: in its tables, or among and next to its lines."""
    own = [number for number, owner in owners.items() if owner == path]
    kinds = {rows[number].kind for number in own}
    lines = [number for number in own if not rows[number].table]
    reach = range(min(lines), max(lines) + 1) if lines else range(0)
    while reach and reach.start and rows[reach.start - 1].kind in kinds and rows[reach.start - 1].is_counted:
        reach = range(reach.start - 1, reach.stop)
    while reach.stop < len(rows) and reach and rows[reach.stop].kind in kinds and rows[reach.stop].is_counted:
        reach = range(reach.start, reach.stop + 1)
    return [
        row
        for number, row in enumerate(rows)
        if number not in owners and row.is_counted and row.kind in kinds and (row.table or number in reach)
    ]


def _alike(rows: Sequence[_Row], owners: Mapping[int, str]) -> Iterator[list[_Row]]:
    """Yield adjacent rows of the same shape, in tables and text without any row in the list."""
    owned = {rows[number].place for number in owners}
    for _, group in groupby(rows, lambda row: (row.kind, row.table and row.place)):
        stretch = [row for row in group if row.is_counted]
        if len(stretch) >= _MIN_ROWS and not any(row.place in owned for row in stretch):
            yield stretch
