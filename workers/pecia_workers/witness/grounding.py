"""A page's text compared with a witness of the same page: places for words and cells, doubts, and the verdict."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Doubt,
    DoubtReason,
    Line,
    Source,
    Witnessed,
    Word,
    mean_confidence,
)
from pecia_schemas.results import Page, Verdict
from pecia_workers.layout.lines import around, box_of, corners_of, middle, touch, words_of
from pecia_workers.witness.alignment import align, in_a_row
from pecia_workers.witness.placement import Cells, misplaced, out_of_order, place_equals
from pecia_workers.witness.tokens import (
    Comparison,
    Token,
    look_alike,
    placed_words,
    token_boxes,
    tokens_of,
)

_ASIDE: Final = frozenset(
    {BlockKind.HEADER, BlockKind.FOOTER, BlockKind.PAGE_NUMBER, BlockKind.STAMP, BlockKind.FIGURE}
)
"""Kinds of blocks that some models leave out by design: they raise a doubt, but do not make a page incomplete."""
_WHOLE: Final = 0.5
"""Share of a line's characters from which the line counts as missing, rather than some words."""
_BESIDE, _ABOVE = 6, 2
"""Distance from the placed words of a line at which its rest may be, in letter heights."""
_SURE, _SURE_SIGN = 0.7, 0.9
"""Confidence of a witness's words, and of a single character, below which they count as specks."""
_UNSURE: Final = 0.9
"""Confidence of a witness's words below which its similar characters do not contradict a model that is sure."""
_INVENTED_ROW, _INVENTED = 4, 0.05
"""Consecutive words, and share of all words, that are not on the page, from which the page is doubtful."""
_NOISE: Final = 0.5
"""Share of words that are not on the page from which the text is unreadable."""
_FOREIGN: Final = 0.2
"""Share of words in unknown scripts from which the witness reports no missing text."""
_UNKNOWN: Final = re.compile(
    r"[^\W\d_\u0000-\u024f\u1e00-\u1eff⁰⁴-⁹\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaffµ\u03bc]"
)
"""Characters of scripts that the CPU engine cannot read."""
_OXYGEN: Final = re.compile(r"\b(p|pC|[pP][aevt]C?|S[pavc]|Fi|etC)02\b")
"""Formulas in which a recogniser reads the letter O as zero. `C02` and `S02` are diagnosis codes, too."""
_THOUSANDS, _THOUSANDTHS = re.compile(r"\d{1,3}(?:,\d{3})+"), re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
"""Patterns of numbers that are ambiguous between comma and point."""
_USUAL: Final = 10
"""Numbers that show a page's format of numbers."""
_AROUND: Final = ".,;:!?()[]\"'\\*"
_HANGUL: Final = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Seen:
    """A token of the witness, with its place."""

    token: Token
    box: Box
    confidence: float
    row: int
    word: str
    origin: Box
    """Index of its word, as read."""


class WitnessText:
    """A witness's reading of a page."""

    def __init__(
        self,
        blocks: Sequence[Block],
        source: Source,
        *,
        pixels: NDArray[np.uint8] | None = None,
        language: str | None = None,
    ) -> None:
        """`pixels`: the page, if the witness's places are inexact. `language`: the language that it assumed."""
        self.source = source
        self.comparison = Comparison(exact=source is Source.LAYER)
        self.seen: list[Seen] = []
        self.kinds: list[BlockKind] = []
        """Kind of block of each line or table row."""
        self._reads_hangul = language == "ko"
        for block in blocks:
            for row in _rows_of(block):
                words = [
                    (word, read.box)
                    for line in row
                    for word, read in zip(placed_words(line, pixels), words_of(line), strict=True)
                ]
                self._take_words(words, len(self.kinds), pixels)
                self.kinds.append(block.kind)

    def _take_words(
        self, words: Iterable[tuple[Word, Box]], row: int, pixels: NDArray[np.uint8] | None
    ) -> None:
        for word, origin in words:
            sure = 1.0 if word.confidence is None else word.confidence
            last = (one.word for one in self.seen[-3:] if one.row == row)  # as many as identify a name
            tokens = [*tokens_of(_OXYGEN.sub(r"\1O2", word.text), row, before=" ".join(last))]
            ends_range = (
                bool(self.seen)
                and self.seen[-1].row == row
                and self.seen[-1].token.is_number
                and word.box.left - self.seen[-1].box.right < word.box.bottom - word.box.top
            )
            boxes = token_boxes(word, tokens, pixels, ends_range=ends_range)
            for token, box in zip(tokens, boxes, strict=True):
                self.seen.append(Seen(token, box, sure, row, word.text, origin))

    def can_read(self, token: Token) -> bool:
        """Return whether the witness knows the script of a token."""
        if self.comparison.exact or not _UNKNOWN.search(token.text):
            return True
        return self._reads_hangul and _HANGUL.search(token.text) is not None


def grounded(page: Page, witness: WitnessText, unsure: frozenset[str] | None = None) -> Page:
    """Return the page with places and doubts from the witness, and the verdict that follows.

    `unsure`: words of which the model was unsure; None if unknown.
    """
    compared = _Compared(page.blocks, witness, unsure)
    verdict, doubts = Verdict.worst(page.verdict, compared.verdict()), (*page.doubts, *compared.doubts)
    update = {"blocks": tuple(compared.placed()), "witness": compared.report()}
    return page.model_copy(update={**update, "doubts": doubts, "verdict": verdict})


