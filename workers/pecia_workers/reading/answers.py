"""A language model's answer as blocks, by the format of its reader card.

Text outside of the format is read as Markdown, so that nothing is lost. Coordinates are scaled to the page.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import accumulate, pairwise, takewhile
from textwrap import indent
from typing import Final, NamedTuple

from pecia_schemas.blocks import Block, BlockKind, Box, Source, storable_text, text_of
from pecia_schemas.results import Verdict
from pecia_workers.engines.reader_cards import AnswerFormat
from pecia_workers.layout.lines import box_of
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.ladder import unfenced
from pecia_workers.reading.markup import BrokenTableError, GivenCell, blocks_of, table_block

Size = tuple[int, int]


def _by_name(names: dict[BlockKind, str]) -> dict[str, BlockKind]:
    return {name: kind for kind, several in names.items() for name in several.split()}


_KINDS: Final = _by_name(
    {
        BlockKind.CAPTION: "caption image_caption table_caption figure_caption formula_caption",
        BlockKind.FIGURE: "diagram figure image img picture",
        BlockKind.FORMULA: "equation equation_block formula",
        BlockKind.FOOTER: "page_footer footer",
        BlockKind.HEADER: "page_header header",
        BlockKind.PAGE_NUMBER: "page_number",
        BlockKind.HEADING: "section_header sub_title",
        BlockKind.HANDWRITING: "signature",
        BlockKind.TITLE: "title",
        BlockKind.STAMP: "watermark",
    }
)
"""Kinds of blocks by the names that models use; others follow from their markup."""
_THOUSANDTHS: Final = (1000, 1000)
_DOCTAGS_GRID: Final = (500, 500)

_FRONT_MATTER: Final = re.compile(r"\A\s*---\s*\n(?:[a-z_]+:.*\n)+---\s*(?:\n|\Z)")
_TAG: Final = re.compile(
    r"<(page_number|watermark|signature|img)>(.*?)(?:</?\1>|\Z)", re.DOTALL | re.IGNORECASE
)
_GROUND: Final = re.compile(r"<\|ref\|>([^<]*)<\|/ref\|>\s*<\|det\|>([^<]*)<\|/det\|>")
_MARK: Final = re.compile(r"^!\[([a-z_]+)\+?\]\((\d{1,4}(?:, ?\d{1,4}){3})\)[ ]?", re.MULTILINE)
_DIV: Final = re.compile(r"<div\b([^<>]*\bdata-(?:bbox|label)=[^<>]*)>", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(r"data-(bbox|label)\s*=\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
_ALT: Final = re.compile(
    r"<img\b[^<>]*?\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>|<img\b[^<>]*>", re.IGNORECASE
)
_MATH: Final = re.compile(r"<math\b([^<>]*)>(.*?)(?:</math\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_CHECKBOX: Final = re.compile(r"<input\b([^<>]*)>\s*", re.IGNORECASE)
_DIV_END: Final = re.compile(r"</div\s*>\s*", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?\d{1,6}(?:\.\d+)?")
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})|\\')
_ESCAPE_OR_QUOTE: Final = re.compile(rf'{_ESCAPE.pattern}|"')
_BETWEEN: Final = " \n,[]"
"""Separators between elements, which are no text."""
_NEXT_ELEMENT: Final = re.compile(r'\}\s*,?\s*\{\s*"(?:bbox|category|text)"')
_CUT_ELEMENT: Final = re.compile(r'[\s,\[]*\{\s*"(?:bbox|category)"[^{]*\Z')
_BROKEN_TEXT: Final = re.compile(
    r'\{(?:\s*"(?:bbox|category)"[^{}]*,)?\s*"text"\s*:\s*"((?:[^\\]|\\.|\\\Z)*?)'
    r'(?:"\s*)?(?:,\s*"(?:bbox|category)"\s*:.*|\}[\s,\]]*)?\Z',
    re.DOTALL,
)
"""Text of the last, broken element: a quotation mark inside does not end it."""

_MARKUP: Final = re.compile(
    rf"{_GROUND.pattern}|!\[[a-z_]+\+?\]\([\d, ]+\)|</?[A-Za-z_|][^<>]*>"
    r'|"bbox"\s*:\s*\[[^\]"]*\]|"category"\s*:\s*"[^"]*"|"text"\s*:\s*"|"\s*\}'
)
"""Markup of an answer that is no text of the page, such as coordinates."""


class Piece(NamedTuple):
    """One element of a model's answer, with its place on the page."""

    label: str
    place: tuple[float, ...]
    """Left, top, right, bottom; any other length means no place."""
    written: str


