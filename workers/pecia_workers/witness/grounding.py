"""A page's text compared with a witness of the same page: places for words and cells, doubts, and the verdict."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Doubt,
    DoubtReason,
    Line,
    Witnessed,
    Word,
    mean_confidence,
)
from pecia_schemas.results import Page, Verdict
from pecia_workers.layout.lines import around
from pecia_workers.witness.alignment import align, in_a_row
from pecia_workers.witness.placement import Cells, misplaced, out_of_order, place_equals
from pecia_workers.witness.tokens import Token, WitnessText, look_alike, tokens_of

_ASIDE: Final = frozenset(
    {BlockKind.HEADER, BlockKind.FOOTER, BlockKind.PAGE_NUMBER, BlockKind.STAMP, BlockKind.FIGURE}
)
"""Kinds of blocks that some models leave out by design: they raise a doubt, but do not make a page incomplete."""
_WHOLE: Final = 0.5
"""Share of a line's signs from which the line is missing, rather than words of it."""
_SURE, _SURE_SIGN = 0.7, 0.9
"""Confidence of a witness's words, and of a single character, below which they count as specks."""
_UNSURE: Final = 0.9
"""Confidence of a witness's words below which it does not tell signs apart that look alike, if the model is sure."""
INVENTED_ROW, _INVENTED = 4, 0.05
"""Words in a row, and share of a page's words, that are not on the page, from which it is to be looked at."""
_NOISE: Final = 0.5
"""Share of words that are not on the page from which the text is unreadable."""
_FOREIGN: Final = 0.2
"""Share of words in unknown scripts from which the witness reports no missing text."""


def grounded(page: Page, witness: WitnessText, unsure: frozenset[str] | None = None) -> Page:
    """Return the page with places and doubts from the witness, and the verdict that follows.

    `unsure`: words of which the model was unsure; None if unknown.
    """
    compared = Compared(page.blocks, witness, unsure)
    verdict, doubts = Verdict.worst(page.verdict, compared.verdict()), (*page.doubts, *compared.doubts)
    update = {"blocks": tuple(compared.placed()), "witness": compared.report()}
    return page.model_copy(update={**update, "doubts": doubts, "verdict": verdict})


