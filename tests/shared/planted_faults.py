"""Faults that a model makes, planted into the true Markdown of a page: one at a time, of each kind."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

Lines = list[str]
Plant = Callable[[Lines, random.Random], Lines | None]
"""Takes the lines of a page; None: it has no place for this kind of fault."""

_NUMBER: Final = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?![\w])")
_POINT: Final = re.compile(r"(?<![\w.,:/])\d+[.,]\d{1,2}(?![\w.,:/])")
_MEASURED: Final = re.compile(
    r"(?<=\d )(mg|g|ml|mcg|µg|mmol/l|mg/dl|g/l|U/l|mmHg|EUR)\b|(?<=\| )(mmol/l|mg/dl|g/l|U/l)\b"
)
_UNITS: Final = ("mg", "g", "ml", "mcg", "mmol/l", "mg/dl", "g/l", "U/l", "mmHg")
_RANGE: Final = re.compile(r"(?<![\w.,/-])(\d+(?:[.,]\d+)?)( ?[-\u2013] ?)(\d+(?:[.,]\d+)?)(?![\w.,/-])")
_DATES: Final = (
    re.compile(r"\b(?P<a>\d{2})(?P<s>[./-])(?P<b>\d{2})(?=[./-]\d{4}\b)"),
    re.compile(r"(?<=\d{4}-)(?P<a>\d{2})(?P<s>-)(?P<b>\d{2})\b"),
    re.compile(r"(?<=\d{4}年)(?P<a>\d{1,2})(?P<s>月)(?P<b>\d{1,2})(?=日)"),
)
_PHONE: Final = re.compile(r"(?<![\d.,/-])(\d{2,4})[ /-](\d{3,4})[ -](\d{3,5})(?![\d.,/-])")
_NAME: Final = re.compile(r"(?<=[a-z:,.] )[A-Z][a-z]{2,} [A-Z][a-z]{2,}\b|(?<=Dr\. )[A-Z][a-z]{3,}\b")
_NEGATION: Final = re.compile(r"\b(no|not|without|denies|never) ")
_AFFIRMED: Final = re.compile(r"\b(was|is|were|has|had)\b(?! not)")
_SIDE: Final = re.compile(r"\b([Ll]eft|[Rr]ight)\b")
_PROSE: Final = re.compile(r"[A-Z][a-z]+(?: \S+){4,}")
_INVENTED: Final = (
    "Digoxin 0.125 mg, 3 tablets for 14 days",
    "Penicillin was given for two days.",
    "A follow-up is planned in spring.",
    "Zinc 17.3 mmol/l was found.",
)


def _replaced(
    pattern: re.Pattern[str], change: Callable[[re.Match[str], random.Random], str | None]
) -> Plant:
    """Return what changes one place that matches; a change to None, or to the same, is tried elsewhere."""

    def plant(lines: Lines, rng: random.Random) -> Lines | None:
        places = [(number, found) for number, line in enumerate(lines) for found in pattern.finditer(line)]
        rng.shuffle(places)
        for number, found in places:
            new = change(found, rng)
            if new is not None and new != found.group():
                line = lines[number][: found.start()] + new + lines[number][found.end() :]
                return [*lines[:number], line, *lines[number + 1 :]]
        return None

    return plant


def _other_digit(found: re.Match[str], rng: random.Random) -> str:
    text = found.group()
    place = rng.choice([number for number, sign in enumerate(text) if sign.isdigit()])
    return text[:place] + rng.choice([one for one in "0123456789" if one != text[place]]) + text[place + 1 :]


def _without_point(found: re.Match[str], rng: random.Random) -> str:
    whole, point, part = re.split(r"([.,])", found.group())
    return (
        whole + part
        if rng.random() < 0.5
        else whole[:-1] + point + whole[-1] + part
        if len(whole) > 1
        else whole + part
    )


def _other_unit(found: re.Match[str], rng: random.Random) -> str:
    return rng.choice([unit for unit in _UNITS if unit != found.group()])


def _reversed(found: re.Match[str], _: random.Random) -> str | None:
    first, between, last = found.groups()
    return f"{last}{between}{first}" if first != last else None


def _swapped_date(found: re.Match[str], _: random.Random) -> str | None:
    return f"{found['b']}{found['s']}{found['a']}" if found["a"] != found["b"] else None


def _turned_phone(found: re.Match[str], _: random.Random) -> str:
    first, second, third = found.groups()
    return (
        found.group().replace(f"{second}", "\0").replace(f"{third}", second).replace("\0", third)
        if second != third
        else f"{third} {second} {first}"
    )


def _other_letter(found: re.Match[str], rng: random.Random) -> str:
    name = found.group()
    place = rng.choice([number for number, sign in enumerate(name) if sign.islower()])
    return name[:place] + rng.choice([one for one in "aeioukmnrst" if one != name[place]]) + name[place + 1 :]


def _other_side(found: re.Match[str], _: random.Random) -> str:
    return {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}[found.group()]


def _one_of(changes: Callable[[Lines], Iterable[Lines]]) -> Plant:
    """Return what changes the lines in one of these ways."""

    def plant(lines: Lines, rng: random.Random) -> Lines | None:
        changed = list(changes(lines))
        return rng.choice(changed) if changed else None

    return plant


def _neighbours_value(lines: Lines) -> Iterator[Lines]:
    """Write the number of the line below in place of this line's."""
    for number, (line, below) in enumerate(pairwise(lines)):
        for one, other in zip(_NUMBER.finditer(line), _NUMBER.finditer(below), strict=False):
            if one.group() != other.group():
                changed = line[: one.start()] + other.group() + line[one.end() :]
                yield [*lines[:number], changed, *lines[number + 1 :]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _is_row(line: str) -> bool:
    return line.startswith("|") and not set(line) <= set("|-: ")


def _is_number(cell: str) -> bool:
    return re.search(r"\d", cell) is not None


def _are_values(one: str, other: str) -> bool:
    return _is_number(one) and _is_number(other) and one != other


def _in_the_row_below(lines: Lines) -> Iterator[Lines]:
    """Exchange two values of a column, of neighbouring rows."""
    for number, (line, below) in enumerate(pairwise(lines)):
        if _is_row(line) and _is_row(below):
            ours, theirs = _cells(line), _cells(below)
            for column, (one, other) in enumerate(zip(ours, theirs, strict=False)):
                if column and _are_values(one, other):
                    rows = [(ours, other), (theirs, one)]
                    changed = [_row([*row[:column], cell, *row[column + 1 :]]) for row, cell in rows]
                    yield [*lines[:number], *changed, *lines[number + 2 :]]


def _in_the_next_column(lines: Lines, change: Callable[[str, str], bool] = _are_values) -> Iterator[Lines]:
    """Exchange two neighbouring cells of a row."""
    for number, line in enumerate(lines):
        if _is_row(line):
            cells = _cells(line)
            for column, (one, other) in enumerate(pairwise(cells)):
                if column and change(one, other):
                    row = _row([*cells[:column], other, one, *cells[column + 2 :]])
                    yield [*lines[:number], row, *lines[number + 1 :]]


def _is_one_empty(one: str, other: str) -> bool:
    return (_is_number(one) and not other) or (_is_number(other) and not one)


def _text_lines(lines: Lines) -> list[int]:
    return [n for n, line in enumerate(lines) if re.search(r"\w{2}", line) and len(line.split()) > 2]


def _invented(lines: Lines, rng: random.Random) -> Lines | None:
    places = [number for number, line in enumerate(lines) if not line.strip()]
    number = rng.choice(places) if places else len(lines)
    return [*lines[:number], "", rng.choice(_INVENTED), "", *lines[number:]]


def _paragraphs(lines: Lines) -> Iterator[tuple[int, int]]:
    start = None
    for number, line in enumerate([*lines, ""]):
        if line.strip() and start is None:
            start = number
        elif not line.strip() and start is not None:
            if not any(map(_is_row, lines[start:number])) and len(" ".join(lines[start:number]).split()) > 5:
                yield start, number
            start = None


FAULTS: Final[Mapping[str, Plant]] = {
    "digit": _replaced(_NUMBER, _other_digit),
    "point": _replaced(_POINT, _without_point),
    "unit": _replaced(_MEASURED, _other_unit),
    "neighbour's value": _one_of(_neighbours_value),
    "value of the row below": _one_of(_in_the_row_below),
    "value of the next column": _one_of(_in_the_next_column),
    "value in an empty cell": _one_of(partial(_in_the_next_column, change=_is_one_empty)),
    "range": _replaced(_RANGE, _reversed),
    "phone number": _replaced(_PHONE, _turned_phone),
    "day and month": lambda lines, rng: _replaced(rng.choice(_DATES), _swapped_date)(lines, rng),
    "name": _replaced(_NAME, _other_letter),
    "negation left out": _replaced(_NEGATION, lambda _found, _rng: ""),
    "negation made up": _replaced(_AFFIRMED, lambda found, _rng: f"{found.group()} not"),
    "laterality": _replaced(_SIDE, _other_side),
    "line made up": _invented,
    "line repeated": _one_of(lambda lines: ([*lines[: n + 1], *lines[n:]] for n in _text_lines(lines))),
    "line left out": _one_of(lambda lines: ([*lines[:n], *lines[n + 1 :]] for n in _text_lines(lines))),
    "paragraph repeated": _one_of(
        lambda lines: ([*lines[:end], "", *lines[start:]] for start, end in _paragraphs(lines))
    ),
    "paragraph left out": _one_of(
        lambda lines: ([*lines[:start], *lines[end:]] for start, end in _paragraphs(lines))
    ),
}


def planted(kind: str, markdown: str, seed: int) -> str | None:
    """Return the page with one fault of this kind; None if it has no place for it."""
    lines = FAULTS[kind](markdown.splitlines(), random.Random(f"{kind} {seed}"))  # noqa: S311  the same every time
    return None if lines is None else "\n".join(lines)
