"""PDF documents, through pdfium: pages as pixels, and the text that a page brings itself, if it can be trusted.

Not thread-safe: one process opens a document and renders its pages.

A text layer says exactly what the page's glyphs stand for, or anything else: a program may have recognised it from a
scan, its fonts may name their letters wrongly, it may be hidden. One that is not trusted is left, and the page is read
from its pixels. It is trusted if

1. it has at least `LEAST_CHARACTERS` characters that are visible, and at most `MOST_CHARACTERS`;
2. at most `MOST_HIDDEN` are invisible: drawn in mode 3 or 7, as recognised text is, too small for any eye, or without a
   trace in the pixels, as in the colour of the ground or below a black bar (`pecia_workers.media.visibility`). What is
   hidden is never part of the text. A character whose font is missing is not hidden: only the layer has it;
3. no picture covers more than `MOST_PICTURE` of the page, and pictures hide at most `MOST_BELOW` of the characters;
4. at most `MOST_UNMAPPED` stand for no character: unmapped, private use, control, an accent without its letter; at
   least `LEAST_LETTERS` are letters or digits;
5. at most `MOST_TURNED` stand at an angle, after a page whose text lies on its side has been turned;
6. each glyph of its fonts looks like the letter that it says it is (`pecia_workers.media.glyphs`); a few words of which
   that is not known, or over which others are drawn, are read from their pixels alone;
7. they cover the page's ink: at most `MOST_UNCOVERED` of what looks like letters lies outside their boxes, as text
   in a picture or drawn as curves does. Where an engine is at hand that reads the rest, they may cover less.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice, pairwise
from typing import Any, BinaryIO, Final, TypeAlias, cast

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image
from pydantic import SecretStr
from pypdfium2 import raw
from pypdfium2.internal import get_bufreader

from pecia_schemas.blocks import Box, Doubt, DoubtReason, Line
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.layout.ink import turned
from pecia_workers.layout.lines import box_of, scaled
from pecia_workers.media import layer_text
from pecia_workers.media.damage import (
    SavedPage,
    has_line_ends,
    has_lost_rows,
    is_deflate_cut,
    is_fax_broken,
    is_jbig2_broken,
    is_jpeg_broken,
)
from pecia_workers.media.drawn_strikes import level_lines, struck_places, with_drawn_strikes
from pecia_workers.media.glyphs import Misreading, Naming, judge_naming
from pecia_workers.media.layer_characters import Character, Rectangle
from pecia_workers.media.page_tree import PageTree
from pecia_workers.media.pages import Limits, MediaError, PageInfo, Plan
from pecia_workers.media.visibility import visible_characters

_POINTS_PER_INCH = 72
_A4 = (595.0, 842.0)
_SMALL: Final = 0.45
"""Of A4's area: pages below it, smaller than A5, may have a wrong size."""
_LEAST_SHOWN: Final = 0.1
"""Of a page: smaller pictures on it do not say how fine it is."""
_FINE: Final = 10_000
_PASSWORD, _EMPTY = 1 << 13, 2  # a flag of fields; bytes of a string without a letter
_REOPEN_AFTER = 16  # pages: pdfium keeps every stream it has read until the document is closed


