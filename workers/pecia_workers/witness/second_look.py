"""Second look: pieces that the witness read quickly and that are in question are read again carefully."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source, Standing
from pecia_schemas.results import Page
from pecia_workers.layout.lines import around, touch
from pecia_workers.protocol.base import Piece
from pecia_workers.witness.grounding import Questions, WitnessText
from pecia_workers.witness.leaves import with_grounded_fields

_MOST, _CLOSE = 3, 0.4
"""Most words of a page that one word of the witness may equal, and the least similarity."""


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