class Questions:
    """Differences between a page and its witness that a second look may resolve."""

    def __init__(self, page: Page, witness: WitnessText) -> None:
        self._compared = _Compared(page.blocks, witness, None)
        aligned = self._compared.aligned
        lost = (one for one in self._compared.judged if not aligned.to_seen[one])
        self._doubtful = {*lost, *self._compared.misplaced, *aligned.differs}

    def words(self) -> Iterator[Box]:
        """Yield the witness's words that the page lacks or has differently, or where the witness may have lost some."""
        to_seen, to_written = self._compared.aligned.to_seen, self._compared.aligned.to_written
        others = {other for other, to in enumerate(to_written) if not to or self._doubtful.intersection(to)}
        for tokens in self._compared.of_line.values():
            for number, one in enumerate(tokens):
                if one in self._doubtful and not to_seen[one]:  # it may be lost between those beside it
                    for beside in (tokens[:number][::-1], tokens[number + 1 :]):
                        others.update(next((to_seen[other][:1] for other in beside if to_seen[other]), ()))
        yield from (self._compared.witness.seen[other].origin for other in others)

    def written(self) -> Iterator[str]:
        """Yield the words of the page that are in question, consecutive ones also as one."""
        written = self._compared.aligned.written
        for line, tokens in self._compared.of_line.items():
            for run in in_a_row([one for one in tokens if one in self._doubtful]):
                text, ends = self._compared.lines[line][1], (written[run[0]].start, written[run[-1]].end)
                words = [word.strip(_AROUND) for word in _words_at(text, *ends)]
                yield from (*words, *map(" ".join, pairwise(words)), " ".join(words))

    def parts_thousands(self) -> bool:
        """Return whether both sides separate the page's thousands by commas, and none by a point."""
        aligned = self._compared.aligned
        texts = [token.text for token in aligned.written]
        agreed = sum(
            [aligned.seen[other].text for other in to] == [text]
            for text, to in zip(texts, aligned.to_seen, strict=True)
            if _THOUSANDS.fullmatch(text)
        )
        return agreed >= _USUAL and not any(map(_THOUSANDTHS.fullmatch, texts))

    def parts(self) -> Sequence[Box]:
        """Return the areas where values, or several consecutive words, may be that the witness missed.

        Words with a place for some part are left out: that place is read again.
        """
        compared, aligned = self._compared, self._compared.aligned
        lines = list(compared.of_line.values())
        boxes = [compared.box(tokens) for tokens in lines]
        parts: list[Box] = []
        for number, tokens in enumerate(lines):
            gone = [
                one
                for one in tokens
                if not aligned.to_seen[one]
                and compared.witness.can_read(aligned.written[one])
                and not compared.is_of_placed_word(one)
            ]
            if len(gone) < _INVENTED_ROW and not any(aligned.written[one].is_value for one in gone):
                continue
            sides = boxes[:number][::-1], boxes[number + 1 :]
            near = [boxes[number], *(next(filter(None, side), None) for side in sides)]
            for box in filter(None, near[:1] if near[0] else near[1:]):
                part = _grown(box, compared.letter_height)
                while touched := [other for other in parts if touch(other, part)]:
                    parts = [other for other in parts if other not in touched]
                    part = around([part, *touched])
                parts.append(part)
        return parts


def _grown(box: Box, height: float) -> Box:
    """Return a box grown by a few letters on both sides, and by a line above and below."""
    across, down = _BESIDE * height, _ABOVE * height
    return box_of(max(0, box.left - across), max(0, box.top - down), box.right + across, box.bottom + down)


def _rows_of(block: Block) -> Iterator[Sequence[Line]]:
    """Yield its lines, joining those of a table row from the first to the last column."""
    cells = [cell for cell in block.table.cells if cell.box] if block.table else []
    if not cells:
        yield from ([line] for line in block.lines)
        return
    corners = corners_of(cell.box for cell in cells if cell.box)
    places = []
    for line in block.lines:
        at = np.array(middle(line.box))
        outside = np.maximum(corners[:, :2] - at, at - corners[:, 2:]).clip(0).sum(axis=1)
        cell = cells[int(outside.argmin())]
        places.append((cell.row, cell.column))
    order = sorted(range(len(places)), key=places.__getitem__)
    for _, row in groupby(order, key=lambda number: places[number][0]):
        yield [block.lines[number] for number in row]


def _words_at(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the words that a range of a text touches."""
    return (word[0] for word in re.finditer(r"\S+", text) if word.start() < end and start < word.end())


def _away(box: Box, line: Box | None) -> int:
    """Return the vertical distance of a box from a line; 0 beside it, or if the line's place is unknown."""
    return 0 if line is None else max(0, line.top - box.bottom, box.top - line.bottom)


class _Compared:
    """The blocks of a page, compared with the witness's words."""

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
                    and unsure.isdisjoint(_words_at(self.lines[line][1], written[0].start, written[-1].end))
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
        is_invented = len(lost) > _INVENTED * len(self.judged) or longest >= _INVENTED_ROW
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
