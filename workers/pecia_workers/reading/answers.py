"""A language model's answer as blocks, by the format of its reader card.

What does not come out in the format is read as Markdown: no letter is lost. Places are scaled to the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from pecia_schemas.blocks import Block, BlockKind, Box, Source, text_of
from pecia_schemas.results import Verdict
from pecia_workers.engines.base import Generation
from pecia_workers.engines.reader_cards import AnswerFormat
from pecia_workers.reading.doctags import doctags
from pecia_workers.reading.ladder import unfenced
from pecia_workers.reading.markup import blocks_of

Size = tuple[int, int]
Tokens = tuple[tuple[str, float], ...]

_KINDS: Final = {
    "caption": BlockKind.CAPTION,
    "image_caption": BlockKind.CAPTION,
    "table_caption": BlockKind.CAPTION,
    "diagram": BlockKind.FIGURE,
    "figure": BlockKind.FIGURE,
    "image": BlockKind.FIGURE,
    "img": BlockKind.FIGURE,
    "picture": BlockKind.FIGURE,
    "equation": BlockKind.FORMULA,
    "equation_block": BlockKind.FORMULA,
    "formula": BlockKind.FORMULA,
    "page_footer": BlockKind.FOOTER,
    "page_header": BlockKind.HEADER,
    "page_number": BlockKind.PAGE_NUMBER,
    "section_header": BlockKind.HEADING,
    "sub_title": BlockKind.HEADING,
    "signature": BlockKind.HANDWRITING,
    "title": BlockKind.TITLE,
    "watermark": BlockKind.STAMP,
}
"""By the names that the models' makers use; all else is what its markup says."""
_THOUSAND: Final = 1000
_DOCTAGS_GRID: Final = 500

