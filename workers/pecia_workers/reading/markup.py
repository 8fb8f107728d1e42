"""A language model's Markdown and HTML as blocks. No letter is lost: text that does not convert stays plain text."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import unescape
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block.table import escapedSplit
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from pecia_schemas.blocks import Block, BlockKind, Cell, Source, Table, plain_blocks, storable_text

_MOST_PLACES: Final = 100_000
"""Most cells of a table: a looping model may write any span."""

_HTML_TABLE: Final = re.compile(r"(<table\b[^<>]*>.*?(?:</table\s*>|\Z))", re.IGNORECASE | re.DOTALL)
_CAPTION: Final = re.compile(r"<caption\b[^<>]*>(.*?)</caption\s*>", re.IGNORECASE | re.DOTALL)
_ROW: Final = re.compile(r"<tr\b[^<>]*>", re.IGNORECASE)
_CELL: Final = re.compile(r"<t[dh]\b([^<>]*)>", re.IGNORECASE)
_SPAN: Final = re.compile(r"(row|col)span\s*=\s*[\"']?(\d{1,5})", re.IGNORECASE)

_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"(?m)^\s*(?:`{3,}|~{3,})\s*(?:html|latex|markdown|md|text)?\s*$", re.IGNORECASE)
_TASK: Final = re.compile(r"^(\s*[-*+] )\[(?:(x)|\s)\](?=\s)", re.IGNORECASE | re.MULTILINE)
_IMAGE: Final = re.compile(r"(?<=!\[)([^\]\n]*\])\([^)\n]*\)")
_HEADING_TAG: Final = re.compile(r"<h([1-6])\b[^<>]*>\s*(.*?)\s*</h\1\s*>", re.IGNORECASE | re.DOTALL)
_ITEM_TAG: Final = re.compile(r"\s*<li\b[^<>]*>\s*", re.IGNORECASE)
_BLOCK_TAG: Final = re.compile(
    r"\s*</?(?:article|body|div|footer|head|header|html|main|ol|p|section|ul)\b[^<>]*>\s*|</li\s*>",
    re.IGNORECASE,
)
_INLINE: Final = (
    r"b|big|br|center|em|font|h[1-6]|hr|i|li|ol|p|s|small|span|strong|sub|sup|tbody|td|tfoot|th|thead|tr|u|ul"
)
_TAG: Final = re.compile(rf"<(/?)({_INLINE}|caption|div|table)\b[^<>]*>", re.IGNORECASE)
"""Tags that are markup; others in angle brackets are text of the page."""
_BREAKING: Final = frozenset({"br", "div", "li", "p", "tr"})
_MARKED: Final = re.compile(r"[\\`*_<>&$!\n]")
_ESCAPED: Final = re.compile(r"(?m:\\([]*_`$<&[|%])|^\\([-+>#~])|(?<=\d)\\([.)]))")
"""A markup character escaped by a backslash; any other backslash is text of the page."""
_FORMULA: Final = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_RAISED: Final = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")  # noqa: RUF001  a minus sign
_LOWERED: Final = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")  # noqa: RUF001


def blocks_of(written: str) -> tuple[Block, ...]:
    """Return a model's Markdown as blocks without places."""
    text = _FENCE.sub("", _COMMENT.sub("", storable_text(written)))
    text = _IMAGE.sub(r"\1()", text)
    text = _TASK.sub(lambda found: f"{found[1]}{'☑' if found[2] else '☐'}", text)
    blocks: list[Block] = []
    try:
        for number, piece in enumerate(_HTML_TABLE.split(text)):
            if number % 2 == 0:
                blocks += _markdown(piece)
                continue
            for caption in _CAPTION.findall(piece):
                blocks += _block(BlockKind.CAPTION, _read(caption))
            _, *rows = _ROW.split(_CAPTION.sub("", piece))
            blocks += table_block([list(_html_cells(row)) for row in rows])
    except (RecursionError, BrokenTableError):
        blocks = []
    letters = _letters(unescape(_TAG.sub("", _BLOCK_TAG.sub("", text))))
    kept = _letters("".join(block.text for block in blocks))
    return tuple(blocks) if kept == letters else plain_blocks(text.strip())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text)))


def _block(
    kind: BlockKind, text: str, level: int | None = None, table: Table | None = None
) -> Iterator[Block]:
    if text.strip():
        yield Block(kind=kind, text=text.strip("\n"), level=level, table=table, source=Source.MODEL)


def _markdown(text: str) -> Iterator[Block]:
    text = _HEADING_TAG.sub(lambda found: f"\n\n{'#' * int(found[1])} {found[2]}\n\n", text)
    text = _BLOCK_TAG.sub("\n\n", _ITEM_TAG.sub("\n- ", text))
    lines, tokens = text.splitlines(), _parser().parse(text)
    depth = 0
    for number, token in enumerate(tokens):
        if depth == 0 and token.map:
            inner = tokens[number + 1] if token.nesting else token
            if token.type == "table_open":
                rows = []
                for line in (lines[token.map[0]], *lines[token.map[0] + 2 : token.map[1]]):
                    cells = escapedSplit(line.strip())  # pipes at both ends of a row leave empty texts there
                    end = len(cells) - bool(len(cells) > 1 and not cells[-1].strip())
                    rows.append([GivenCell(_read(one)) for one in cells[not cells[0] : end]])
                yield from table_block(rows)
            elif token.type in ("bullet_list_open", "ordered_list_open"):
                yield from _block(BlockKind.LIST, "\n".join(_items(tokens[number:])))
            elif token.type == "heading_open":
                yield from _block(BlockKind.HEADING, _shown(inner), level=int(token.tag[1]))
            elif token.type == "paragraph_open":
                found = _FORMULA.fullmatch(inner.content)
                is_image = [child.type for child in inner.children or ()] == ["image"]
                is_formula = found is not None and not found[0].startswith(r"\(")
                kind = BlockKind.FORMULA if is_formula else BlockKind.TEXT
                yield from _block(BlockKind.FIGURE if is_image else kind, _shown(inner))
        depth += token.nesting


