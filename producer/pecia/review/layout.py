"""A page in a form for review: text that can be corrected, with its places, and the doubts.

A target is something that can be corrected: `b3t5-7` are tokens of a block's text, `b3c2` is a cell of its table,
`f/total` a field, and `d4` missing text at the place of a doubt. Its name is valid for one revision of a page.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pecia_schemas.blocks import Block, Box, Doubt, DoubtReason, Line, Standing
from pecia_schemas.merging import pointer
from pecia_schemas.results import Page

TOKEN: Final = re.compile(r"\S+")
TARGET: Final = re.compile(
    r"b(?P<block>\d+)(?:t(?P<start>\d+)-(?P<end>\d+)|c(?P<cell>\d+))|d(?P<doubt>\d+)|f(?P<path>(?:/[^/]*)+)"
)
_UNSURE: Final = (Standing.DIFFERS, Standing.NOT_ON_PAGE)
_MISSING: Final = (DoubtReason.ONLY_WITNESS, DoubtReason.UNCOVERED)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a block's text between white space, with its place in the block's lines."""

    text: str
    start: int
    end: int
    line: int | None = None
    """Index of the line that has the token, or None if its place is unknown."""
    number: int = 0
    """Index of the token in that line."""
    box: Box | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a person can correct."""

    name: str
    text: str
    box: Box | None


def tokens_of(block: Block) -> list[Token]:
    """Return the tokens of a block's text. Its lines have the same tokens in order, except those without a place."""
    found = [Token(match[0], *match.span()) for match in TOKEN.finditer(block.text)]
    texts = [token.text for token in found]
    end = 0
    for number, line in enumerate(block.lines):
        words = words_of(line)
        for place, own in _places(texts, line.text.split(), end):
            which = words[own]
            word = line.words[which] if which is not None else None
            found[place] = replace(
                found[place],
                line=number,
                number=own,
                box=word.box if word else None if line.words else line.box,
                confidence=word.confidence if word else line.confidence,
            )
            end = place + 1
    return found


def _places(texts: Sequence[str], line: Sequence[str], start: int) -> Iterator[tuple[int, int]]:
    """Yield the places of a line's tokens in the text after `start`: adjacent, or each of them nearby."""
    first = start
    with suppress(ValueError):  # the text lacks the line's first token
        while line:
            first = texts.index(line[0], first)
            if texts[first : first + len(line)] == line:
                yield from ((first + own, own) for own in range(len(line)))
                return
            first += 1
    for own, text in enumerate(line):
        with suppress(ValueError):  # spelled differently, such as a word hyphenated at the line's end
            start = texts.index(text, start, start + 2 * len(line)) + 1
            yield start - 1, own


def words_of(line: Line) -> list[int | None]:
    """Return, for each token of a line's text, the index of its word in the line, or None if unknown."""
    tokens = line.text.split()
    found: list[int | None] = [None] * len(tokens)
    at = 0
    for number, word in enumerate(line.words):
        own = word.text.split()
        while own and at < len(tokens) and tokens[at : at + len(own)] != own:
            at += 1
        for _ in range(min(len(own), len(tokens) - at)):
            found[at] = number
            at += 1
    return found


def cell_tokens(block: Block, cell: int) -> range:
    """Return the range of a cell's tokens in a table's text."""
    assert block.table is not None  # noqa: S101  it has cells
    lengths = [len(one.text.split()) for one in block.table.cells]
    return range(sum(lengths[:cell]), sum(lengths[: cell + 1]))


def cell_box(block: Block, tokens: Sequence[Token], cell: int) -> Box | None:
    """Return the box of a cell, or one around its words."""
    assert block.table is not None  # noqa: S101  as above
    own = block.table.cells[cell].box
    run = cell_tokens(block, cell)
    return own or _around([token.box for token in tokens[run.start : run.stop]])


def tokens_under(page: Page, target: str) -> tuple[int, range] | None:
    """Return the block and the range of its tokens that a target names; None for a field or missing text."""
    named = TARGET.fullmatch(target)
    if named is None or named["block"] is None:
        return None
    number = int(named["block"])
    if named["cell"]:
        return number, cell_tokens(page.blocks[number], int(named["cell"]))
    return number, range(int(named["start"]), int(named["end"]))