class PdfPages:
    """The pages of a PDF, rendered one at a time at the fleet's resolution, with annotations and form fields."""

    def __init__(self, content: BinaryIO | bytes, limits: Limits, password: SecretStr | None = None) -> None:
        """Open it in a file that stays open."""
        self._content: Any = content
        self._held: Sequence[object] = ()
        if not isinstance(content, bytes):
            self._content, self._held = get_bufreader(content)
        self._limits = limits
        self._password = password
        self._size = len(content) if isinstance(content, bytes) else content.seek(0, os.SEEK_END)
        self._document = self._open()
        self._tree = self._walked(content)
        self._rendered = 0
        self.damage: tuple[Rectangle, ...] = ()
        """Damaged places of the page rendered last, in its pixels."""

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size at which each of the pages is rendered: less for small pages with fine pictures.

        A page whose own description is broken counts as A4 here, so that it fails alone when it is rendered.
        """
        with _translated_errors():
            count = len(self._document)
        infos = []
        for index in self._limits.choose(count, pages):
            try:
                width, height = self._document.get_page_size(index)
                scale = _render_scale(width, height, self._limits, self._unit(index))
            except (pypdfium2.PdfiumError, MediaError):
                width, height = _A4
                scale = _render_scale(width, height, self._limits)
            wide, high = math.ceil(width * scale), math.ceil(height * scale)
            infos.append(PageInfo(index=index, width=wide, height=high))
        self._limits.check_total(sum(page.width * page.height for page in infos))
        return tuple(infos)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Render one page on white; /Rotate is honoured."""
        if not 0 <= index < len(self._document):
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        if self._rendered >= _REOPEN_AFTER:
            fresh = self._open()
            self.close()
            self._document, self._rendered = fresh, 0
        self._rendered += 1
        with _translated_errors(), closing(self._document[index]) as page:
            width, height = page.get_size()
            scale: Any = self._scale(index, page)  # typed as int there
            with closing(
                page.render(scale=scale, rev_byteorder=True, fill_color=(255, 255, 255, 255))
            ) as bitmap:
                pixels = np.array(bitmap.to_numpy()[:, :, :3])
            # What it cannot decode pdfium leaves out: a scan would pass as blank, or as the number stamped on it.
            is_plain = bool((pixels == pixels[0, 0]).all())
            lost = list(_lost_places(page, pixels, self._limits, every=is_plain))
            most = 0.0 if is_plain else _MOST_LOST * width * height * scale**2
            if sum(_area(place, *pixels.shape[1::-1]) for place in lost) > most:
                raise MediaError(FailureCode.DAMAGED, "A picture on the page cannot be decoded.")
            lost += self._cut_places(page, index, pixels)
            self.damage = tuple(place for place in lost if _area(place, *pixels.shape[1::-1]) >= 1)
            return pixels

    def _cut_places(
        self, page: pypdfium2.PdfPage, index: int, pixels: NDArray[np.uint8]
    ) -> Iterator[Rectangle]:
        """Yield where what pdfium has drawn comes from a stream that ends early or is broken."""
        height, width = pixels.shape[:2]
        pictures = list(islice(_encoded_pictures(page, pixels, self._limits), _MOST_PICTURES))
        is_small = sum(picture.length for picture in pictures if not picture.filters) < _MOST_RAW
        saved = SavedPage(self._saved(index) if is_small and self._size <= _MOST_SAVED else b"")
        is_expected = self._tree.has_content(index, len(self._document))
        pictures_shown = _count_pictures(page)
        if self._tree.is_cut or saved.has_lost_content(is_expected=is_expected, pictures=pictures_shown):
            yield (0, 0, width, height)
        left = _MOST_CHECKED
        for picture in pictures:
            left -= picture.length
            if left >= 0 and picture.is_cut(saved):
                yield picture.place

    def _saved(self, index: int) -> bytes:
        """Return a file of one page."""
        buffer = io.BytesIO()
        with closing(pypdfium2.PdfDocument.new()) as single, suppress(pypdfium2.PdfiumError):
            single.import_pages(self._document, [index])
            single.save(buffer)
        return buffer.getvalue()

    def attachments(self, index: int) -> int:
        """Return how many files are attached to the document, or by a note on this page."""
        with suppress(pypdfium2.PdfiumError), closing(self._document[index]) as page:
            notes = [
                raw.FPDFPage_GetAnnot(page, number) for number in range(raw.FPDFPage_GetAnnotCount(page))
            ]
            kinds = [raw.FPDFAnnot_GetSubtype(note) for note in notes]
            for note in notes:
                raw.FPDFPage_CloseAnnot(note)
            count: int = self._document.count_attachments()
            return count + kinds.count(raw.FPDF_ANNOT_FILEATTACHMENT)
        return 0

    def dpi(self, index: int) -> float:
        """Return the resolution at which a page is rendered."""
        with _translated_errors(), closing(self._document[index]) as page:
            return self._scale(index, page) / self._unit(index) * _POINTS_PER_INCH

    def layer(self, index: int, pixels: NDArray[np.uint8], plan: Plan) -> TextLayer | None:
        """Return the page's own text, if it is to be read from that; `pixels` are those that it was rendered to.

        Annotations and form fields become part of the page, and their text part of its own.
        """
        with suppress(pypdfium2.PdfiumError, MemoryError):
            struck: list[Rectangle] = []
            filled: list[tuple[raw.FS_RECTF, str]] = []
            with closing(self._document[index]) as page:
                for number in range(raw.FPDFPage_GetAnnotCount(page)):  # flattening drops what has this flag
                    note = raw.FPDFPage_GetAnnot(page, number)
                    struck += struck_places(note)
                    filled += self._values(note)
                    flags = raw.FPDFAnnot_GetFlags(note) & ~raw.FPDF_ANNOT_FLAG_INVISIBLE
                    raw.FPDFAnnot_SetFlags(note, flags)
                    raw.FPDFPage_CloseAnnot(note)
                raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
            with closing(self._document[index]) as page:
                self.damage += tuple(_unshown(page, filled, pixels))
                anyhow = plan.prefer is Prefer.LAYER
                may_turn = Preparation.ORIENT in plan.steps
                layer = text_layer(page, pixels, may_turn=may_turn, hidden=anyhow, struck=struck)
                trusted = (None, Distrust.UNCOVERED) if plan.completes else (None,)
                return layer if layer.characters and (anyhow or layer.distrust in trusted) else None
        return None

    def _values(self, note: Any) -> Iterator[tuple[raw.FS_RECTF, str]]:
        """Yield the place and value of a filled text field that is seen, unless a script or a barcode shows it."""
        form = self._document.formenv
        if not form or raw.FPDFAnnot_GetFormFieldType(form, note) != raw.FPDF_FORMFIELD_TEXTFIELD:
            return
        script = raw.FPDFAnnot_GetFormAdditionalActionJavaScript
        if (
            raw.FPDFAnnot_GetFlags(note) & (raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW)
            or raw.FPDFAnnot_GetFormFieldFlags(form, note) & _PASSWORD
            or raw.FPDFAnnot_HasKey(note, b"PMD")
            or script(form, note, raw.FPDF_ANNOT_AACTION_FORMAT, None, 0) > _EMPTY
        ):
            return
        place, length = raw.FS_RECTF(), raw.FPDFAnnot_GetFormFieldValue(form, note, None, 0)
        value = ctypes.create_string_buffer(length)
        raw.FPDFAnnot_GetFormFieldValue(
            form, note, ctypes.cast(value, ctypes.POINTER(raw.FPDF_WCHAR)), length
        )
        if raw.FPDFAnnot_GetRect(note, place):
            yield place, value.raw.decode("utf-16-le", "replace")

    def close(self) -> None:
        """Free the document."""
        self._document.close()

    def _unit(self, index: int) -> float:
        return self._tree.unit(index, len(self._document))

    def _scale(self, index: int, page: pypdfium2.PdfPage) -> float:
        """Return pixels per unit of a page.

        A small page may be a large one whose size is wrong: it is rendered as finely as its pictures are, up to the
        pixels of A4.
        """
        (width, height), unit = page.get_size(), self._unit(index)
        scale = _render_scale(width, height, self._limits, unit)
        share = width * height * unit**2 / (_A4[0] * _A4[1])
        if share >= _SMALL:
            return scale
        density = math.sqrt(max(_densities(page), default=0.0) / (width * height))
        most = _render_scale(width, height, self._limits, unit / math.sqrt(share))
        return max(scale, min(density, most))

    def _walked(self, content: BinaryIO | bytes) -> PageTree:
        """Return the page tree; a document that has not the pages that it counts is opened again.

        Raises `MediaError`.
        """
        tree = PageTree.of(content)
        if tree.is_portfolio and self._document.count_attachments():
            self.close()
            found = "The PDF is a portfolio, whose pages say only that the viewer cannot show its attachments"
            raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"{found}: send the files in it one by one.")
        if tree.pages and len(tree.pages) != len(self._document):
            if tree.counts is None:
                if len(tree.pages) < len(self._document):
                    return tree
                self.close()
                found = "The PDF has more pages than it counts: save it anew with a program that repairs it."
                raise MediaError(FailureCode.DAMAGED, found)
            if not isinstance(content, bytes):
                content.seek(0)
                content = content.read()
            self.close()
            self._content, self._held = tree.uncounted(content), ()
            self._document = self._open()
        return tree

    def _open(self) -> pypdfium2.PdfDocument:
        """Open the content, which must stay where it is until the document is closed.

        Left to itself, pypdfium2 calls one without pages by the error of the file before it, and never closes it.
        """
        content = self._content
        key = self._password.get_secret_value().encode() + b"\0" if self._password else None
        with _translated_errors(password=key is not None):
            if isinstance(content, bytes):
                handle = raw.FPDF_LoadMemDocument64(content, len(content), key)
            else:
                handle = raw.FPDF_LoadCustomDocument(content, key)
            if not handle:
                message = "The document cannot be loaded."
                raise pypdfium2.PdfiumError(message, err_code=raw.FPDF_GetLastError())
            if raw.FPDF_GetPageCount(handle) < 1:
                raw.FPDF_CloseDocument(handle)
                raise MediaError(FailureCode.EMPTY, "The PDF has no pages.")
            document = pypdfium2.PdfDocument(handle)
            kind = document.get_formtype()
            if kind == raw.FORMTYPE_XFA_FULL:
                document.close()
                found = "The PDF is a dynamic XFA form, whose pages say only that the viewer cannot show it"
                raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"{found}: print it to PDF where it opens.")
            if kind:
                document.init_forms()
            return document