def _items(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the lines of a list up to its end, each item with its own mark."""
    depth, mark = 0, ""
    for token in tokens:
        depth += token.nesting * token.type.endswith(("list_open", "list_close"))
        if depth == 0:
            return
        if token.type == "list_item_open":
            mark = f"{mark if mark.strip() else '  ' * (depth - 1)}{token.info}{token.markup} "
        elif token.type == "list_item_close" and mark.strip():
            yield mark
            mark = ""
        elif token.type == "inline":
            first, *rest = _shown(token).split("\n")
            yield mark + first
            mark = " " * len(mark)
            yield from (mark + line for line in rest)


def _read(written: str) -> str:
    """Return the visible text of a cell or caption."""
    written = written.strip()
    return _shown(_parser().parseInline(written)[0]).strip() if _MARKED.search(written) else written


def _shown(inline: Token) -> str:
    """Return the visible text of a paragraph, with its line breaks."""
    shown, script = "", None
    children = inline.children or []
    for child, following in pairwise([*children, None]):
        assert child  # noqa: S101  only the last one is None, and it never comes first
        if child.type in ("softbreak", "hardbreak"):
            shown += "\n"
        elif child.type == "tag":
            script, name = None, child.tag
            if name in ("sup", "sub") and child.nesting > 0:
                script = _RAISED if name == "sup" else _LOWERED
            elif name in _BREAKING and not shown.endswith("\n"):
                shown += "\n"
        elif child.type in ("em_open", "em_close", "strong_open", "strong_close"):
            # Between digits or Latin letters it is no markup: `5*3*2`.
            around = (shown[-1:], following.content[:1] if following else "")
            inside = all(one.isascii() and one.isalnum() for one in around)
            shown += child.markup if inside else ""
        else:
            shown += child.content.translate(script) if script else child.content
    return shown


@cache
def _parser() -> MarkdownIt:
    """Return a Markdown parser without the rules that hide text or take plain characters for markup."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable("table")
    parser.disable(["blockquote", "code", "fence", "lheading", "reference", "html_block"])
    parser.disable(["backticks", "link", "html_inline"])
    parser.inline.ruler.before("escape", "formula", partial(_token, _FORMULA))
    parser.inline.ruler.at("escape", partial(_token, _ESCAPED))
    parser.inline.ruler.before("autolink", "tag", partial(_token, _TAG))
    return parser


def _token(of: re.Pattern[str], state: StateInline, silent: bool) -> bool:
    """Parse a formula, an escaped character or a tag as one token, if one begins here."""
    found = of.match(state.src, state.pos)
    if found and not silent:
        if of is _TAG:
            state.push("tag", found[2].lower(), 0).nesting = -1 if found[1] else 1
        else:
            state.push("formula", "", 0).content = found[found.lastindex or 0]
    state.pos = found.end() if found else state.pos
    return found is not None


class BrokenTableError(Exception):
    """The table has text between its cells, or absurd spans."""


@dataclass(frozen=True, slots=True)
class GivenCell:
    """A cell as it was written."""

    text: str
    rows: int = 1
    columns: int = 1


def _html_cells(row: str) -> Iterator[GivenCell]:
    _, *found = _CELL.split(row)
    for attributes, content in zip(found[::2], found[1::2], strict=True):
        spans = {name.lower(): max(1, int(count)) for name, count in _SPAN.findall(attributes)}
        yield GivenCell(_read(content), spans.get("row", 1), spans.get("col", 1))


def table_block(rows: list[list[GivenCell]]) -> Iterator[Block]:
    """Yield the cells as one table, if there are any; spans that overlap or exceed the table are reduced.

    Raises `BrokenTableError`.
    """
    cells: list[Cell] = []
    taken: set[tuple[int, int]] = set()
    for row, given in enumerate(rows):
        column = 0
        for one in given:
            while (row, column) in taken:
                column += 1
            wide = next((n for n in range(1, one.columns) if (row, column + n) in taken), one.columns)
            tall = min(one.rows, len(rows) - row)
            if len(taken) + wide * tall > _MOST_PLACES:
                raise BrokenTableError
            taken |= {(row + down, column + across) for down in range(tall) for across in range(wide)}
            cells.append(Cell(row=row, column=column, row_span=tall, column_span=wide, text=one.text))
    columns = 1 + max((column for _, column in taken), default=-1)
    free = {(row, column) for row in range(len(rows)) for column in range(columns)} - taken
    cells += [Cell(row=row, column=column, text="") for row, column in free]
    if cells:
        cells.sort(key=lambda cell: (cell.row, cell.column))
        table = Table(rows=len(rows), columns=columns, cells=tuple(cells))
        yield from _block(BlockKind.TABLE, table.text, table=table)