def with_blocks(answer: AnswerFormat, page: Size, generation: Generation) -> Generation:
    """Return an answer with its blocks, parsed by the model's own format, and their text instead of the markup.

    Markdown is unchanged. `page`: width and height of the coordinates in the answer.
    """
    # White space in place of markup: so a doubt about a place is none about the page's text.
    written = "".join(text for text, _ in generation.tokens)
    shown = _MARKUP.sub(lambda found: " " * len(found[0]), written)
    ends = [0, *accumulate(len(text) for text, _ in generation.tokens)]
    places = zip(pairwise(ends), generation.tokens, strict=True)
    tokens = tuple((shown[start:end], logged) for (start, end), (_, logged) in places)
    generation = replace(generation, tokens=tokens)
    if generation.blocks:
        return generation
    blocks = answer_blocks(answer, generation.text, page, generation.shrunk_to or page)
    is_markdown = answer is AnswerFormat.MARKDOWN
    has_words = any(map(str.isalnum, text_of(blocks)))
    # An empty Markdown answer is the simulated engine's, which reads nothing.
    if generation.verdict is Verdict.OK and not has_words and (generation.text or not is_markdown):
        generation = replace(generation, verdict=Verdict.UNREADABLE)
    if is_markdown:
        return generation
    return replace(generation, text=text_of(blocks), blocks=blocks)


def answer_blocks(answer: AnswerFormat, text: str, page: Size, seen: Size) -> tuple[Block, ...]:
    """Return the blocks of an answer, in pixels of the page, which the model saw at another size."""
    text = unfenced(text)
    match answer:
        case AnswerFormat.MARKDOWN:
            return blocks_of(text)
        case AnswerFormat.FRONT_MATTER:
            return blocks_of(_FRONT_MATTER.sub("", text))
        case AnswerFormat.DOCTAGS:
            text = _ENDS.sub("", storable_text(text))
            if not _ELEMENT.search(text) and not _CELL.search(text):
                return blocks_of(text)
            return tuple(block for element in _elements(text) for block in _of_element(element, page))
        case AnswerFormat.LAYOUT | AnswerFormat.LAYOUT_1000:
            grid = seen if answer is AnswerFormat.LAYOUT else _THOUSANDTHS
            return tuple(_blocks(_layout(text), grid, page))
        case _:
            return tuple(_blocks(_pieces(answer, text), _THOUSANDTHS, page))


def _blocks(pieces: Iterable[Piece], grid: Size, page: Size) -> Iterator[Block]:
    for piece in pieces:
        box = _box(piece.place, grid, page)
        kind = _KINDS.get(re.sub(r"[\W_]+", "_", piece.label.strip().lower()))
        if kind is BlockKind.FORMULA:
            if written := piece.written.strip():
                text = written if written.startswith(("$", "\\[", "\\(")) else f"$${written}$$"
                yield Block(kind=BlockKind.FORMULA, text=text, box=box, source=Source.MODEL)
            continue
        for block in blocks_of(piece.written):
            named = kind if kind and block.kind in (BlockKind.TEXT, BlockKind.HEADING) else block.kind
            level = block.level if named is BlockKind.HEADING else None
            yield block.model_copy(update={"kind": named, "level": level, "box": box})


def _box(place: Sequence[float], grid: Size, page: Size) -> Box | None:
    """Return a place on the model's grid in pixels of the page, or None if it is invalid or empty."""
    if len(place) != len(Box.model_fields):
        return None
    ends = zip(map(round, place), grid * 2, page * 2, strict=True)
    sides = [min(max(0, round(value * side / most)), side) for value, most, side in ends]
    (left, right), (top, bottom) = sorted(sides[::2]), sorted(sides[1::2])
    return box_of(left, top, right, bottom) if left < right and top < bottom else None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, _NUMBER.findall(text)))


