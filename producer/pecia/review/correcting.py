"""Applies a review's decision to a page, without I/O. All other content of the page stays unchanged."""

import json
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from pecia.errors import InvalidOptionError
from pecia.review.layout import TARGET, TOKEN, cell_tokens, targets_of, tokens_of, words_of, written
from pecia_schemas.blocks import Block, BlockKind, Grounding, Line, Source, Standing, Table, Word
from pecia_schemas.results import Correction, Page, Revision, Verdict

_OF_DOUBTS: Final = (Verdict.REVIEW, Verdict.LOW_CONFIDENCE, Verdict.INCOMPLETE)
"""Verdicts that only express doubts."""


class Decision(BaseModel):
    """A person's decision about one revision of a page."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    target: str | None = None
    """Target of the correction, by its name in `layout`."""
    text: str = ""
    """The corrected text; empty if the page does not have it."""
    accepted: tuple[int, ...] = ()
    """Numbers of doubts to drop, because the text is right."""
    checked: bool = False
    """Whether a person compared every line of the page with its picture."""


def revised(page: Page, decision: Decision, *, number: int, by: str, at: datetime) -> Page:
    """Return the new revision of the page. Raises `InvalidOptionError` for an invalid decision."""
    targets = [target.name if target else None for target in targets_of(page)]
    settled = {number for number in decision.accepted if number < len(targets)}
    accepted = len(settled)
    changed, correction = page, None
    if decision.target is not None:
        changed, correction = _corrected(page, decision.target, decision.text.strip())
        settled |= {number for number, name in enumerate(targets) if name and _covers(decision.target, name)}
    if decision.checked:
        accepted += len(targets) - len(settled)
        settled = set(range(len(targets)))
    confirmed = {name[1:] for number in settled if (name := targets[number]) and name.startswith("f")}
    left = tuple(doubt for number, doubt in enumerate(page.doubts) if number not in settled)
    checked = decision.checked or bool(page.revision and page.revision.checked)
    verdict = changed.verdict
    if not left and (checked or verdict in _OF_DOUBTS):
        verdict = Verdict.OK if changed.blocks else Verdict.BLANK
    return changed.model_copy(
        update={
            "doubts": left,
            "grounding": tuple(
                leaf.model_copy(update={"standing": Standing.CONFIRMED}) if leaf.path in confirmed else leaf
                for leaf in changed.grounding
            ),
            "verdict": verdict,
            "revision": Revision(
                number=number, by=by, at=at, correction=correction, accepted=accepted, checked=checked
            ),
        }
    )


def _covers(one: str, other: str) -> bool:
    """Return whether a correction of one target also covers the other."""
    if one == other:
        return True
    runs = [match for name in (one, other) if (match := TARGET.fullmatch(name)) and match["start"]]
    if len(runs) < 2 or runs[0]["block"] != runs[1]["block"]:  # noqa: PLR2004  both
        return False
    (first, last), (start, end) = [(int(run["start"]), int(run["end"])) for run in runs]
    return first < end and start < last


def _corrected(page: Page, target: str, text: str) -> tuple[Page, Correction]:
    if named := TARGET.fullmatch(target):
        with suppress(IndexError, KeyError):
            if named["path"]:
                return _with_field(page, named["path"], text)
            if named["doubt"]:
                return _with_more(page, int(named["doubt"]), text)
            number = int(named["block"])
            if named["cell"]:
                changed = _with_cell(page.blocks[number], int(named["cell"]), text, f"/blocks/{number}")
            else:
                run = range(int(named["start"]), int(named["end"]))
                changed = _with_text(page.blocks[number], run, text, f"/blocks/{number}")
            block, correction = changed
            blocks = (*page.blocks[:number], *([block] if block.text else []), *page.blocks[number + 1 :])
            return page.model_copy(update={"blocks": blocks}), correction
    raise InvalidOptionError("The page no longer has this target: load it again.")


def _with_text(block: Block, run: range, text: str, place: str) -> tuple[Block, Correction]:
    tokens = tokens_of(block)
    start, end = tokens[run[0]].start, tokens[run[-1]].end
    known = [token.box for token in tokens[run.start : run.stop] if token.box]
    correction = Correction(
        place=place, before=block.text[start:end], after=text, box=known[0] if known else None
    )
    whole = _spliced(block.text, start, end, text)
    return block.model_copy(update={"text": whole, "lines": _relined(block, run, text)}), correction


def _with_cell(block: Block, number: int, text: str, place: str) -> tuple[Block, Correction]:
    if block.table is None:
        raise IndexError
    cell = block.table.cells[number]
    lines = _relined(block, cell_tokens(block, number), text)
    cells = tuple(
        one.model_copy(update={"text": text, "confidence": None}) if place_ == number else one
        for place_, one in enumerate(block.table.cells)
    )
    table = Table(rows=block.table.rows, columns=block.table.columns, cells=cells)
    correction = Correction(place=f"{place}/table/cells/{number}", before=cell.text, after=text, box=cell.box)
    return block.model_copy(update={"table": table, "text": table.text, "lines": lines}), correction


def _relined(block: Block, run: range, text: str) -> tuple[Line, ...]:
    """Return the lines with the text in place of these tokens, in the line of the first token with a known place."""
    placed: dict[int, list[int]] = {}
    for token in tokens_of(block)[run.start : run.stop]:
        if token.line is not None:
            placed.setdefault(token.line, []).append(token.number)
    lines = []
    for number, line in enumerate(block.lines):
        if number in placed:
            line = _respelled(line, placed[number], text)  # noqa: PLW2901  as it is now
            text = ""
        if line.text.strip():
            lines.append(line)
    return tuple(lines)


def _respelled(line: Line, numbers: list[int], text: str) -> Line:
    which = words_of(line)
    spans = [match.span() for match in TOKEN.finditer(line.text)]
    first, *others = numbers
    whole = line.text
    for number in reversed(others):
        whole = _spliced(whole, *spans[number], "")
    whole = _spliced(whole, *spans[first], text)
    gone = {which[number] for number in numbers}
    words = []
    for number, word in enumerate(line.words):
        if number not in gone:
            words.append(word)
        elif number == which[first] and text:
            words.append(Word(text=" ".join(text.split()), box=word.box))
    return line.model_copy(
        update={"text": whole.replace("\n", " "), "words": tuple(words), "confidence": None}
    )


def _spliced(text: str, start: int, end: int, new: str) -> str:
    """Return the text with a piece replaced. An empty replacement also removes the white space before it."""
    before = text[:start] if new else text[:start].rstrip()
    after = text[end:] if new or before else text[end:].lstrip()
    return before + new + after


def _with_more(page: Page, number: int, text: str) -> tuple[Page, Correction]:
    """Add missed text as a separate block, after the block above it."""
    box = page.doubts[number].box
    if not text:
        raise InvalidOptionError("Write the missing text, or accept the doubt.")
    lines = () if box is None else tuple(Line(text=one, box=box) for one in text.splitlines() if one.strip())
    block = Block(kind=BlockKind.TEXT, box=box, text=text, lines=lines, source=Source.PERSON)
    above = []
    for place, other in enumerate(page.blocks, 1):
        boxes = [other.box] if other.box else [line.box for line in other.lines]
        if box and boxes and min(one.top for one in boxes) <= box.top:
            above.append(place)
    place = max(above, default=0 if box else len(page.blocks))
    blocks = (*page.blocks[:place], block, *page.blocks[place:])
    correction = Correction(place=f"/blocks/{place}", before="", after=text, box=box)
    return page.model_copy(update={"blocks": blocks}), correction


def _with_field(page: Page, path: str, text: str) -> tuple[Page, Correction]:
    names = [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]
    fields, before = _filled(page.fields, names, text)
    known = {leaf.path: leaf for leaf in page.grounding}
    leaf = known.get(path) or Grounding(path=path, value=None, pages=(page.number,))
    _, value = _filled(fields, names, None)
    known[path] = leaf.model_copy(
        update={"value": value, "standing": Standing.CONFIRMED, "other": None, "confidence": None}
    )
    box = leaf.places[0].box if leaf.places else None
    correction = Correction(place=f"/fields{path}", before=written(before), after=text, box=box)
    return page.model_copy(update={"fields": fields, "grounding": tuple(known.values())}), correction


def _filled(value: Any, names: list[str], text: str | None) -> tuple[Any, Any]:
    """Return the fields with the text at this path, and the former value. With None, return them unchanged."""
    if not names:
        if isinstance(value, dict | list):
            raise IndexError
        return value if text is None else _typed(text, like=value), value
    name, *further = names
    if isinstance(value, list):
        if not name.isdecimal():
            raise IndexError
        inner, before = _filled(value[int(name)], further, text)
        return [inner if place == int(name) else one for place, one in enumerate(value)], before
    if not isinstance(value, dict):
        raise IndexError
    inner, before = _filled(value[name], further, text)
    return value | {name: inner}, before


def _typed(text: str, *, like: Any) -> Any:
    """Return the text as a value of the former value's type, null for empty. Raises `InvalidOptionError`."""
    if not text:
        return None
    if isinstance(like, str) or like is None:
        return text
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, bool) == isinstance(like, bool) and isinstance(value, bool | int | float):
            return value
    raise InvalidOptionError(
        "This field must be " + ("true or false." if isinstance(like, bool) else "a number, as in 12.5.")
    )
