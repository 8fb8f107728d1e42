"""DocTags, the markup of Docling's models, as blocks with places on its grid of 500.

Its elements and the cells of its tables (OTSL) as in docling-core's `types/doc/tokens.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import islice, takewhile
from textwrap import indent
from typing import Final

from pecia_schemas.blocks import Block, BlockKind, Box, Source
from pecia_schemas.storable import storable_text
from pecia_workers.reading.markup import BrokenTableError, GivenCell, blocks_of, table_block

_KINDS: Final = {
    "caption": BlockKind.CAPTION,
    "chart": BlockKind.TABLE,
    "checkbox_selected": BlockKind.TEXT,
    "checkbox_unselected": BlockKind.TEXT,
    "code": BlockKind.TEXT,
    "footnote": BlockKind.TEXT,
    "formula": BlockKind.FORMULA,
    "list_item": BlockKind.LIST,
    "ordered_list": BlockKind.LIST,
    "otsl": BlockKind.TABLE,
    "page_footer": BlockKind.FOOTER,
    "page_header": BlockKind.HEADER,
    "paragraph": BlockKind.TEXT,
    "picture": BlockKind.FIGURE,
    "section_header_level_1": BlockKind.HEADING,
    "section_header_level_2": BlockKind.HEADING,
    "section_header_level_3": BlockKind.HEADING,
    "section_header_level_4": BlockKind.HEADING,
    "section_header_level_5": BlockKind.HEADING,
    "text": BlockKind.TEXT,
    "title": BlockKind.TITLE,
    "unordered_list": BlockKind.LIST,
}
_OF_LISTS: Final = frozenset({"list_item", "ordered_list", "unordered_list"})
_CELLS: Final = "fcel|ecel|lcel|ucel|xcel|ched|rhed|srow"
_TOKEN: Final = re.compile(
    rf"<(/?)({'|'.join(_KINDS)}|doctag|group|inline|page_break|loc_\d{{1,3}}|_[A-Za-z+#]+_)>"
)
"""What is markup; anything else between angle brackets stands on the page, or is a table's."""
_CELL: Final = re.compile(rf"<({_CELLS}|nl)>")
_CLASS: Final = re.compile(r"^(?:<[a-z_]+>)+")
"""What kind of picture it is."""
_ENDS: Final = re.compile(r"<\|?(?:end_of_text|end_of_utterance|im_end|eos)\|?>")


@dataclass(slots=True)
class _Element:
    name: str
    text: str = ""
    places: list[int] = field(default_factory=list)
    items: int = 0

    @property
    def box(self) -> Box | None:
        if len(self.places) != len(Box.model_fields):
            return None
        left, top, right, bottom = self.places
        return Box(left=left, top=top, right=right, bottom=bottom)


def doctags(written: str) -> tuple[Block, ...]:
    """Return the blocks; those of Markdown if there is no element in it."""
    text = _ENDS.sub("", storable_text(written))
    if not _TOKEN.search(text) and not _CELL.search(text):
        return blocks_of(text)
    return tuple(block for element in _elements(text) for block in _block(element))


def _elements(text: str) -> Iterator[_Element]:
    """Yield elements as they end, lists as a whole; what is open at the end of a text that was cut ends there."""
    is_open = [_Element("")]
    end = 0
    for token in _TOKEN.finditer(text):
        is_open[-1].text += text[end : token.start()]
        end = token.end()
        closes, name = token.groups()
        if name.startswith("loc_"):
            is_open[-1].places.append(int(name[4:]))
        elif name in _KINDS and not closes:
            is_open.append(_Element(name))
        elif closes and any(element.name == name for element in is_open):
            while is_open[-1].name != name:
                yield from _ended(is_open)
            yield from _ended(is_open)
    is_open[-1].text += text[end:]
    while is_open:
        yield from _ended(is_open)


def _ended(is_open: list[_Element]) -> Iterator[_Element]:
    """Take the last element off; one that belongs to a list becomes lines of it."""
    element = is_open.pop()
    if not is_open or not {element.name, is_open[-1].name} <= _OF_LISTS:
        yield element
        return
    outer = is_open[-1]
    before = outer.text.rstrip()
    if element.name == "list_item":
        outer.items += 1
        lines = f"{f'{outer.items}.' if outer.name == 'ordered_list' else '-'} {element.text.strip()}"
    else:
        lines = indent(element.text.strip("\n"), "  ")
    outer.text = f"{before}\n{lines}".strip("\n")
    outer.places = _around(outer.places, element.places)


def _around(one: list[int], other: list[int]) -> list[int]:
    if not len(one) == len(other) == len(Box.model_fields):
        return one or other
    return [*map(min, one[:2], other[:2]), *map(max, one[2:], other[2:])]


def _block(element: _Element) -> Iterator[Block]:
    kind = _KINDS.get(element.name, BlockKind.TEXT)
    if _CELL.search(element.text):
        try:
            for block in table_block(list(_rows(element.text))):
                yield block.model_copy(update={"box": element.box})
        except BrokenTableError:
            yield from blocks_of(_CELL.sub("\n", element.text))
        return
    text = unescape(_CLASS.sub("", element.text) if kind is BlockKind.FIGURE else element.text).strip()
    if not text:
        return
    if kind is BlockKind.FORMULA and not text.startswith("$"):
        text = f"$${text}$$"
    if element.name.startswith("checkbox"):
        text = f"{'☑' if element.name == 'checkbox_selected' else '☐'} {text}"
    level = int(element.name[-1]) if kind is BlockKind.HEADING else None
    yield Block(
        kind=BlockKind.TEXT if kind is BlockKind.TABLE else kind,
        text=text,
        level=level,
        box=element.box,
        source=Source.MODEL,
    )


def _rows(text: str) -> Iterator[list[GivenCell]]:
    """Yield the cells of each row: an `lcel` goes on from the left, a `ucel` from above, an `xcel` from both."""
    before, *parts = _CELL.split(text)
    rows: list[list[str | GivenCell]] = [[GivenCell(unescape(before).strip())]] if before.strip() else []
    rows.append([])
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        goes_on = name in ("lcel", "ucel", "xcel") and not content.strip()
        if name != "nl":
            rows[-1].append(name if goes_on else GivenCell(unescape(content).strip()))
            continue
        rows.append([GivenCell(unescape(content).strip())] if content.strip() else [])
    for number, row in enumerate(rows):
        if row:
            yield [
                replace(
                    cell, rows=_run(rows, number, column, "ucel"), columns=_run(rows, number, column, "lcel")
                )
                for column, cell in enumerate(row)
                if isinstance(cell, GivenCell)
            ]


def _run(rows: list[list[str | GivenCell]], row: int, column: int, name: str) -> int:
    """Return over how many columns, or rows, a cell goes on."""
    if name == "lcel":
        following: Iterator[str | GivenCell] = islice(rows[row], column + 1, None)
    else:
        below = (rows[number] for number in range(row + 1, len(rows)))
        following = (line[column] if column < len(line) else "" for line in below)
    return 1 + sum(1 for _ in takewhile(lambda cell: cell == name, following))