def _pieces(answer: AnswerFormat, text: str) -> Iterator[Piece]:
    """Yield the text before the first mark of the format, then the pieces that start with its marks."""
    match answer:
        case AnswerFormat.TAGGED:
            before, *rest = _TAG.split(text)
            yield Piece("", (), before)
            for label, written, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                yield Piece(label, (), written)
                yield Piece("", (), after)
        case AnswerFormat.GROUNDED:
            before, *rest = _GROUND.split(text)
            yield Piece("", (), before)
            for label, boxes, written in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                found = _numbers(boxes)
                sides = [found[side::4] for side in range(4)]
                are_boxes = len(found) > 0 and len(found) % 4 == 0  # several boxes become the box around them
                yield Piece(label, (*map(min, sides[:2]), *map(max, sides[2:])) if are_boxes else (), written)
        case AnswerFormat.MARKED:
            before, *rest = _MARK.split(text)
            yield Piece("", (), before)
            for label, box, written in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                # Every heading is a `title`: of which level, its Markdown says.
                yield Piece("" if label == "title" else label, _numbers(box), written)
        case AnswerFormat.HTML:
            before, *rest = _DIV.split(text)
            yield Piece("", (), _plain_html(before))
            for attributes, written in zip(rest[::2], rest[1::2], strict=True):
                given = {name.lower(): value for name, value in _ATTRIBUTE.findall(attributes)}
                yield Piece(given.get("label", ""), _numbers(given.get("bbox", "")), _plain_html(written))


def _plain_html(written: str) -> str:
    """Return HTML with pictures, formulas and checkboxes turned into the forms that the Markdown parser reads."""
    written = _ALT.sub(lambda found: found[1] or found[2] or "", _DIV_END.sub("\n\n", written))
    written = _MATH.sub(lambda found: f"$${found[2]}$$" if "block" in found[1] else f"${found[2]}$", written)
    return _CHECKBOX.sub(lambda found: "☑ " if "checked" in found[1].lower() else "☐ ", written)


def _layout(text: str) -> Iterator[Piece]:
    """Yield the elements one by one. Any may be invalid JSON, and the last may be truncated."""
    decoder, end = json.JSONDecoder(strict=False), 0
    while (start := text.find("{", end)) >= 0:
        before = Piece("", (), text[end:start].strip(_BETWEEN))
        try:
            element, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            if (following := _NEXT_ELEMENT.search(text, start)) is None:
                break
            end = following.start() + 1
            yield before
            yield from _layout(_escaped(text[start:end]))
            continue
        yield before
        label, place, written = (element.get(name) for name in ("category", "bbox", "text"))
        if isinstance(label, str):
            numbers = place if isinstance(place, list) else []
            known = (one for one in numbers if isinstance(one, (int, float)) and abs(one) < 10**6)
            if not isinstance(written, str):
                written = "" if written is None else json.dumps(written, ensure_ascii=False)
            yield Piece(label, tuple(known), written)
        else:
            yield Piece("", (), text[start:end])
    rest = text[end:]
    if broken := _BROKEN_TEXT.search(rest):
        yield Piece("", (), rest[: broken.start()].strip(_BETWEEN))
        written = broken[1]
        with suppress(ValueError):
            written = str(json.loads(f'"{_escaped(written, _ESCAPE_OR_QUOTE)}"', strict=False))
        yield Piece("", (), written)
    elif not _CUT_ELEMENT.match(rest):
        yield Piece("", (), rest.strip(_BETWEEN) if end or rest.strip() == "[]" else rest)


def _escaped(text: str, of: re.Pattern[str] = _ESCAPE) -> str:
    """Return the JSON with invalid escapes repaired: models copy LaTeX backslashes unchanged."""
    return of.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\{found[0]}", text)


