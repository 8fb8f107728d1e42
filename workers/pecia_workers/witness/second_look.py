"""Second look: pieces that the witness read quickly and that are in question are read again carefully."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Final

from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source, Standing
from pecia_schemas.results import Page
from pecia_workers.layout.lines import apart, around, box_of, touch
from pecia_workers.protocol.base import Piece
from pecia_workers.witness.alignment import in_a_row
from pecia_workers.witness.grounding import INVENTED_ROW, Compared, words_at
from pecia_workers.witness.leaves import with_grounded_fields
from pecia_workers.witness.tokens import WitnessText

_MOST, _CLOSE = 3, 0.4
"""How many words of a page a word of the witness may be, and from which likeness."""
_BESIDE, _ABOVE = 6, 2
"""How far from the placed words of a line its rest may stand, in heights of a letter."""
_THOUSANDS, _THOUSANDTHS = re.compile(r"\d{1,3}(?:,\d{3})+"), re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
"""Numbers that differ in a comma and a point."""
_USUAL: Final = 10
"""Numbers that show how a page writes them."""
_AROUND: Final = ".,;:!?()[]\"'\\*"


def pieces_in_question(page: Page, witness: WitnessText, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the pieces that differ from a page's text or fields, or are absent there, and areas of missed text."""
    words, written, gaps = set[Box](), list[str](), list[Piece]()
    parts_thousands = False
    if page.source not in (Source.LAYER, Source.BOTH):
        questions = Questions(page, witness)
        words.update(questions.words())
        written += sorted({*questions.written()})
        parts_thousands = questions.parts_thousands()
        read_there = (
            *(word for piece in pieces for word in piece.words),
            *(seen.origin for seen in witness.seen),
        )
        gaps += (_gap(box, dict.fromkeys(read_there)) for box in questions.parts())
    leaves = with_grounded_fields(page, witness).grounding if page.fields else ()
    others = [place.box for leaf in leaves if leaf.standing is Standing.DIFFERS for place in leaf.places]
    words.update(seen.origin for seen in witness.seen if any(touch(seen.box, other) for other in others))
    read = {seen.origin: seen.word for seen in witness.seen}
    again = (
        piece.model_copy(update={"parts_thousands": parts_thousands})
        for piece in pieces
        if words.intersection(piece.words)
    )
    return (
        *(_held_against(piece, written, [read.get(box, "") for box in piece.words]) for piece in again),
        *gaps,
    )


def _held_against(piece: Piece, written: Sequence[str], read: Sequence[str]) -> Piece:
    """Return a piece with the words of the page that resemble its reading."""
    near = {
        word for text in (*read, " ".join(read)) for word in get_close_matches(text, written, _MOST, _CLOSE)
    }
    return piece.model_copy(update={"written": tuple(sorted(near))})


def _gap(part: Box, known: Iterable[Box]) -> Piece:
    corners = part.left, part.top, part.right, part.top, part.right, part.bottom, part.left, part.bottom
    words = tuple(word for word in known if touch(word, part))
    return Piece(corners=corners, words=words, is_gap=True)


