"""Tables without ruling lines: rows of pieces of text that line up. Lengths are in heights of a line."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from pecia_schemas.blocks import Box, Line
from pecia_workers.layout.grids import Draft, Grid, cut
from pecia_workers.layout.lines import around, middle
from pecia_workers.layout.marks import SIGNS
from pecia_workers.layout.parting import SIGN, free_strips, is_number
from pecia_workers.layout.ruled import Rules

_MIN_ROWS, _MIN_COLUMNS = 3, 2
_NEAR: Final = 2.0
"""Widest white space between two rows of a table without ruling lines."""
_GAP: Final = 0.3
"""Narrowest white space between its columns."""
_CROSSED: Final = 0.12
"""Share of its rows that may cross that space, such as a heading of two columns."""
_MAX_CELL: Final = 12.0
"""Median length of its pieces; longer ones are prose."""
_WIDER: Final = 1.3
"""Step between two parts of a page that are separate tables, relative to that of most rows."""
_JUMP: Final = 1.3
"""Distance to the next row, relative to that of the next line of a cell."""
_PITCH: Final = 1.6
"""Widest step from line to line of one cell."""
_MAX_OPTIONS: Final = 0.3
"""Share of its pieces that are checkboxes with their labels."""
_UNCLEAR_PIECES: Final = 3
"""Pieces in a row from which rows resemble a table although no white space separates columns."""
_FULL_ROW: Final = 0.6
"""Pieces of a row with most columns, relative to the longest row."""
_IN_COLUMN: Final = 0.1
"""Share of the pieces of such rows that start where a column does."""
_FIELD: Final = re.compile(r"\w[^:：]*[:：](\s*\S|$)")  # noqa: RUF001  Chinese has its own
"""A label, with or without its value."""
_SAME_ROW, _HEAD_PITCH = 0.7, 2.2
"""Step between lines that is too short for separate rows, and the longest step within the names of columns."""
_LOOSE: Final = 1.35
"""Step between lines that is too long within one cell."""
_SAME_STEP, _ROW_STEP, _HALF_STEP = 0.97, 0.93, 0.6
"""Relative to the step between rows: an equal step, one that separates rows of a head, and one too short for rows."""
_NUMERIC, _VALUES = 0.6, 0.6
"""Share of numbers in a column of numbers, and in the first row of values."""
_ABOVE: Final = 1.5
"""Distance of the middle of a heading of all value columns from their middle."""
_FLUSH, _LOWER, _FEW = 0.6, 0.4, 0.15
"""Share of lines of prose that end at one place, of pieces that continue a sentence, and of pieces with a number."""
_TWO_NUMBERS: Final = 0.3
"""Share of rows with several numbers in one column, above which it may be several columns."""
_YEAR: Final = re.compile(r"(19|20)\d\d")
_VALUE: Final = re.compile(r"\W*\d|\W+$|n\.?/?a\b")
"""A number, with or without its unit, or the sign for an unknown value."""


_Row: TypeAlias = list[tuple[int, int, Line]]
"""Cells of a row: the first and the last column of each, and its text."""


def aligned_grids(
    pieces: Sequence[Line], rows: Sequence[Sequence[int]], rules: Rules, height: float
) -> list[Grid]:
    """Return the grids of aligned pieces. `rows`: the pieces of each row, in reading order."""
    runs: list[list[list[int]]] = []
    run: list[list[int]] = []  # neighbouring rows of several pieces, and of single short pieces between these
    for above, row, following in zip([[], *rows], rows, [*rows[1:], []], strict=False):
        is_apart = _is_apart(pieces, row, height)
        if run:
            end = following if _is_apart(pieces, following, height) else []
            run_box = around(pieces[one].box for other in (*run, end) for one in other)
            first, width = pieces[row[0]].box, 0.65 * (run_box.right - run_box.left)
            is_short = len(row) == 1 and first.right - first.left < width and first.left < run_box.right
            if not (_is_near(pieces, run[-1], row, height) and (is_apart or is_short)):
                runs += _ended(pieces, run, rules, height)
                run = []
        if is_apart and not run and len(above) == 1 and _is_near(pieces, above, row, height):
            name, below = pieces[above[0]].box, around(pieces[one].box for one in row)
            if below.left < name.left and name.right < below.right + height:
                run.append(list(above))  # it may be a name of several columns
        if is_apart or run:
            run.append(list(row))
    runs += _ended(pieces, run, rules, height)
    return [grid for run in runs for grid in _grids_of(pieces, run, rules, height)]


def _is_apart(pieces: Sequence[Line], row: Sequence[int], height: float) -> bool:
    """Return whether white space divides a row into cells."""
    boxes = [pieces[one].box for one in row]
    return any(right.left - left.right > 0.8 * height for left, right in pairwise(boxes))


def _is_near(pieces: Sequence[Line], above: Sequence[int], row: Sequence[int], height: float) -> bool:
    """Return whether a row may be the next one of a table."""
    step = min(pieces[one].box.top for one in row) - max(pieces[one].box.bottom for one in above)
    return -0.6 * height < step < _NEAR * height


def _grids_of(
    pieces: Sequence[Line], run: list[list[int]], rules: Rules, height: float, depth: int = 3
) -> list[Grid]:
    """Return the grid of rows; if they form none, the grids above and below their widest gap."""
    grid = _Aligned(pieces, run, rules, height).grid()
    if (grid is not None and grid.table is not None) or not depth or len(run) < 2 * _MIN_ROWS:
        return [grid] if grid is not None else []
    boxes = [around(pieces[number].box for number in row) for row in run]
    steps = [middle(lower)[1] - middle(upper)[1] for upper, lower in pairwise(boxes)]
    widest = int(np.argmax(steps))
    if steps[widest] > _WIDER * float(np.median(steps)):
        parts = [
            part
            for half in (run[: widest + 1], run[widest + 1 :])
            for part in _ended(pieces, half, rules, height)
        ]
        grids = [found for part in parts for found in _grids_of(pieces, part, rules, height, depth - 1)]
        if any(found.table is not None for found in grids):
            return grids
    return [grid] if grid is not None else []


def _ended(
    pieces: Sequence[Line], run: list[list[int]], rules: Rules, height: float
) -> Iterator[list[list[int]]]:
    """Yield the run without rows that only precede or follow the table.

    Fields with their values above or below the table, as those of a patient, are in none of its columns. A last single
    piece belongs to the table if it is in a column and not below the last ruling line, where notes are.
    """
    full = [row for row in run if len(row) >= _FULL_ROW * max(map(len, run))]

    def sides(row: Sequence[int]) -> list[tuple[int, int]]:
        return [(pieces[one].box.left, pieces[one].box.right) for one in row[1:]]

    def is_fields(row: Sequence[int]) -> bool:
        places = np.array([place for other in full if other is not row for place in sides(other)])
        near = (np.mean(np.any(np.abs(places - place) < 0.5 * height, axis=1)) for place in sides(row))
        fields = sum(bool(_FIELD.search(pieces[one].text)) for one in row)
        return bool(len(places) and 2 * fields >= len(row) and max(near, default=0) <= _IN_COLUMN)

    start = next((number for number, row in enumerate(run) if not is_fields(row)), len(run))
    end = next((number for number, row in enumerate(run[::-1]) if len(row) == 1 or not is_fields(row)), 0)
    run = run[start : len(run) - end]
    if sum(len(row) > 1 for row in run) < _MIN_ROWS:
        return
    rows = [[pieces[one].box for one in row] for row in run]
    count = max(number for number, row in enumerate(rows, 1) if len(row) > 1)
    names = max(row[0].right for row in rows[:count] if len(row) > 1)
    pitch = float(np.median(np.diff([middle(row[0])[1] for row in rows[:count]])))
    later = [box.left for row in rows[:count] for box in row[1:]]
    for [box] in rows[count:]:
        is_cell = box.right <= names or any(abs(box.left - left) < 0.5 * height for left in later)
        above = rows[count - 1][0]
        is_note = rules.part(above, box) and not rules.between(
            middle(box)[1], box.bottom + height, box.left, box.right
        )
        if middle(box)[1] - middle(above)[1] > 1.3 * pitch or not is_cell or is_note:
            break
        count += 1
    yield run[:count]


class _Aligned:
    """Rows of pieces that may be a table."""

    def __init__(
        self, pieces: Sequence[Line], run: Sequence[Sequence[int]], rules: Rules, height: float
    ) -> None:
        self.pieces, self.run = pieces, run
        self.rows = [[pieces[one] for one in row] for row in run]
        self.members = frozenset(one for row in run for one in row)
        self.rules, self.height = rules, height
        self.is_unclear = False  # the lines of its head may be rows
        self.box = around(piece.box for row in self.rows for piece in row)

    def grid(self) -> Grid | None:
        """Return the grid of aligned rows, or None if they are not aligned."""
        strips = self._walls()
        walls = self._parting(strips)
        starts = []  # where the column behind each wall starts in most rows
        for wall in walls:
            behind = ([piece.box.left for piece in row if piece.box.left > wall] for row in self.rows)
            firsts = [min(lefts) for lefts in behind if lefts]
            starts.append(float(np.median(firsts)) if firsts else wall)
        top = self.rows[0]
        self._part_heads(walls)
        placed = [self._placed(row, walls, starts) for row in self.rows]
        boxes = [around(piece.box for _, _, piece in row) for row in placed]
        ruled = [
            self.rules.between(upper.bottom - 2, lower.top + 2, self.box.left, self.box.right)
            for upper, lower in pairwise(boxes)
        ]
        body = _body_start(placed, ruled)
        if body and len(top) == 1 and not self._is_heading(self._columns(top, walls)[0], placed[1:]):
            return _Aligned(self.pieces, self.run[1:], self.rules, self.height).grid()
        placed[:body] = _spanned(placed[:body], placed[body:], 0.3 * self.height)
        columns = len(walls) + 1
        full = sum(len({place for place, _, _ in row}) > max(1.0, 0.5 * len(strips)) for row in placed)
        texts = [piece for row in placed for _, _, piece in row]
        options = sum(piece.text[:1] in SIGNS for piece in texts)
        if self._is_justified(texts):
            return None
        width = np.median([piece.box.right - piece.box.left for piece in texts])
        if options > _MAX_OPTIONS * len(texts) or width > _MAX_CELL * self.height:
            return None  # boxes to be ticked with their labels, or prose
        pieces = np.mean([len(row) for row in self.rows])
        if columns < _MIN_COLUMNS or full < 0.5 * len(placed) or pieces > columns + 1:
            unclear = pieces >= _UNCLEAR_PIECES and len(self.rows) > _MIN_ROWS
            return Grid(box=self.box, table=None, lines=(), members=self.members) if unclear else None
        ends = [piece for row in placed for first, _, piece in row if first > 0]
        if columns == _MIN_COLUMNS and sum(is_number(piece.text) for piece in ends) <= 0.7 * len(ends):
            return None
        numbers = Counter(
            column
            for row in placed[body:]
            for column, count in Counter(first for first, _, piece in row if is_number(piece.text)).items()
            if count > 1
        )
        self.is_unclear = max(numbers.values(), default=0) > _TWO_NUMBERS * len(placed[body:])
        groups = self._groups(placed, boxes, ruled, body)
        boxes = [around(piece.box for row in group for _, _, piece in row) for group in groups]
        middles = [(above.bottom + below.top) / 2 for above, below in pairwise(boxes)]
        ys = [boxes[0].top, *middles, boxes[-1].bottom]
        owners = np.arange(len(groups) * columns).reshape(len(groups), columns)
        draft = Draft([self.box.left, *walls, self.box.right], ys, owners)
        draft.members |= self.members
        for number, group in enumerate(groups):
            for first, last, piece in (place for row in group for place in row):
                if draft.content.keys().isdisjoint(owners[number, first : last + 1].tolist()):
                    owners[number, first : last + 1] = owners[number, first]
                draft.content.setdefault(int(owners[number, first]), []).append(piece)
        return draft.grid(is_unclear=self.is_unclear)

    def _is_heading(self, above: tuple[int, int, Line], rows: Sequence[_Row]) -> bool:
        """Return whether a piece above the rows is their heading: it is above the middle of the value columns."""
        first, last, piece = above
        box, slack = piece.box, 0.3 * self.height
        below = [other.box for start, _, other in rows[0] if 0 < start == first == last]
        if any(_lines_up(box, other, slack) for other in below):
            return True  # the first line of a column's name
        names = max((other.box.right for row in rows for _, last, other in row if last == 0), default=0)
        values = around(other.box for row in rows for first, _, other in row if first > 0)
        return box.left > names and abs(middle(box)[0] - middle(values)[0]) < _ABOVE * self.height

    def _is_justified(self, texts: Sequence[Line]) -> bool:
        """Return whether these are justified lines of prose: with wide spaces, all ending at one place."""
        ends = np.array([row[-1].box.right for row in self.rows])
        flush = float(np.mean(ends.max() - ends < self.height))
        lower = sum(piece.text[:1].islower() for piece in texts)
        numbers = sum(any(map(str.isdigit, piece.text)) for piece in texts)
        return flush > _FLUSH and lower > _LOWER * len(texts) and numbers < _FEW * len(texts)

    def _walls(self) -> list[float]:
        """Return the walls: places of white space between columns."""
        most = np.percentile([len(row) for row in self.rows], 80)
        rows = [row for row in self.rows if len(row) >= max(2, 0.6 * most)]
        texts = [piece for row in rows for piece in row if not SIGN.fullmatch(piece.text.strip())]
        others = [piece for row in self.rows if row not in rows for piece in row]
        strips = free_strips(texts, int(_CROSSED * len(rows)), others)
        return [place for width, place in strips if width > _GAP * self.height]

    def _parting(self, walls: Sequence[float]) -> list[float]:
        """Return the walls with cells on both sides in one row: names may be beside the values of their column."""
        cells: list[set[int]] = [set() for _ in range(len(walls) + 1)]  # rows with text, by column
        for number, row in enumerate(self.rows):
            for piece in row:
                cells[int(np.searchsorted(walls, middle(piece.box)[0]))].add(number)
        body = self._first_values()
        kept: list[float] = []
        before: set[int] = set()
        for wall, here, after in zip(walls, cells, cells[1:], strict=False):
            before |= here
            if not kept or before & after or min(max(before, default=body), max(after, default=body)) > body:
                kept.append(wall)
                before = set()
        return kept

    def _first_values(self) -> int:
        """Return the first row that holds values."""
        rows = ([(1, 1, piece) for piece in row[1:]] for row in self.rows)
        return next((number for number, row in enumerate(rows) if _is_body(row)), 0)

    def _part_heads(self, walls: list[float]) -> None:
        """Split a piece with the names of several columns at a wide space, or one between two columns of numbers."""
        body = self._first_values()
        below = [piece.box for row in self.rows[body:] for piece in row]
        for before, wall, after in zip(
            [self.box.left, *walls], walls, [*walls[1:], self.box.right], strict=False
        ):
            ends = [box.right for box in below if before <= box.left and box.right <= wall]
            starts = [box.left for box in below if wall <= box.left and box.right <= after]
            start = float(np.median(ends)) if ends else before
            end = float(np.median(starts)) if starts else after
            spaces = [
                (number, space)
                for number, row in enumerate(self.rows[:body])
                for piece in row
                if piece.box.left < start and piece.box.right > end
                for space in [self._widest_space(piece, start, end)]
            ]
            clear = [space is not None and space[1] for _, space in spaces]
            if not spaces or any(space is None for _, space in spaces):
                continue
            if all(clear) or (any(clear) and len(spaces) > 1):
                for number, space in spaces:
                    places = [space[0]] if space else []
                    self.rows[number] = [
                        part for piece in self.rows[number] for part in cut(piece, places, 0)
                    ]

    def _widest_space(self, piece: Line, start: float, end: float) -> tuple[float, bool] | None:
        """Return where two cells may be split, and whether the space is wide or words align with the numbers."""
        spaces = [
            (right.box.left - left.box.right, left.box.right, right.box.left)
            for left, right in pairwise(piece.words)
        ]
        near = 0.3 * self.height
        usual = max(near, float(np.median([width for width, _, _ in spaces])) if len(spaces) > 2 else 0.0)  # noqa: PLR2004
        rated = [
            (
                abs(left - start) < near or abs(right - end) < near,
                width > 1.2 * usual,
                width,
                (left + right) / 2,
            )
            for width, left, right in spaces
            if left < end and right > start
        ]
        is_aligned, is_wide, _, place = max(rated, default=(False, False, 0.0, None))
        return None if place is None else (place, is_aligned or is_wide)

    def _placed(self, row: Sequence[Line], walls: list[float], starts: list[float]) -> _Row:
        """Return the parts of a row's pieces with the first and the last column of each.

        A piece of two cells is split: at a wide space by a wall, or where a word starts with its column.
        """
        height, slack = self.height, 0.3 * self.height
        parts: list[Line] = []
        for piece in row:
            ends = [(left.box.right, right.box.left) for left, right in pairwise(piece.words)]
            spaces = [
                (end + begin) / 2
                for end, begin in ends
                for wall, start in zip(walls, starts, strict=True)
                if end - 0.5 * height < wall < begin + 0.5 * height
                and (begin - end > 0.45 * height or abs(begin - start) < slack)
            ]
            parts += cut(piece, spaces, 0)
        return self._columns(parts, walls)

    def _columns(self, parts: Sequence[Line], walls: list[float]) -> _Row:
        """Return the parts of a row with the first and the last column of each."""
        slack = 0.3 * self.height
        firsts = np.searchsorted(walls, [min(part.box.left + slack, middle(part.box)[0]) for part in parts])
        lasts = np.searchsorted(walls, [max(part.box.right - slack, middle(part.box)[0]) for part in parts])
        return list(zip(firsts.tolist(), lasts.tolist(), parts, strict=True))

    def _groups(
        self, placed: list[_Row], boxes: Sequence[Box], ruled: Sequence[bool], body: int
    ) -> list[list[_Row]]:
        """Return groups of text rows that form one row of the table: a row may continue the cells above it."""
        pitches = [middle(lower)[1] - middle(upper)[1] for upper, lower in pairwise(boxes)]
        tight = _tight(pitches, [len({first for first, _, _ in row}) for row in placed], self.height)
        by_rules = sum(ruled) >= max(_MIN_ROWS - 1, 0.3 * len(pitches))
        step = float(np.median(pitches[body:])) if pitches[body:] else 0.0
        apart = _ROW_STEP * step if step > _LOOSE * self.height else np.inf  # step that parts rows of a head
        groups = [[placed[0]]]
        for number, (row, pitch, rule) in enumerate(zip(placed[1:], pitches, ruled, strict=True), 1):
            above = {first for one in groups[-1] for first, _, _ in one}
            here, numbers = {first for first, _, _ in row}, _numbers(row)
            if pitch < max(_SAME_ROW * self.height, _HALF_STEP * step):
                goes_on = True  # a value beside the middle of a label of two lines
            elif rule or any(numbers & _numbers(one) for one in groups[-1]):
                goes_on = False
            elif number < body:
                goes_on = pitch < min(apart, _HEAD_PITCH * self.height) and _is_below(row, groups[-1])
                self.is_unclear |= goes_on and pitch > _SAME_STEP * step
            elif number > body and _goes_on(groups[-1], row):
                goes_on = True
            elif pitch <= max(tight, _PITCH * self.height if by_rules else 0):
                goes_on = here <= above or not here & above
            else:
                goes_on = len(here) == 1 and here <= above and 0 not in here and not numbers
            if goes_on:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups


def _body_start(placed: Sequence[_Row], ruled: Sequence[bool]) -> int:
    """Return the first row of values, or the first line of its name of several lines."""
    texts = [(number, column, piece.text) for number, row in enumerate(placed) for column, _, piece in row]
    counts = Counter(column for _, column, _ in texts if column)
    values = Counter(column for _, column, text in texts if _VALUE.match(text))
    numeric = {column for column, count in counts.items() if values[column] >= _NUMERIC * count}
    some = ([place for place in row if place[0] in numeric or not numeric] for row in placed)
    body = next((number for number, row in enumerate(some) if _is_body(row, _VALUES)), 0)
    while body > 1 and {first for first, _, _ in placed[body - 1]} == {0}:
        goes_on = placed[body][0][0] == 0 and placed[body][0][2].text[:1].islower()
        if not (ruled[body - 2] or (goes_on and not ruled[body - 1])):
            break
        body -= 1
    return body


def _is_body(row: _Row, least: float = 0.5) -> bool:
    """Return whether a row holds values rather than names of columns."""
    later = [piece for first, _, piece in row if first > 0]
    numbers = [piece for piece in later if _VALUE.match(piece.text)]
    years = [piece for piece in numbers if _YEAR.fullmatch(piece.text.strip())]
    return len(numbers) >= max(1, least * len(later)) and len(years) < max(2, len(numbers))


def _spanned(head: Sequence[_Row], body: Sequence[_Row], slack: float) -> list[_Row]:
    """Return the rows of a head with the columns of each name.

    A name belongs to the columns below it. A name above several others belongs to those around whose middle it is,
    unless it is aligned with the column below.
    """
    boxes: dict[int, list[Box]] = {}
    for first, last, piece in (place for row in body for place in row):
        if first == last:
            boxes.setdefault(first, []).append(piece.box)
    cells = {column: around(some) for column, some in boxes.items()}
    rows: list[_Row] = []
    names: dict[int, Box] = {}  # of one column each, below the row
    for row in reversed(head):
        over: _Row = []
        for first, last, piece in row:
            covered = [
                column
                for column in range(first, last + 1)
                if column in cells
                and max((_common(cells[column], other.box), other is piece) for _, _, other in row)[1]
                and _common(cells[column], piece.box) > slack
            ]
            over.append((covered[0], covered[-1], piece) if covered else (first, last, piece))
        ends = [1, *(last + 1 for _, last, _ in over)]
        starts = [*(first for first, _, _ in over[1:]), max(names, default=0) + 1]
        for place, ((first, last, piece), start, end) in enumerate(zip(over, ends, starts, strict=False)):
            known = [some[first] for some in (names, cells) if first in some]
            if first == last and any(_lines_up(piece.box, box, slack) for box in known):
                continue
            options = [
                (abs(middle(around(places))[0] - middle(piece.box)[0]), left, right)
                for left in range(start, first + 1)
                for right in range(last, end)
                if all(column in names and column in cells for column in range(left, right + 1))
                for places in [[some[column] for column in range(left, right + 1) for some in (names, cells)]]
            ]
            if options:
                over[place] = (*min(options)[1:], piece)
        names |= {first: piece.box for first, last, piece in over if first == last}
        rows.insert(0, over)
    return rows


def _common(above: Box, below: Box) -> int:
    """Return the common width of two boxes."""
    return min(above.right, below.right) - max(above.left, below.left)


def _lines_up(name: Box, cell: Box, slack: float) -> bool:
    """Return whether a name has its left, right or middle where a cell has."""
    places = ((box.left, middle(box)[0], box.right) for box in (name, cell))
    return any(abs(one - other) < slack for one, other in zip(*places, strict=True))


def _is_below(row: _Row, group: list[_Row]) -> bool:
    """Return whether each name in a row of a head continues that of its column, none that of several columns."""
    spans = [(first, last) for one in group for first, last, _ in one]
    for first, last, _ in row:
        for start, end in spans:
            if start <= last and first <= end and (start, end) != (first, last):
                return False
    return {first for first, _, _ in row} != {0}


def _goes_on(group: list[_Row], row: _Row) -> bool:
    """Return whether a name of several lines continues: after the row with its values, or up to that row."""
    last = group[-1]
    names = [[piece.text for first, _, piece in one if first == 0] for one in (last, row)]
    if not all(names) or not names[1][0][:1].islower():
        return False
    alone = [{first for first, _, _ in one} == {0} for one in (last, row)]
    return alone[1] or (alone[0] and all({first for first, _, _ in one} == {0} for one in group))


def _tight(pitches: list[float], cells: list[int], height: float) -> float:
    """Return the widest step between lines of one cell; 0 if cells have one line each.

    With several lines there are two widths of steps, and of the lines between two wide ones one has more cells.
    """
    steps = pairwise(sorted(pitches))
    jumps = [(wide / max(narrow, 1), narrow) for narrow, wide in steps if narrow < _PITCH * height]
    jump, tight = max(jumps, default=(0.0, 0.0))
    starts = [0, *(k + 1 for k, pitch in enumerate(pitches) if pitch > tight), len(cells)]
    groups = [cells[start:end] for start, end in pairwise(starts) if end - start > 1]
    anchored = sum(group.count(max(group)) == 1 for group in groups)
    return tight if jump > _JUMP and anchored > 0.6 * len(groups) else 0.0


def _numbers(row: _Row) -> set[int]:
    return {first for first, _, piece in row if is_number(piece.text)}