_ELEMENTS: Final = _by_name(
    {
        BlockKind.CAPTION: "caption",
        BlockKind.TABLE: "chart otsl",
        BlockKind.TEXT: "checkbox_selected checkbox_unselected code footnote paragraph text",
        BlockKind.FORMULA: "formula",
        BlockKind.LIST: "list_item ordered_list unordered_list",
        BlockKind.FOOTER: "page_footer",
        BlockKind.HEADER: "page_header",
        BlockKind.FIGURE: "picture",
        BlockKind.HEADING: " ".join(f"section_header_level_{level}" for level in range(1, 6)),
        BlockKind.TITLE: "title",
    }
)
"""Elements of DocTags, the markup of Docling's models. Source, also for cells: docling-core's `types/doc/tokens.py`."""
_OF_LISTS: Final = frozenset({"list_item", "ordered_list", "unordered_list"})
_ELEMENT: Final = re.compile(
    rf"<(/?)({'|'.join(_ELEMENTS)}|doctag|group|inline|page_break|loc_\d{{1,3}}|_[A-Za-z+#]+_)>"
)
"""Tags that are markup; others in angle brackets are text of the page, or belong to tables."""
_CELL: Final = re.compile(r"<(fcel|ecel|lcel|ucel|xcel|ched|rhed|srow|nl)>")
_CLASS: Final = re.compile(r"^(?:<[a-z_]+>)+")
"""Class of a picture."""
_ENDS: Final = re.compile(r"<\|?(?:end_of_text|end_of_utterance|im_end|eos)\|?>")


@dataclass(slots=True)
class _Element:
    name: str
    text: str = ""
    places: list[int] = field(default_factory=list)
    items: int = 0


def _elements(text: str) -> Iterator[_Element]:
    """Yield elements as they end, lists when they are complete; a truncated text closes its open elements."""
    is_open = [_Element("")]
    end = 0
    for token in _ELEMENT.finditer(text):
        is_open[-1].text += text[end : token.start()]
        end = token.end()
        closes, name = token.groups()
        if name.startswith("loc_"):
            is_open[-1].places.append(int(name[4:]))
        elif name in _ELEMENTS and not closes:
            is_open.append(_Element(name))
        elif closes and any(element.name == name for element in is_open):
            while is_open[-1].name != name:
                yield from _ended(is_open)
            yield from _ended(is_open)
    is_open[-1].text += text[end:]
    while is_open:
        yield from _ended(is_open)


def _ended(is_open: list[_Element]) -> Iterator[_Element]:
    """Close the last element; an item of a list becomes lines of the list."""
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
    one, other = outer.places, element.places
    if len(one) == len(other) == len(Box.model_fields):
        outer.places = [*map(min, one[:2], other[:2]), *map(max, one[2:], other[2:])]
    else:
        outer.places = one or other


def _of_element(element: _Element, page: Size) -> Iterator[Block]:
    kind = _ELEMENTS.get(element.name, BlockKind.TEXT)
    box = _box(element.places, _DOCTAGS_GRID, page)
    if _CELL.search(element.text):
        try:
            for block in table_block(list(_rows_of_cells(element.text))):
                yield block.model_copy(update={"box": box})
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
    shown = BlockKind.TEXT if kind is BlockKind.TABLE else kind
    yield Block(kind=shown, text=text, level=level, box=box, source=Source.MODEL)


def _rows_of_cells(text: str) -> Iterator[list[GivenCell]]:
    """Yield the cells of each row: an `lcel` continues the cell on its left, a `ucel` the one above, an `xcel` both."""
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
        below = rows[number + 1 :]
        if row:
            yield [
                replace(
                    cell,
                    rows=_run("ucel", (line[column] if column < len(line) else "" for line in below)),
                    columns=_run("lcel", row[column + 1 :]),
                )
                for column, cell in enumerate(row)
                if isinstance(cell, GivenCell)
            ]


def _run(name: str, following: Iterable[str | GivenCell]) -> int:
    """Return the span of a cell in columns or rows."""
    return 1 + sum(1 for _ in takewhile(lambda cell: cell == name, following))