def _render_scale(width: float, height: float, limits: Limits, unit: float = 1.0) -> float:
    """Return pixels per unit of a page, in 1/72 inch: the fleet's resolution, or less to keep the limits.

    Raises `MediaError` for a size that is no size.
    """
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise MediaError(FailureCode.DAMAGED, "A page has no size.")
    scale = min(limits.render_dpi / _POINTS_PER_INCH * unit, (MAX_SIDE - 1) / max(width, height))
    while math.ceil(width * scale) * math.ceil(height * scale) > limits.page_pixels:
        scale *= min(math.sqrt(limits.page_pixels / (width * scale * height * scale)), 0.99)
    return scale


@contextmanager
def _translated_errors(*, password: bool = False) -> Iterator[None]:
    try:
        yield
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == raw.FPDF_ERR_PASSWORD:
            found = "does not open with the password that was given" if password else "asks for a password"
            raise MediaError(FailureCode.ENCRYPTED, f"The PDF {found}.") from None
        if getattr(error, "err_code", None) == raw.FPDF_ERR_SECURITY:
            found = "The PDF is protected by a certificate or a rights manager."
            raise MediaError(FailureCode.ENCRYPTED, found) from None
        raise MediaError(FailureCode.DAMAGED, "The PDF cannot be read.") from None