class Questions(Compared):
    """What of a page and of what a witness read of it does not confirm the other."""

    def __init__(self, page: Page, witness: WitnessText) -> None:
        super().__init__(page.blocks, witness, None)
        lost = (one for one in self.judged if not self.aligned.to_seen[one])
        self._doubtful = {*lost, *self.misplaced, *self.aligned.differs}

    def words(self) -> Iterator[Box]:
        """Yield where the witness read what the page does not have, or not so, or may have lost what it has."""
        to_seen, to_written = self.aligned.to_seen, self.aligned.to_written
        others = {other for other, to in enumerate(to_written) if not to or self._doubtful.intersection(to)}
        for tokens in self.of_line.values():
            for number, one in enumerate(tokens):
                if one in self._doubtful and not to_seen[one]:  # it may be lost between those beside it
                    for beside in (tokens[:number][::-1], tokens[number + 1 :]):
                        others.update(next((to_seen[other][:1] for other in beside if to_seen[other]), ()))
        yield from (self.witness.seen[other].origin for other in others)

    def written(self) -> Iterator[str]:
        """Yield the words of the page that are in question, those that stand in a row also as one."""
        written = self.aligned.written
        for line, tokens in self.of_line.items():
            for run in in_a_row([one for one in tokens if one in self._doubtful]):
                text, ends = self.lines[line][1], (written[run[0]].start, written[run[-1]].end)
                words = [word.strip(_AROUND) for word in words_at(text, *ends)]
                yield from (*words, *map(" ".join, pairwise(words)), " ".join(words))

    def parts_thousands(self) -> bool:
        """Return whether the page parts its thousands by commas, as both sides have them, and none by a point."""
        aligned = self.aligned
        texts = [token.text for token in aligned.written]
        agreed = sum(
            [aligned.seen[other].text for other in to] == [text]
            for text, to in zip(texts, aligned.to_seen, strict=True)
            if _THOUSANDS.fullmatch(text)
        )
        return agreed >= _USUAL and not any(map(_THOUSANDTHS.fullmatch, texts))

    def parts(self) -> Sequence[Box]:
        """Return where a page's values, or several of its words in a row, may stand if the witness missed them.

        Not of a word of which a part has a place: that is read again.
        """
        aligned = self.aligned
        lines = list(self.of_line.values())
        boxes = [self.box(tokens) for tokens in lines]
        parts: list[Box] = []
        for number, tokens in enumerate(lines):
            gone = [
                one
                for one in tokens
                if not aligned.to_seen[one]
                and self.witness.can_read(aligned.written[one])
                and not self.is_of_placed_word(one)
            ]
            if len(gone) < INVENTED_ROW and not any(aligned.written[one].is_value for one in gone):
                continue
            sides = boxes[:number][::-1], boxes[number + 1 :]
            near = [boxes[number], *(next(filter(None, side), None) for side in sides)]
            known = filter(None, near[:1] if near[0] else near[1:])
            parts += [_grown(box, self.letter_height) for box in known]
        return apart(parts)


def _grown(box: Box, height: float) -> Box:
    """Return a box with as much beside it as a few letters take, and as much above and below as a line does."""
    across, down = _BESIDE * height, _ABOVE * height
    return box_of(max(0, box.left - across), max(0, box.top - down), box.right + across, box.bottom + down)


def with_readings(
    blocks: Sequence[Block], pieces: Sequence[Piece], readings: Sequence[Line]
) -> tuple[Block, ...]:
    """Return the blocks with new readings of some pieces, each at the place of its first word; some have none.

    Text found in missed areas is a block of its own, of kind figure: it may confirm the page, but may be no text.
    """
    of_word = {box: number for number, piece in enumerate(pieces) if not piece.is_gap for box in piece.words}
    used: set[int] = set()

    def lines(block: Block) -> Iterator[Line]:
        for line in block.lines:
            words = []
            for word in line.words:
                number = of_word.get(word.box)
                if number is None:
                    words.append(word)
                elif number not in used:
                    used.add(number)
                    words += readings[number].words
            if words == [*line.words]:
                yield line
            elif words:
                text, box = " ".join(word.text for word in words), around(word.box for word in words)
                yield line.model_copy(update={"text": text, "box": box, "words": tuple(words)})

    again = tuple(block.model_copy(update={"lines": tuple(lines(block))}) for block in blocks)
    missed = tuple(
        Line(text=word.text, box=word.box, confidence=word.confidence, words=(word,))
        for piece, line in zip(pieces, readings, strict=True)
        if piece.is_gap
        for word in line.words
    )
    return (
        (*again, Block(kind=BlockKind.FIGURE, text="", lines=missed, source=Source.OCR)) if missed else again
    )
