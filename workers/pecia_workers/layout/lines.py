"""Words, lines and rows of text, their boxes, and the recognition of values."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias
from unicodedata import bidirectional

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, Box, Doubt, DoubtReason, Line, Word, mean_confidence
from pecia_workers.layout.order import Boxes, Cues, levels, reading_order

Mask: TypeAlias = NDArray[np.uint8]
"""0 or 1 for each pixel of a page."""


_FIRST_BACKWARD: Final = "\u0590"
_ADDRESS: Final = re.compile(
    r"@\w|\bwww\.|https?://|\b(tel|telephone|phone|fax|mobile|telefon)\b.*\d"
    r"|\b\d{4,6}[ ,]+[^\W\d_]{3,}|\b[A-Z]{2,3} \d{4,5}\b|\b[A-Z]{1,2}\d{1,2} ?\d[A-Z]{2}\b"
    r"|^(?!\d{1,2}\.? \w+ \d{4}$)\d{1,5}[a-z]?,? [^\W\d_]{3,}|[^\W\d_]{4,}\.? \d{1,3}[a-z]?$",
    re.IGNORECASE,
)
"""A telephone number, a web or mail address, a postcode with its town, a street with its number; no mere label."""
_LABEL: Final = re.compile(r".*[:：]\W*")  # noqa: RUF001  Chinese has its own
_DENSE_SIGN: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def cues_of(texts: Sequence[str]) -> Cues:
    """Return cues for the reading order from the texts of boxes."""
    bare = [text.lstrip("\"'([-\u2013•☐☑ ") for text in texts]
    cues = (
        [bool(_ADDRESS.search(text)) for text in texts],
        [bool(_LABEL.fullmatch(text)) for text in texts],
        [text[:1].isupper() or text[:1].isdigit() for text in bare],
        [2 * len(_DENSE_SIGN.findall(text)) > len(text.replace(" ", "")) for text in texts],
    )
    return Cues(*(np.array(cue, dtype=np.bool_) for cue in cues))


def rows_of(pieces: Sequence[Line]) -> list[list[Line]]:
    """Return the rows of pieces, in reading order."""
    if len(pieces) < 2:  # noqa: PLR2004  most cells of a table
        return [[piece] for piece in pieces]
    cues = cues_of([piece.text for piece in pieces])
    stretches = reading_order(corners_of(piece.box for piece in pieces), cues=cues)
    return [[pieces[one] for one in row] for stretch in stretches for row in stretch]


def levels_of(pieces: Sequence[Line]) -> list[list[Line]]:
    """Return groups of level pieces, from top to bottom, each from left to right."""
    return [[pieces[one] for one in row] for row in levels(corners_of(piece.box for piece in pieces))]


def is_backward(letter: str) -> bool:
    """Return whether this is a letter of a right-to-left script."""
    return letter >= _FIRST_BACKWARD and bidirectional(letter) in ("R", "AL")


def is_mostly_backward(text: str) -> bool:
    """Return whether at least half of a text's letters are of right-to-left scripts."""
    backward = sum(map(is_backward, text))
    return backward > 0 and 2 * backward >= sum(map(str.isalpha, text))


def joined(row: Sequence[Line]) -> Line:
    """Join adjacent pieces, from left to right, to one line."""
    if len(row) == 1:
        return row[0]
    if is_mostly_backward("".join(piece.text for piece in row)):
        row = row[::-1]
    return Line(
        text=" ".join(piece.text for piece in row),
        box=around(piece.box for piece in row),
        confidence=mean_confidence(row),
        words=tuple(word for piece in row for word in words_of(piece) if any(one.words for one in row)),
    )


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around all."""
    left, top, right, bottom = corners_of(boxes).T
    return box_of(left.min(), top.min(), right.max(), bottom.max())


def box_of(left: float, top: float, right: float, bottom: float) -> Box:
    """Return the box with these sides, rounded to pixels."""
    return Box(left=round(left), top=round(top), right=round(right), bottom=round(bottom))


def scaled(box: Box, scale: float) -> Box:
    """Return the box on a page whose sides are `scale` times as long."""
    return box_of(scale * box.left, scale * box.top, scale * box.right, scale * box.bottom)


def shifted(line: Line, across: int, down: int) -> Line:
    """Return the line, with its words, moved to the right and down."""

    def moved(box: Box) -> Box:
        return box_of(box.left + across, box.top + down, box.right + across, box.bottom + down)

    words = tuple(word.model_copy(update={"box": moved(word.box)}) for word in line.words)
    return line.model_copy(update={"box": moved(line.box), "words": words})


def corners_of(boxes: Iterable[Box]) -> Boxes:
    """Return boxes as an array: left, top, right and bottom of each."""
    sides = [(box.left, box.top, box.right, box.bottom) for box in boxes]
    return np.array(sides, dtype=np.float64).reshape(-1, 4)


def words_of(piece: Line) -> tuple[Word, ...]:
    """Return a piece's words; unknown places are estimated from the words' lengths."""
    if piece.words:
        return piece.words
    box, pitch = piece.box, (piece.box.right - piece.box.left) / max(1, len(piece.text))
    return tuple(
        Word(
            text=found.group(),
            box=box_of(box.left + found.start() * pitch, box.top, box.left + found.end() * pitch, box.bottom),
            confidence=piece.confidence,
        )
        for found in re.finditer(r"\S+", piece.text)
    )


def runs_of(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return start and end of each run of set flags, one run a row."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2)


def touch(one: Box, other: Box) -> bool:
    """Return whether two boxes overlap."""
    across = min(one.right, other.right) - max(one.left, other.left)
    return across > 0 and min(one.bottom, other.bottom) > max(one.top, other.top)


def apart(boxes: Iterable[Box]) -> list[Box]:
    """Return boxes without overlaps, merging those that overlap."""
    parts: list[Box] = []
    for box in boxes:
        part = box
        while touched := [other for other in parts if touch(other, part)]:
            parts = [other for other in parts if other not in touched]
            part = around([part, *touched])
        parts.append(part)
    return parts


def middle(box: Box) -> tuple[float, float]:
    """Return x and y of a box's middle."""
    return (box.left + box.right) / 2, (box.top + box.bottom) / 2