_FRONT_MATTER: Final = re.compile(r"\A\s*---\s*\n(?:[a-z_]+:.*\n)+---\s*(?:\n|\Z)")
_TAG: Final = re.compile(
    r"<(page_number|watermark|signature|img)>(.*?)(?:</?\1>|\Z)", re.DOTALL | re.IGNORECASE
)
_GROUND: Final = re.compile(r"<\|ref\|>([^<]*)<\|/ref\|>\s*<\|det\|>([^<]*)<\|/det\|>")
_DIV: Final = re.compile(r"<div\b([^<>]*\bdata-(?:bbox|label)=[^<>]*)>", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(r"data-(bbox|label)\s*=\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
_ALT: Final = re.compile(r"<img\b[^<>]*?\balt\s*=\s*\"([^\"]*)\"[^<>]*>|<img\b[^<>]*>", re.IGNORECASE)
_MATH: Final = re.compile(r"<math\b([^<>]*)>(.*?)(?:</math\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_CHECKBOX: Final = re.compile(r"<input\b([^<>]*)>\s*", re.IGNORECASE)
_DIV_END: Final = re.compile(r"</div\s*>\s*", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?\d{1,6}(?:\.\d+)?")
_CUT_ELEMENT: Final = re.compile(r'[\s,\[]*\{\s*"(?:bbox|category)"[^{]*\Z')
_CUT_TEXT: Final = re.compile(r'"text"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)

_MARKUP: Final = re.compile(
    rf"{_GROUND.pattern}|</?[A-Za-z_|][^<>]*>"
    r'|"bbox"\s*:\s*\[[^\]"]*\]|"category"\s*:\s*"[^"]*"|"text"\s*:\s*"|"\s*\}'
)
"""What of an answer is no text of the page, such as its numbers for places."""


class Piece(NamedTuple):
    """What a model wrote about one place of the page."""

    label: str
    place: tuple[float, ...]
    """Left, top, right, bottom; anything else is none."""
    written: str


def with_blocks(answer: AnswerFormat, page: Size, generation: Generation) -> Generation:
    """Return an answer in a format of its own with its blocks, and their text in place of the markup.

    Markdown stays as it was written. `page`: width and height in which places are told.
    """
    generation = replace(generation, tokens=_without_markup(generation.tokens))
    if answer is AnswerFormat.MARKDOWN or generation.blocks:
        return generation
    blocks = answer_blocks(answer, generation.text, page, generation.shrunk_to or page)
    verdict = generation.verdict
    if not blocks and verdict is Verdict.OK:
        verdict = Verdict.UNREADABLE
    return replace(generation, text=text_of(blocks), blocks=blocks, verdict=verdict)


def _without_markup(tokens: Tokens) -> Tokens:
    """Return the tokens with white space for markup, so that a doubt about a place is none about the page's text."""
    whole = "".join(text for text, _ in tokens)
    shown = _MARKUP.sub(lambda found: " " * len(found[0]), whole)
    ends = [0, *accumulate(len(text) for text, _ in tokens)]
    return tuple(
        (shown[start:end], logged) for (start, end), (_, logged) in zip(pairwise(ends), tokens, strict=True)
    )


def answer_blocks(answer: AnswerFormat, text: str, page: Size, seen: Size) -> tuple[Block, ...]:
    """Return the blocks of an answer, in pixels of the page, which the model saw at another size."""
    text = unfenced(text)
    match answer:
        case AnswerFormat.MARKDOWN:
            return blocks_of(text)
        case AnswerFormat.FRONT_MATTER:
            return blocks_of(_FRONT_MATTER.sub("", text))
        case AnswerFormat.DOCTAGS:
            grid, found = (_DOCTAGS_GRID, _DOCTAGS_GRID), doctags(text)
        case AnswerFormat.LAYOUT:
            grid, found = seen, tuple(_blocks(_layout(text)))
        case _:
            grid, found = (_THOUSAND, _THOUSAND), tuple(_blocks(_PIECES[answer](text)))
    return tuple(_scaled(block, grid, page) for block in found)


def _scaled(block: Block, grid: Size, page: Size) -> Block:
    """Return the block with its place in pixels of the page; without one if it has no extent there."""
    if block.box is None:
        return block
    (left, right), (top, bottom) = (
        sorted(min(max(0, round(value * whole / most)), whole) for value in ends)
        for ends, most, whole in zip(
            ((block.box.left, block.box.right), (block.box.top, block.box.bottom)), grid, page, strict=True
        )
    )
    there = left < right and top < bottom
    box = Box(left=left, top=top, right=right, bottom=bottom) if there else None
    return block.model_copy(update={"box": box})


def _blocks(pieces: Iterable[Piece]) -> Iterator[Block]:
    for piece in pieces:
        box = _box(piece.place)
        kind = _KINDS.get(re.sub(r"[\W_]+", "_", piece.label.strip().lower()))
        for block in _inner(piece.written, kind):
            named = kind if kind and block.kind in (BlockKind.TEXT, BlockKind.HEADING) else block.kind
            level = block.level if named is BlockKind.HEADING else None
            yield block.model_copy(update={"kind": named, "level": level, "box": box})


def _inner(written: str, kind: BlockKind | None) -> tuple[Block, ...]:
    if kind is not BlockKind.FORMULA:
        return blocks_of(written)
    formula = written.strip()
    if formula and not formula.startswith(("$", "\\[", "\\(")):
        formula = f"$${formula}$$"
    return (Block(kind=kind, text=formula, source=Source.MODEL),) if formula else ()


def _box(place: tuple[float, ...]) -> Box | None:
    if len(place) != len(Box.model_fields):
        return None
    left, top, right, bottom = map(round, place)
    return Box(left=left, top=top, right=right, bottom=bottom)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, _NUMBER.findall(text)))


def _tagged(text: str) -> Iterator[Piece]:
    end = 0
    for found in _TAG.finditer(text):
        yield Piece("", (), text[end : found.start()])
        yield Piece(found[1], (), found[2])
        end = found.end()
    yield Piece("", (), text[end:])


def _grounded(text: str) -> Iterator[Piece]:
    """Yield what follows each place; several boxes of one piece are one that holds them all."""
    before, *rest = _GROUND.split(text)
    yield Piece("", (), before)
    for label, boxes, written in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        found = _numbers(boxes)
        sides = [found[side::4] for side in range(4)]
        whole = len(found) > 0 and len(found) % 4 == 0
        place = (min(sides[0]), min(sides[1]), max(sides[2]), max(sides[3])) if whole else ()
        yield Piece(label, place, written)


def _html(text: str) -> Iterator[Piece]:
    before, *rest = _DIV.split(text)
    yield Piece("", (), _plain_html(before))
    for attributes, written in zip(rest[::2], rest[1::2], strict=True):
        given = {name.lower(): value for name, value in _ATTRIBUTE.findall(attributes)}
        yield Piece(given.get("label", ""), _numbers(given.get("bbox", "")), _plain_html(written))


def _plain_html(written: str) -> str:
    """Return HTML without what Markdown's reader takes for text: pictures, formulas and boxes to be ticked."""
    written = _ALT.sub(lambda found: found[1] or "", _DIV_END.sub("\n\n", written))
    written = _MATH.sub(lambda found: f"$${found[2]}$$" if "block" in found[1] else f"${found[2]}$", written)
    return _CHECKBOX.sub(lambda found: "☑ " if "checked" in found[1].lower() else "☐ ", written)


def _layout(text: str) -> Iterator[Piece]:
    """Yield the elements one by one: the last of them may be cut off."""
    decoder, end = json.JSONDecoder(), 0
    while (start := text.find("{", end)) >= 0:
        try:
            element, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        yield _element(element, text[start:end])
    rest = text[end:]
    cut = _CUT_TEXT.search(rest)
    if cut:
        yield Piece("", (), _unescaped(cut[1]))
    elif not _CUT_ELEMENT.match(rest):
        yield Piece("", (), rest.strip(" \n,[]") if end or rest.strip() == "[]" else rest)


def _element(element: dict[str, Any], written: str) -> Piece:
    label, place, text = (element.get(name) for name in ("category", "bbox", "text"))
    if not isinstance(label, str):
        return Piece("", (), written)
    numbers = place if isinstance(place, list) else []
    return Piece(
        label,
        tuple(number for number in numbers if isinstance(number, (int, float)) and abs(number) < 10**6),
        text if isinstance(text, str) else "",
    )


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


_PIECES: Final[dict[AnswerFormat, Callable[[str], Iterator[Piece]]]] = {
    AnswerFormat.TAGGED: _tagged,
    AnswerFormat.GROUNDED: _grounded,
    AnswerFormat.HTML: _html,
}