def leaves_of(fields: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a page's fields with its JSON pointer."""
    if isinstance(fields, dict | list):
        for name, value in fields.items() if isinstance(fields, dict) else enumerate(fields):
            yield from leaves_of(value, pointer(path, name))
    else:
        yield path, fields


def shown(page: Page) -> dict[str, Any]:
    """Return the page as JSON for the browser."""
    targets = targets_of(page)
    grounded = {leaf.path: leaf for leaf in page.grounding}
    return page.model_dump(include={"number", "width", "height", "verdict"}) | {
        "revision": page.revision.number if page.revision else 0,
        "checked": bool(page.revision and page.revision.checked),
        "blocks": [_block(number, block) for number, block in enumerate(page.blocks)],
        "fields": [
            {
                "target": f"f{path}",
                "text": written(value),
                "path": path,
                "boxes": [_box(one.box) for one in grounded[path].places] if path in grounded else [],
            }
            for path, value in leaves_of(page.fields or {})
        ],
        "doubts": [
            _doubt(number, doubt, target)
            for number, (doubt, target) in enumerate(zip(page.doubts, targets, strict=True))
        ],
    }


def _block(number: int, block: Block) -> dict[str, Any]:
    about = {"kind": block.kind, "level": block.level}
    tokens = tokens_of(block)
    if block.table:
        cells = [
            {
                **cell.model_dump(include={"row", "column", "row_span", "column_span", "text"}),
                "target": f"b{number}c{place}",
                "box": _box(cell_box(block, tokens, place)),
            }
            for place, cell in enumerate(block.table.cells)
        ]
        return about | {"rows": block.table.rows, "cells": cells}
    ends = [0, *(token.end for token in tokens)]
    return about | {
        "tokens": [
            {
                "target": f"b{number}t{place}-{place + 1}",
                "gap": block.text[ends[place] : token.start],
                "text": token.text,
                "box": _box(token.box),
            }
            for place, token in enumerate(tokens)
        ]
    }


def _doubt(number: int, doubt: Doubt, target: Target | None) -> dict[str, Any]:
    now = target.text if target else doubt.text
    other = doubt.other or ""
    suggested = now.replace(doubt.text, other) if doubt.text and doubt.text in now else other
    box = doubt.box or (target.box if target else None)
    return doubt.model_dump(include={"reason", "on_value", "text", "other"}) | {
        "number": number,
        "box": _box(box),
        "target": target.name if target else None,
        "now": now,
        "suggested": suggested if other else now,
    }


def _box(box: Box | None) -> list[int] | None:
    return [box.left, box.top, box.right, box.bottom] if box else None


def written(value: Any) -> str:
    """Return a field's value as text for display and input; empty for null."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def targets_of(page: Page) -> list[Target | None]:
    """Return the target of each doubt of a page, or None if the doubt has nothing to correct.

    The last doubts concern fields that no witness confirms, in the order of the fields.
    """
    unsure = [leaf for leaf in page.grounding if leaf.standing in _UNSURE]
    texts = max(len(page.doubts) - len(unsure), 0)
    tokens = [tokens_of(block) for block in page.blocks]
    found: list[Target | None] = []
    for number, doubt in enumerate(page.doubts[:texts]):
        if needle := "".join(doubt.text.split()):
            taken = {one.name for one in found if one}
            candidates = _candidates(page.blocks, tokens, needle)
            best = max(candidates, key=lambda one: (_fit(one, doubt), one.name not in taken), default=None)
            found.append(best)
        else:
            found.append(Target(f"d{number}", "", doubt.box) if doubt.reason in _MISSING else None)
    for leaf in unsure[: len(page.doubts) - texts]:
        box = leaf.places[0].box if leaf.places else None
        found.append(Target(f"f{leaf.path}", written(leaf.value), box))
    return found


def _candidates(
    blocks: Sequence[Block], tokens_of_blocks: Sequence[Sequence[Token]], needle: str
) -> Iterator[Target]:
    """Yield all places of a text, ignoring spaces."""
    for number, (block, tokens) in enumerate(zip(blocks, tokens_of_blocks, strict=True)):
        for place, cell in enumerate(block.table.cells if block.table else ()):
            if needle in "".join(cell.text.split()):
                yield Target(f"b{number}c{place}", cell.text, cell_box(block, tokens, place))
        texts = [] if block.table else [token.text for token in tokens]
        for start, end in _windows(texts, needle):
            text = block.text[tokens[start].start : tokens[end - 1].end]
            box = _around([token.box for token in tokens[start:end]])
            yield Target(f"b{number}t{start}-{end}", text, box)


def _fit(one: Target, doubt: Doubt) -> int:
    """Return how well a place fits a doubt's place: 0 if both are known and do not overlap."""
    if not doubt.box or not one.box:
        return 1 + (doubt.box is one.box)
    across = min(doubt.box.right, one.box.right) - max(doubt.box.left, one.box.left)
    down = min(doubt.box.bottom, one.box.bottom) - max(doubt.box.top, one.box.top)
    return 2 * (across > 0 and down > 0)


def _windows(texts: Sequence[str], needle: str) -> Iterator[tuple[int, int]]:
    """Yield each shortest run of texts that contains the needle, ignoring spaces."""
    for start, first in enumerate(texts):
        joined = ""
        for end in range(start, len(texts)):
            joined += texts[end]
            if needle in joined:
                if needle not in joined[len(first) :]:
                    yield start, end + 1
                break
            if len(joined) - len(first) >= len(needle):
                break


def _around(boxes: Sequence[Box | None]) -> Box | None:
    known = [box for box in boxes if box]
    if not known:
        return None
    return Box(
        left=min(box.left for box in known),
        top=min(box.top for box in known),
        right=max(box.right for box in known),
        bottom=max(box.bottom for box in known),
    )