def words_at(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the words that a stretch of a text touches."""
    return (word[0] for word in re.finditer(r"\S+", text) if word.start() < end and start < word.end())


def _away(box: Box, line: Box | None) -> int:
    """Return the vertical distance of a box from a line; 0 beside it, or if the line's place is unknown."""
    return 0 if line is None else max(0, line.top - box.bottom, box.top - line.bottom)


class Compared:
    """The blocks of a page beside what the witness saw."""

    def __init__(self, blocks: Sequence[Block], witness: WitnessText, unsure: frozenset[str] | None) -> None:
        self.blocks, self.witness = blocks, witness
        self.lines: list[tuple[int, str]] = []
        """For each line of text its block and itself."""
        tokens: list[Token] = []
        for number, block in enumerate(blocks):
            for text in block.text.split("\n"):
                tokens += tokens_of(text, len(self.lines))
                self.lines.append((number, text))
        self.aligned = align(tokens, [one.token for one in witness.seen], witness.comparison)
        self.of_line: dict[int, list[int]] = {}
        for one, token in enumerate(tokens):
            self.of_line.setdefault(token.line, []).append(one)
        moved = set(self._reunite())
        if unsure is not None and not witness.comparison.exact:
            self._trust(unsure)
        tables = list(self._tables())
        self.misplaced = moved | set(self._misplaced(tables))
        if placed := self._place_equals(tables):
            moved = (moved - placed) | set(self._reunite())
            self.misplaced = moved | set(self._misplaced(tables))
        to_seen = self.aligned.to_seen
        self.judged = [
            one
            for one, token in enumerate(tokens)
            if to_seen[one] or (witness.can_read(token) and not self._is_lost_stroke(one))
        ]
        self.missing = list(self._missing())
        self.doubts = tuple(self._doubts())

    @property
    def letter_height(self) -> float:
        """The usual height of a word of the witness; 0 if it has none."""
        return float(np.median([one.box.bottom - one.box.top for one in self.witness.seen] or [0]))

    def is_of_placed_word(self, one: int) -> bool:
        """Return whether an adjacent token, without a space between, has a place."""
        written = self.aligned.written
        text = self.lines[written[one].line][1]
        return any(
            self.aligned.to_seen[first if second == one else second]
            and written[first].line == written[second].line
            and not re.search(r"\s", text[written[first].end : written[second].start])
            for first, second in pairwise(range(max(0, one - 1), min(len(written), one + 2)))
        )

    def _is_lost_stroke(self, one: int) -> bool:
        """Return whether it is the `l` of a unit after a slash, which recognisers drop."""
        aligned, before = self.aligned, one - 1
        if (
            self.witness.comparison.exact
            or aligned.written[one].key != "l"
            or before < 0
            or not aligned.to_seen[before]
        ):
            return False
        return self.witness.seen[aligned.to_seen[before][-1]].word.endswith("/")

    def _reunite(self) -> Iterator[int]:
        """Match equal unmatched tokens of both sides; yield values that are then beside the rest of their line.

        A line of which most is unmatched may be invented: its common words are not matched.
        """
        aligned, seen = self.aligned, self.witness.seen
        free: dict[str, list[int]] = {}
        for other, to in enumerate(aligned.to_written):
            if not to:
                free.setdefault(seen[other].token.key, []).append(other)
        for tokens in self.of_line.values():
            rest = [one for one in tokens if not aligned.to_seen[one] and not self._is_lost_stroke(one)]
            if 2 * len(rest) > len(tokens) and not all(free.get(aligned.written[one].key) for one in rest):
                continue
            around_it = self.box(tokens) if rest else None
            for one in rest:
                if places := free.get(aligned.written[one].key):
                    away = [_away(seen[other].box, around_it) for other in places]
                    aligned.match((one,), (places.pop(away.index(min(away))),))
                    if min(away) and aligned.written[one].is_value:
                        yield one

    def _trust(self, unsure: frozenset[str]) -> None:
        """Match tokens that differ only in similar characters, where the model is sure and the witness is not."""
        aligned, seen = self.aligned, self.witness.seen
        for line, tokens in self.of_line.items():
            doubted = [one for one in tokens if one in aligned.differs or not aligned.to_seen[one]]
            for run in in_a_row(doubted):
                places = self._with_neighbours([other for one in run for other in aligned.to_seen[one]])
                written, others = aligned.written[run.start : run.stop], [seen[place] for place in places]
                if (
                    others
                    and max(one.confidence for one in others) < _UNSURE
                    and look_alike(written, [one.token for one in others])
                    and unsure.isdisjoint(words_at(self.lines[line][1], written[0].start, written[-1].end))
                ):
                    aligned.match(run, places)
                    aligned.differs.difference_update(run)

    def _with_neighbours(self, places: Sequence[int]) -> range:
        """Return the places of the witness's tokens, with unmatched ones next to them in their row."""
        if not places:
            return range(0)
        seen, free = self.witness.seen, [not to for to in self.aligned.to_written]
        start, end = min(places), max(places) + 1
        while start and free[start - 1] and seen[start - 1].row == seen[start].row:
            start -= 1
        while end < len(seen) and free[end] and seen[end].row == seen[end - 1].row:
            end += 1
        return range(start, end)

    def _tables(self) -> Iterator[Cells]:
        numbers = iter(range(len(self.lines)))
        for block in self.blocks:
            own = [next(numbers) for _ in block.text.split("\n")]
            if block.table and block.text == block.table.text:
                yield {
                    (cell.row, cell.column): self._of_cell(own[cell.row], cell.column)
                    for cell in block.table.cells
                }

    def _misplaced(self, tables: Iterable[Cells]) -> Iterator[int]:
        rows, boxes = [one.row for one in self.witness.seen], [one.box for one in self.witness.seen]
        yield from out_of_order(self.aligned, self.of_line, rows, boxes)
        for cells in tables:
            of_cells = {place: box for place, tokens in cells.items() if (box := self.box(tokens))}
            yield from misplaced(cells, of_cells, self.aligned)

    def _place_equals(self, tables: Iterable[Cells]) -> set[int]:
        """Match doubtful values of tables again; return those that are then in their own cell."""
        aligned, boxes = self.aligned, [one.box for one in self.witness.seen]
        doubtful = {
            one
            for one, to in enumerate(aligned.to_seen)
            if aligned.written[one].is_value and (not to or one in aligned.differs or one in self.misplaced)
        }
        return {one for cells in tables for one in place_equals(cells, doubtful, aligned, boxes)}

    def _of_cell(self, line: int, column: int) -> list[int]:
        """Return the tokens of a table cell in the row with this line number."""
        columns = self.lines[line][1].split("\t")
        start = sum(len(text) + 1 for text in columns[:column])
        return self._between(line, start, start + len(columns[column]))

    def box(self, tokens: Iterable[int]) -> Box | None:
        """Return the box around tokens, or None if none is on the page."""
        seen = [self.witness.seen[other].box for one in tokens for other in self.aligned.to_seen[one]]
        return around(seen) if seen else None

    def confidence(self, tokens: Sequence[int]) -> float | None:
        """Return the least confidence of the tokens by the witness; 0 for one that it does not see."""
        sure = []
        for one in tokens:
            seen = (self.witness.seen[other].confidence for other in self.aligned.to_seen[one])
            least = min(seen, default=0.0)
            sure.append(1 - least if one in self.aligned.differs else least)
        return min(sure, default=None)

    def placed(self) -> Iterator[Block]:
        """Yield the blocks with the places of their lines, words and cells."""
        numbers = iter(range(len(self.lines)))
        for block in self.blocks:
            own = [next(numbers) for _ in block.text.split("\n")]
            lines = tuple(line for number in own for line in self._lines(number))
            box = around(line.box for line in lines) if lines else None
            table = block.table
            if table and block.text == table.text:
                cells = list(table.cells)
                for place, cell in enumerate(cells):
                    tokens = self._of_cell(own[cell.row], cell.column)
                    found = {"box": cell.box or self.box(tokens), "confidence": self.confidence(tokens)}
                    cells[place] = cell.model_copy(update=found)
                table = table.model_copy(update={"cells": tuple(cells)})
            update = {"lines": block.lines or lines, "box": block.box or box, "table": table}
            yield block.model_copy(update=update)

    def _between(self, line: int, start: int, end: int) -> list[int]:
        written = self.aligned.written
        return [one for one in self.of_line.get(line, ()) if start <= written[one].start < end]

    def _lines(self, number: int) -> Iterator[Line]:
        """Yield a line of text as lines of the witness: split where it continues in another line or cell."""
        text = self.lines[number][1]
        run: list[tuple[str, Box | None, list[int]]] = []
        last: int | None = None
        start: int | None = None
        for found in re.finditer(r"\S+", text):
            if start is None or "\t" in text[start : found.start()]:
                start = found.start()
            if not any(map(str.isalnum, found.group())):
                continue  # it is of the next word, or of none
            word, tokens = text[start : found.end()], self._between(number, start, found.end())
            there = (self.witness.seen[to[0]] for one in tokens if (to := self.aligned.to_seen[one]))
            row = next((one.row for one in there), None)
            if "\t" in text[start - 1 : start] or (row is not None and last is not None and row != last):
                yield from self._line(run)
                run, last = [], None
            run.append((word, self.box(tokens), tokens))
            last = last if row is None else row
            start = None
        yield from self._line(run)

    def _line(self, run: Sequence[tuple[str, Box | None, list[int]]]) -> Iterator[Line]:
        words = tuple(
            Word(text=text, box=box, confidence=self.confidence(tokens)) for text, box, tokens in run if box
        )
        if words:
            text, box = " ".join(text for text, _, _ in run), around(word.box for word in words)
            yield Line(text=text, box=box, confidence=mean_confidence(words), words=words)

    def _doubts(self) -> Iterator[Doubt]:
        """Yield a doubt for each token that the witness reads otherwise, elsewhere or never, and for missing text."""
        aligned, judged = self.aligned, set(self.judged)

        def standing(one: int) -> DoubtReason | None:
            if one in aligned.differs:
                return DoubtReason.DISAGREES
            if one in self.misplaced:
                return DoubtReason.MISPLACED
            return None if aligned.to_seen[one] or one not in judged else DoubtReason.NOT_ON_PAGE

        for line, tokens in self.of_line.items():
            for reason, group in groupby(tokens, key=standing):
                run = list(group)
                if reason is DoubtReason.MISPLACED:
                    text = self.lines[line][1][aligned.written[run[0]].start : aligned.written[run[-1]].end]
                    yield Doubt(reason=reason, box=self.box(run), text=text, on_value=True)
                if reason is DoubtReason.NOT_ON_PAGE:
                    text = self.lines[line][1][aligned.written[run[0]].start : aligned.written[run[-1]].end]
                    on_value = any(aligned.written[one].is_value for one in run)
                    yield Doubt(reason=reason, text=text, on_value=on_value)
                for one in run if reason is DoubtReason.DISAGREES else ():
                    token = aligned.written[one]
                    others = [aligned.seen[other] for other in aligned.to_seen[one]]
                    is_of_mark = token.is_mark and all(other.key in token.key for other in others)
                    yield Doubt(
                        reason=DoubtReason.DISAGREES,
                        box=self.box([one]),
                        text=token.text,
                        other=" ".join(other.text for other in others),
                        on_value=token.is_value
                        or (not is_of_mark and any(other.is_value for other in others)),
                    )
        for row, places, _ in self.missing:
            seen = [self.witness.seen[other] for other in places]
            is_value = any(one.token.is_value for one in seen)
            yield Doubt(
                reason=DoubtReason.ONLY_WITNESS,
                box=around(one.box for one in seen),
                other=" ".join(word for word, _ in groupby(one.word for one in seen)),
                on_value=is_value and self.witness.kinds[row] not in _ASIDE,
            )

    def _missing(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """Yield the tokens that only the witness reads, by row, and whether they are most of a line."""
        if len(self.aligned.written) - len(self.judged) > _FOREIGN * len(self.aligned.written):
            return
        seen = self.witness.seen
        for row, group in groupby(range(len(seen)), key=lambda other: seen[other].row):
            places = list(group)
            left = [other for other in places if not self.aligned.to_written[other]]
            lost, whole = (sum(len(seen[other].token.key) for other in some) for some in (left, places))
            is_whole = lost >= _WHOLE * whole
            for run in [left] if is_whole else in_a_row(left):
                signs = sum(len(seen[other].token.key) for other in run)
                sure = sum(seen[other].confidence * len(seen[other].token.key) for other in run)
                if signs and sure / signs >= (_SURE if signs > 1 else _SURE_SIGN):  # else it is specks
                    yield row, run, is_whole

    def verdict(self) -> Verdict:
        """Return the worst verdict of the doubts."""
        lost = [one for one in self.judged if not self.aligned.to_seen[one]]
        if lost and len(lost) >= _NOISE * len(self.judged):
            return Verdict.LOW_CONFIDENCE
        if any(whole and self.witness.kinds[row] not in _ASIDE for row, _, whole in self.missing):
            return Verdict.INCOMPLETE
        longest = max(map(len, in_a_row(lost)), default=0)
        is_invented = len(lost) > _INVENTED * len(self.judged) or longest >= INVENTED_ROW
        return Verdict.REVIEW if is_invented or any(one.on_value for one in self.doubts) else Verdict.OK

    def report(self) -> Witnessed:
        """Return the counts of words by their grounding."""
        to_seen, differs = self.aligned.to_seen, len(self.aligned.differs)
        found = sum(bool(to) for to in to_seen)
        values = [one for one in self.judged if self.aligned.written[one].is_value]
        return Witnessed(
            source=self.witness.source,
            words=len(to_seen),
            agrees=found - differs,
            differs=differs,
            not_on_page=len(self.judged) - found,
            only_witness=sum(not to for to in self.aligned.to_written),
            values=len(values),
            values_agree=sum(bool(to_seen[one]) and one not in self.aligned.differs for one in values),
        )
