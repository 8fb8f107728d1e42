"""What a witness read at a glance and is in question, read again with more care."""

from collections.abc import Iterator, Sequence

from pecia_schemas.blocks import Block, Box, Line, Source, Standing
from pecia_schemas.results import Page
from pecia_workers.layout.lines import around
from pecia_workers.protocol.base import Piece
from pecia_workers.witness.grounding import WitnessText, in_question
from pecia_workers.witness.leaves import with_grounded_fields


def pieces_in_question(page: Page, witness: WitnessText, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return what differs from a page's text or fields, or has nothing like it there."""
    words = set[Box]()
    if page.source not in (Source.LAYER, Source.BOTH):
        words.update(in_question(page, witness))
    leaves = with_grounded_fields(page, witness).grounding if page.fields else ()
    others = [place.box for leaf in leaves if leaf.standing is Standing.DIFFERS for place in leaf.places]
    words.update(seen.origin for seen in witness.seen if any(_touch(seen.box, other) for other in others))
    return tuple(piece for piece in pieces if words.intersection(piece.words))


def with_readings(
    blocks: Sequence[Block], pieces: Sequence[Piece], readings: Sequence[Line]
) -> tuple[Block, ...]:
    """Return the blocks with other readings of some pieces, each in the place of its first word; of some, none."""
    of_word = {box: number for number, piece in enumerate(pieces) for box in piece.words}
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

    return tuple(block.model_copy(update={"lines": tuple(lines(block))}) for block in blocks)


def _touch(one: Box, other: Box) -> bool:
    across = min(one.right, other.right) - max(one.left, other.left)
    return across > 0 and min(one.bottom, other.bottom) > max(one.top, other.top)