def _unshown(
    page: pypdfium2.PdfPage, filled: Iterable[tuple[raw.FS_RECTF, str]], pixels: NDArray[np.uint8]
) -> Iterator[Rectangle]:
    """Yield where a field shows something else than its value, as a program leaves it that fills in values alone."""
    matrix = layer_text.placing(page, *pixels.shape[1::-1])
    with closing(page.get_textpage()) as text:
        for place, value in filled:
            box = (place.left, place.bottom, place.right, place.top)
            if _signs(value) not in _signs(text.get_text_bounded(*box)):
                yield cast("Rectangle", matrix.on_rect(*box))


def _signs(text: str) -> str:
    """Return the letters and digits that every font names alike."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text) if sign.isascii() and sign.isalnum())


_Picture: TypeAlias = tuple[int, Rectangle]
"""When it is drawn on its page, and where, in pixels."""

LEAST_CHARACTERS: Final = 8
MOST_CHARACTERS: Final = 50_000
MOST_HIDDEN: Final = 0.3
MOST_PICTURE: Final = 0.5
MOST_BELOW: Final = 0.1
MOST_UNMAPPED: Final = 0.02
LEAST_LETTERS: Final = 0.35
MOST_TURNED: Final = 0.3
MOST_UNCOVERED: Final = 0.05
_LEAST_UNCOVERED: Final = 20
"""Letters; fewer are a logo."""
_PAPER: Final = 200
"""Grey from which paper is light."""
_DEPTH, _MOST_OBJECTS = 8, 100_000
"""Depth of forms within forms, and number of objects examined on a page."""
_MOST_LOST: Final = 0.1
"""Of a page below pictures that cannot be decoded."""
_MOST_PICTURES, _MOST_CHECKED = 10_000, 1 << 28
"""Pictures of a page, and bytes of them, that are looked at for damage."""
_MOST_SAVED, _MOST_RAW = 1 << 27, 1 << 22
"""Bytes of a file, of which a page may bring all with it; and of pictures that saving would compress."""
_LEADERS: Final = frozenset("._-\N{HORIZONTAL ELLIPSIS}\N{MIDDLE DOT}")


class Distrust(StrEnum):
    """Why a layer is not trusted."""

    NO_TEXT = "no_text"
    HIDDEN = "hidden"
    PICTURE = "picture"
    UNMAPPED = "unmapped"
    TURNED = "turned"
    MISNAMED = "misnamed"
    UNCOVERED = "uncovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLayer:
    """A page's own text."""

    characters: tuple[Character | None, ...] = ()
    """In the file's order, None for a space, in pixels of the page after its turn."""
    turn: int = 0
    """Degrees, clockwise, by which the drawn page is turned for its text to stand upright: 0, 90, 180 or 270."""
    distrust: Distrust | None = None
    """None: it can be trusted."""
    misreadings: tuple[Misreading, ...] = ()
    """Values in glyphs that look like others."""
    unread: tuple[Box, ...] = ()
    """Where text-like ink stands beside it, if it can be trusted."""
    strikes: tuple[Rectangle, ...] = ()
    """Level lines on the page, some of which may strike words out."""

    def lines(self, scale: float = 1.0) -> tuple[Line, ...]:
        """Return pieces of lines without wide gaps, in the file's order, on the page as it is after scaling."""
        lines = layer_text.lines_of(self.characters, scale)
        strikes = [(scale * x0, scale * y0, scale * x1, scale * y1) for x0, y0, x1, y1 in self.strikes]
        return with_drawn_strikes(lines, strikes)

    def doubts(self, scale: float = 1.0) -> tuple[Doubt, ...]:
        """Return the values that may not be what the layer says, on the page as it is after scaling."""
        return tuple(
            Doubt(
                reason=DoubtReason.DISAGREES,
                box=layer_text.scaled_box(one.box, scale),
                text=one.text,
                other=one.other,
                on_value=one.on_value,
            )
            for one in self.misreadings
        )

    def unread_boxes(self, scale: float = 1.0) -> tuple[Box, ...]:
        """Return where text-like ink stands beside it, on the page as it is after scaling."""
        return tuple(scaled(box, scale) for box in self.unread)