_UNIT: Final = re.compile(
    r"(?i:[µμnkmdc]?(g|l|mol|eq|iu|m)|mcg|i?u|µl|fl|pg|mm[hH]g|kcal|bpm|ppm|k?pa|h|hrs?|min|sec|ms|days?|wk|wks|mo|yrs?"
    r"|tabs?|caps?|drops?|puffs?|gtt|ml|cc|prn|bid|tid|qid|qd|qds|od|bd|tds|hs|stat|po|iv|im|sc)"
    r"|[%‰°]|°?[CF]|[£$€¥₩]|RM|USD|EUR|GBP|KRW|CNY"
)
_MONTH: Final = re.compile(
    r"(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?"
    r"|dec(ember)?|mon(day)?|tue(sday)?|wed(nesday)?|thu(rsday)?|fri(day)?|sat(urday)?|sun(day)?)"
)
_BEFORE_A_NAME: Final = re.compile(
    r"(?i:\b(mr|mrs|ms|miss|dr|prof|sir|madam|herr|frau|dear|(sur|first |last |full )?name|patient|physician|doctor"
    r"|signed( by)?|consultant|nurse|attn|attention|invoice to|bill to|ship to)\b|姓名|患者|医生|성명|이름|환자)"
    r"[.:\uff1a]?\s*"
    r"([A-Z][\w.'-]*,?\s*)?$"  # of a first and a last name, the second
)

_DECISIVE: Final = re.compile(
    r"(?i:no|not|non|nor|none|never|neither|cannot|[a-z]+n['\u2019]t|without|den(y|ies|ied|ying)|absent|negative|positive"
    r"|left|right|bilateral(ly)?|kein\w*|nicht|ohne|links?e?[nrs]?|rechte?[nrs]?|rechts|beidseit\w+|pas|sans|gauche|droite?"
    r"|sin|izquierd[oa]|derech[oa])"
    r"|[无無未否不没沒非左右阴陰阳陽]|(없|아니|않|못|왼|오른)\w*|\w*(없음|없다|않음)|[좌우](측|하|상|안)?|무|음성|양성"
)
"""Negations and sides: words that reverse the meaning of a sentence."""


def is_decisive(word: str) -> bool:
    """Return whether a word is a negation or a side, in English, Chinese, Korean, German, French or Spanish."""
    return _DECISIVE.fullmatch(word.strip(".,;:()[]")) is not None


def is_value(word: str, before: str = "") -> bool:
    """Return whether a word is a value, by itself or by the text before it in its line.

    Values must be correct in every character: numbers, units, dates, codes, names, negations and sides.
    """
    bare = word.strip(".,;:()[]")
    if any(map(str.isdigit, bare)):
        return True
    if _MONTH.fullmatch(bare) or is_unit(bare) or is_decisive(bare):
        return True
    return bool(bare) and not bare[0].islower() and _BEFORE_A_NAME.search(before) is not None


def is_unit(word: str) -> bool:
    """Return whether a word is a unit, or several with slashes between them."""
    return all(map(_UNIT.fullmatch, word.split("/")))


def struck_doubts(blocks: Iterable[Block]) -> Iterator[Doubt]:
    """Yield the struck-out text; neighbours together."""
    for line in (line for block in blocks for line in block.lines):
        for is_struck, group in groupby(line.words, key=lambda word: word.struck):
            if is_struck:
                words = list(group)
                yield Doubt(
                    reason=DoubtReason.STRUCK_OUT,
                    box=around(word.box for word in words),
                    text=" ".join(word.text for word in words),
                    on_value=any(is_value(word.text) for word in words),
                )
