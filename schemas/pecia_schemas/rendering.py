"""Renders blocks as Markdown (CommonMark, tables by GFM) and HTML. Text of a block is escaped, never used as markup."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from pecia_schemas.blocks import Block, BlockKind, Box, Table, Word

_MARKUP: Final = re.compile(r"[\\`*\[\]<~|]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_OPENING: Final = re.compile(r"[-+=>#]|(?P<number>\d{1,9})(?=[.)](\s|$))")
_CLOSING: Final = re.compile(r"(?<!\\)#$")
"""Matches a trailing `#` of a heading, which Markdown would hide."""
_BREAK: Final = re.compile(r"\r\n|[\n\r\v\f]")
_ITEM: Final = re.compile(r"(?P<indent>\s*)(?:[-+*•]|(?P<number>\d{1,9}[.)]))\s+(?P<text>\S.*)")
_STRIKE: Final = "\0"
"""Marks the start and the end of struck-out words until they are rendered. Stored text never contains it."""
_STRUCK: Final = re.compile(f"{_STRIKE}([^{_STRIKE}]*){_STRIKE}")
_ELEMENTS: Final = {
    BlockKind.TITLE: "h1",
    BlockKind.FIGURE: "figure",
    BlockKind.HEADER: "header",
    BlockKind.FOOTER: "footer",
    BlockKind.PAGE_NUMBER: "footer",
}
_LEVEL: Final = 2
"""Default level of a heading: one below a title."""


def markdown_of(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, with a blank line between them."""
    written = []
    for block in blocks:
        text = _with_strikes(block.text, _words(block))
        if block.table:  # in GFM the first row is the heading, and spans are empty cells
            cells = _rows_with_strikes(block.table, _words(block)).to_rows()
            rows = [[_BREAK.sub("<br>", _MARKUP.sub(r"\\\g<0>", cell)) for cell in row] for row in cells]
            rows.insert(1, ["---"] * block.table.columns)
            written.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        elif block.kind in (BlockKind.TITLE, BlockKind.HEADING) and block.text.strip():
            level = 1 if block.kind is BlockKind.TITLE else block.level or _LEVEL
            text = _CLOSING.sub(r"\\#", escaped(" ".join(text.split())))
            written.append(f"{'#' * level} {text}")
        elif block.kind is BlockKind.LIST:
            lines = []
            for line in _BREAK.split(text):
                item = _ITEM.fullmatch(line)
                start = f"{item['indent']}{item['number'] or '-'}" if item else " "
                lines.append(f"{start} {escaped(item['text'] if item else line)}")
            written.append("\n".join(lines))
        else:
            written.append(escaped(text))
    return "\n\n".join(filter(None, written)).replace(_STRIKE, "~~")


def escaped(text: str) -> str:
    """Return plain text as Markdown paragraphs that show it line by line, with all markup escaped."""
    lines = []
    for line in _BREAK.split(text):
        inner = _MARKUP.sub(r"\\\g<0>", line.strip())
        if opening := _OPENING.match(inner):
            place = opening.end() if opening["number"] else 0
            inner = f"{inner[:place]}\\{inner[place:]}"
        lines.append(inner)
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    return "\n".join(f"{line}\\" if line and following else line for line, following in pairs).strip("\n")


def html_of(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML elements, with their kind as class."""
    written = []
    for block in blocks:
        text = _with_strikes(block.text, _words(block))
        if block.table:
            table = _rows_with_strikes(block.table, _words(block))
            rows = [""] * table.rows
            for cell in table.cells:
                spans = f' rowspan="{cell.row_span}"' * (cell.row_span > 1)
                spans += f' colspan="{cell.column_span}"' * (cell.column_span > 1)
                rows[cell.row] += f"<td{spans}>{_html_text(cell.text)}</td>"
            written += ["<table>", *(f"<tr>{row}</tr>" for row in rows), "</table>"]
        elif block.kind is BlockKind.LIST and block.text.strip():
            items = [f"<li>{_html_text(line)}</li>" for line in _BREAK.split(text) if line.strip()]
            written.append(f'<ul class="list">{"".join(items)}</ul>')
        elif block.text.strip():
            heading = f"h{block.level or _LEVEL}" if block.kind is BlockKind.HEADING else "p"
            element = _ELEMENTS.get(block.kind, heading)
            written.append(f'<{element} class="{block.kind}">{_html_text(text)}</{element}>')
    return "\n".join(written)


def _html_text(text: str) -> str:
    return _STRUCK.sub(r"<s>\1</s>", _BREAK.sub("<br>", escape(text, quote=False)))


def _words(block: Block) -> list[Word]:
    return [word for line in block.lines for word in line.words]


def _with_strikes(text: str, words: Sequence[Word]) -> str:
    """Return a text with `_STRIKE` around its struck-out words; `words` are the words of the text, in order."""
    if not any(word.struck for word in words):
        return text
    marked, done = "", 0
    for word in words:
        start = text.find(word.text, done)
        if start >= 0:
            mark = _STRIKE if word.struck else ""
            marked += f"{text[done:start]}{mark}{word.text}{mark}"
            done = start + len(word.text)
    return f"{marked}{text[done:]}".replace(f"{_STRIKE} {_STRIKE}", " ")


def _rows_with_strikes(table: Table, words: Sequence[Word]) -> Table:
    """Return a table with `_STRIKE` around the struck-out words of its cells."""
    cells = []
    for cell in table.cells:
        own = [word for word in words if cell.box and _is_within(word.box, cell.box)]
        cells.append(cell.model_copy(update={"text": _with_strikes(cell.text, own)}))
    return table.model_copy(update={"cells": tuple(cells)})


def _is_within(inner: Box, outer: Box) -> bool:
    x, y = (inner.left + inner.right) / 2, (inner.top + inner.bottom) / 2
    return outer.left <= x <= outer.right and outer.top <= y <= outer.bottom