def text_layer(
    page: pypdfium2.PdfPage,
    pixels: NDArray[np.uint8],
    *,
    may_turn: bool = True,
    hidden: bool = False,
    struck: Iterable[Rectangle] = (),
) -> TextLayer:
    """Return the text of a page rendered as these pixels; `hidden`: with its invisible text.

    `struck`: the middles of what annotations strike out, in the page's coordinates.
    """
    height, width = pixels.shape[:2]
    with closing(page.get_textpage()) as text:
        if not 0 < text.count_chars() <= MOST_CHARACTERS:
            return TextLayer(distrust=Distrust.NO_TEXT)
        place = layer_text.placing(page, width, height)
        turn = layer_text.turn_needed(text, place) if may_turn else 0
        place = layer_text.turned(place, turn, width, height)
        orders, pictures, strikes = _drawn(page, place)
        strikes += [place.on_rect(*middle) for middle in struck]
        found = list(layer_text.CharacterReader(text, place, orders).characters())
    upright = turned(pixels, turn)
    grey = Image.fromarray(upright).convert("L")
    on_page = [
        one
        for one in found
        if one is None or (min(one.box[2:]) > 0 and one.box[0] < grey.width and one.box[1] < grey.height)
    ]
    visible = visible_characters(on_page, np.asarray(grey), scale=width / page.get_width())
    unseen = sum(one is not None and not one.code.isspace() for one in on_page) - len(visible)
    kept = tuple(
        one if one and id(one) in visible else None
        for one in on_page
        if one is None or id(one) in visible or one.code.isspace()
    )
    if hidden:
        return TextLayer(characters=tuple(on_page), turn=turn, strikes=tuple(strikes))
    distrust = next(_faults(kept, unseen, pictures, grey), None)
    naming = Naming() if distrust else judge_naming(kept, grey)
    if distrust or naming.is_wrong:
        return TextLayer(characters=kept, turn=turn, distrust=distrust or Distrust.MISNAMED)
    unsure = [
        layer_text.rectangle_around(list(filter(None, kept[word.start : word.stop])))
        for word in naming.unsure
    ]
    left_out = frozenset(chain(*naming.unsure))
    known = tuple(None if place in left_out else one for place, one in enumerate(kept))
    distrust, unread = _uncovered(known, upright, [place for _, place in pictures], unsure)
    return TextLayer(
        characters=known,
        turn=turn,
        distrust=distrust,
        misreadings=naming.doubts,
        unread=unread,
        strikes=tuple(strikes),
    )


def _faults(
    characters: Sequence[Character | None],
    hidden: int,
    pictures: Sequence[_Picture],
    grey: Image.Image,
) -> Iterator[Distrust]:
    """Yield the faults of a layer's visible text, cheapest check first; `hidden`: how many characters are invisible."""
    seen = [one for one in characters if one]
    if max(len(seen), hidden) < LEAST_CHARACTERS:
        yield Distrust.NO_TEXT
    if hidden > MOST_HIDDEN * (len(seen) + hidden):
        yield Distrust.HIDDEN
    areas = (_area(place, grey.width, grey.height) for _, place in pictures)
    below = (
        any(
            one.order < order and left <= one.origin[0] <= right and top <= one.origin[1] <= bottom
            for order, (left, top, right, bottom) in pictures
        )
        for one in seen
    )
    if max(areas, default=0.0) > MOST_PICTURE * grey.width * grey.height or _share(below) > MOST_BELOW:
        yield Distrust.PICTURE
    # Accents and vowel signs that have lost their letter, as where marks are out of order.
    stray = _share(before is None for before, one in pairwise(characters) if one and one.is_mark)
    if _share(one.unmapped for one in seen) + stray > MOST_UNMAPPED:
        yield Distrust.UNMAPPED
    if _share(one.text[:1].isalnum() for one in seen if one.code not in _LEADERS) < LEAST_LETTERS:
        yield Distrust.UNMAPPED
    if _share(one.is_turned for one in seen) > MOST_TURNED:
        yield Distrust.TURNED


def _uncovered(
    characters: Sequence[Character | None],
    pixels: NDArray[np.uint8],
    pictures: Sequence[Rectangle],
    unsure: Sequence[Rectangle],
) -> tuple[Distrust | None, tuple[Box, ...]]:
    """Return where what looks like letters stands beside a layer, and whether that is too much of the page."""
    from pecia_workers.layout.coverage import TALLEST, Letters  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    letters = Letters.of(pixels, TALLEST * max(pixels.shape))
    rest = letters.beside(word.box for line in layer_text.lines_of(characters) for word in line.words)
    is_much = sum(map(len, rest.lines())) >= max(_LEAST_UNCOVERED, MOST_UNCOVERED * len(letters))
    regions = rest.regions((box_of(*place) for place in pictures), [box_of(*place) for place in unsure])
    return Distrust.UNCOVERED if is_much else None, tuple(regions)


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([*flags] or [False]))


def _drawn(
    page: pypdfium2.PdfPage, place: pypdfium2.PdfMatrix
) -> tuple[dict[int, int], list[_Picture], list[Rectangle]]:
    """Return when each text object of a page is drawn, by its address; its pictures; and its level lines."""
    orders: dict[int, int] = {}
    pictures: list[_Picture] = []
    lines: list[Rectangle] = []
    for order, (item, at) in enumerate(_items(page, place)):
        kind = raw.FPDFPageObj_GetType(item)
        if kind == raw.FPDF_PAGEOBJ_TEXT:
            orders[ctypes.addressof(item.contents)] = order
        elif kind == raw.FPDF_PAGEOBJ_IMAGE:
            pictures.append((order, _rectangle(item, at)))
        elif kind == raw.FPDF_PAGEOBJ_PATH:
            lines += level_lines(item, at)
    return orders, pictures, lines


def _lost_places(
    page: pypdfium2.PdfPage, pixels: NDArray[np.uint8], limits: Limits, *, every: bool
) -> Iterator[Rectangle]:
    """Yield where each picture stands that cannot be decoded, in pixels of the page.

    Without `every`, only those are tried whose header leaves it open.
    """
    height, width = pixels.shape[:2]
    for item, at in _items(page, layer_text.placing(page, width, height)):
        if raw.FPDFPageObj_GetType(item) != raw.FPDF_PAGEOBJ_IMAGE:
            continue
        known = raw.FPDF_IMAGEOBJ_METADATA()
        raw.FPDFImageObj_GetImageMetadata(item, page, known)
        # 0 bits: there is no decoder for it. Of one bit that shows only when it is decoded.
        if not every and (known.bits_per_pixel > 1 or known.width * known.height > limits.page_pixels):
            continue
        if bitmap := raw.FPDFImageObj_GetBitmap(item):
            raw.FPDFBitmap_Destroy(bitmap)
        else:
            yield _rectangle(item, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedPicture:
    """A picture of a page as the file has it."""

    item: Any
    place: Rectangle
    width: int
    height: int
    bits: int
    """Of a pixel."""
    filters: tuple[str, ...]
    length: int
    """Bytes before any filter is undone."""

    def is_cut(self, saved: SavedPage) -> bool:
        """Whether its data ends early or is broken; `saved`: its page."""
        *outer, last = self.filters or ("",)
        if saved.has_broken_mask(self.width, self.height):
            return True
        if last in ("DCTDecode", "DCT", "JPXDecode"):
            return is_jpeg_broken(self._content(decoded=bool(outer)))
        if last in ("FlateDecode", "Fl") and not outer:
            return is_deflate_cut(self._content(), self._bytes())
        if last in ("LZWDecode", "LZW", "RunLengthDecode", "RL", "FlateDecode", "Fl", ""):
            return bool(raw.FPDFImageObj_GetImageDataDecoded(self.item, None, 0) < self._bytes())
        if last in ("CCITTFaxDecode", "JBIG2Decode"):
            return self._is_bilevel_cut(
                self._content(decoded=bool(outer)), saved, is_fax=last != "JBIG2Decode"
            )
        return False

    def _is_bilevel_cut(self, content: bytes, saved: SavedPage, *, is_fax: bool) -> bool:
        if is_fax and not saved.has_group4(self.width, self.height):
            return has_line_ends(content) and has_lost_rows(content, self.height)
        pixels = self._bilevel()
        if pixels is None:
            return True
        return is_fax_broken(content, pixels) if is_fax else is_jbig2_broken(content, pixels)

    def _bytes(self) -> int:
        """Return how many bytes its pixels have at least."""
        return self.height * -(-self.width * self.bits // 8)

    def _content(self, *, decoded: bool = False) -> bytes:
        read = raw.FPDFImageObj_GetImageDataDecoded if decoded else raw.FPDFImageObj_GetImageDataRaw
        buffer = ctypes.create_string_buffer(read(self.item, None, 0))
        read(self.item, buffer, len(buffer))
        return buffer.raw

    def _bilevel(self) -> NDArray[np.bool_] | None:
        """Return its pixels as pdfium decodes them, True is light; None if it cannot."""
        bitmap = raw.FPDFImageObj_GetBitmap(self.item)
        if not bitmap:
            return None
        pixels = pypdfium2.PdfBitmap.from_raw(bitmap).to_numpy()  # which frees the bitmap with its buffer
        light: NDArray[np.bool_] = (pixels if pixels.ndim == 2 else pixels[:, :, 0]) >= _PAPER  # noqa: PLR2004  grey
        return light


def _encoded_pictures(
    page: pypdfium2.PdfPage, pixels: NDArray[np.uint8], limits: Limits
) -> Iterator[_EncodedPicture]:
    """Yield the pictures of a page that pdfium can decode within the limits."""
    height, width = pixels.shape[:2]
    known, name = raw.FPDF_IMAGEOBJ_METADATA(), ctypes.create_string_buffer(32)
    for item, at in _items(page, layer_text.placing(page, width, height)):
        if raw.FPDFPageObj_GetType(item) != raw.FPDF_PAGEOBJ_IMAGE:
            continue
        raw.FPDFImageObj_GetImageMetadata(item, page, known)
        if not known.bits_per_pixel or not 0 < known.width * known.height <= limits.page_pixels:
            continue
        filters = []
        for number in range(raw.FPDFImageObj_GetImageFilterCount(item)):
            raw.FPDFImageObj_GetImageFilter(item, number, name, len(name))
            filters.append(name.value.decode("latin-1"))
        yield _EncodedPicture(
            item=item,
            place=_rectangle(item, at),
            width=known.width,
            height=known.height,
            bits=known.bits_per_pixel,
            filters=tuple(filters),
            length=raw.FPDFImageObj_GetImageDataRaw(item, None, 0),
        )


def _count_pictures(page: pypdfium2.PdfPage) -> int:
    everywhere = pypdfium2.PdfMatrix()
    return sum(
        raw.FPDFPageObj_GetType(item) == raw.FPDF_PAGEOBJ_IMAGE for item, _ in _items(page, everywhere)
    )


def _densities(page: pypdfium2.PdfPage) -> Iterator[float]:
    """Yield the size in pixels of the page at the resolution of each picture that covers much of it."""
    across, down = ctypes.c_uint(), ctypes.c_uint()
    for item, at in _items(page, layer_text.placing(page, _FINE, _FINE)):
        if raw.FPDFPageObj_GetType(item) == raw.FPDF_PAGEOBJ_IMAGE:
            share = _area(_rectangle(item, at), _FINE, _FINE) / _FINE**2
            if share > _LEAST_SHOWN and raw.FPDFImageObj_GetImagePixelSize(item, across, down):
                yield across.value * down.value / share


def _rectangle(item: Any, place: pypdfium2.PdfMatrix) -> Rectangle:
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    raw.FPDFPageObj_GetBounds(item, left, bottom, right, top)
    return cast("Rectangle", place.on_rect(left.value, bottom.value, right.value, top.value))


def _area(place: Rectangle, width: int, height: int) -> float:
    """Return the pixels of a page that lie within a rectangle."""
    left, top, right, bottom = place
    return max(0.0, min(width, right) - max(0, left)) * max(0.0, min(height, bottom) - max(0, top))


def _items(page: pypdfium2.PdfPage, place: pypdfium2.PdfMatrix) -> Iterator[tuple[Any, pypdfium2.PdfMatrix]]:
    """Yield the drawn objects in order, with the matrix from their coordinates to pixels; forms, then their content."""
    within = _items_within(page, raw.FPDFPage_CountObjects, raw.FPDFPage_GetObject, place, _DEPTH)
    return islice(within, _MOST_OBJECTS)


def _items_within(
    parent: Any,
    count: Callable[[Any], int],
    get: Callable[[Any, int], Any],
    place: pypdfium2.PdfMatrix,
    depth: int,
) -> Iterator[tuple[Any, pypdfium2.PdfMatrix]]:
    for item in filter(None, (get(parent, index) for index in range(count(parent)))):
        yield item, place
        if depth and raw.FPDFPageObj_GetType(item) == raw.FPDF_PAGEOBJ_FORM:
            matrix = raw.FS_MATRIX()
            raw.FPDFPageObj_GetMatrix(item, matrix)
            within = pypdfium2.PdfMatrix.from_raw(matrix).multiply(place)
            yield from _items_within(
                item, raw.FPDFFormObj_CountObjects, raw.FPDFFormObj_GetObject, within, depth - 1
            )
