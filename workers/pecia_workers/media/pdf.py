"""PDF documents, through pdfium: pages as pixels, and their text layers.

Not thread-safe: one process opens a document and renders its pages.
"""

from __future__ import annotations

import ctypes
import html
import io
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from pydantic import SecretStr
from pypdfium2 import raw
from pypdfium2.internal import get_bufreader

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.media.damage import SavedPage
from pecia_workers.media.overdrawn import struck_places
from pecia_workers.media.page_tree import PageTree
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource, Plan
from pecia_workers.media.pdf_objects import (
    Picture,
    Rectangle,
    area_within,
    objects_of,
    pictures_of,
    placing,
    rectangle_of,
)
from pecia_workers.media.text_layer import Distrust, TextLayer, text_layer

_POINTS_PER_INCH = 72
_A4 = (595.0, 842.0)
_SMALL: Final = 0.45
"""Share of A4's area, less than A5, below which a page's size may be wrong."""
_LEAST_SHOWN: Final = 0.1
"""Least share of a page for pictures that determine its resolution."""
_FINE: Final = 10_000
_PASSWORD, _EMPTY = 1 << 13, 2  # a flag of fields; bytes of a string without a letter
_REOPEN_AFTER = 16  # pages: pdfium keeps every stream it has read until the document is closed
_MOST_LOST: Final = 0.1
"""Greatest share of a page below pictures that cannot be decoded."""
_MOST_PICTURES, _MOST_CHECKED = 10_000, 1 << 28
"""Most pictures of a page, and bytes of them, that are checked for damage."""
_MOST_SAVED, _MOST_RAW = 1 << 27, 1 << 22
"""Most bytes of a file, all of which a saved page may contain, and of pictures that saving would compress."""


class PdfPages(PageSource):
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

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size at which each page is rendered: higher resolution for small pages with fine pictures.

        A page with a broken description counts as A4, so that only it fails, when it is rendered.
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
            pictures = list(pictures_of(page, pixels))
            most_pixels = self._limits.page_pixels
            lost = [one.place for one in pictures if one.has_no_decoder(most_pixels, every=is_plain)]
            most = 0.0 if is_plain else _MOST_LOST * width * height * scale**2
            if sum(area_within(place, *pixels.shape[1::-1]) for place in lost) > most:
                raise MediaError(FailureCode.DAMAGED, "A picture on the page cannot be decoded.")
            lost += self._cut_places(pictures, index, pixels)
            self.damage = tuple(place for place in lost if area_within(place, *pixels.shape[1::-1]) >= 1)
            return pixels

    def _cut_places(
        self, pictures: Sequence[Picture], index: int, pixels: NDArray[np.uint8]
    ) -> Iterator[Rectangle]:
        """Yield the places of drawn content whose stream is truncated or corrupt."""
        most_pixels = self._limits.page_pixels
        decoded = (one for one in pictures if one.bits and 0 < one.width * one.height <= most_pixels)
        measured = [(one, one.length()) for one in islice(decoded, _MOST_PICTURES)]
        is_small = sum(length for one, length in measured if not one.filters()) < _MOST_RAW
        saved = SavedPage(self._saved(index) if is_small and self._size <= _MOST_SAVED else b"")
        is_expected = self._tree.has_content(index, len(self._document))
        if self._tree.is_cut or saved.has_lost_content(is_expected=is_expected, pictures=len(pictures)):
            yield (0, 0, *pixels.shape[1::-1])
        left = _MOST_CHECKED
        for picture, length in measured:
            left -= length
            if left >= 0 and picture.is_cut(saved):
                yield picture.place

    def _saved(self, index: int) -> bytes:
        """Return a PDF of only this page."""
        buffer = io.BytesIO()
        with closing(pypdfium2.PdfDocument.new()) as single, suppress(pypdfium2.PdfiumError):
            single.import_pages(self._document, [index])
            single.save(buffer)
        return buffer.getvalue()

    def attachments(self, index: int) -> int:
        """Return the number of files attached to the document, or by a note on this page."""
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
        """Return the page's text layer; `pixels`: the rendered page.

        Annotations and form fields become part of the page, and their text part of its own.
        """
        with suppress(pypdfium2.PdfiumError, MemoryError):
            struck: list[Rectangle] = []
            filled: list[tuple[raw.FS_RECTF, str | None]] = []
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
                if layer.has_lost_signs:
                    self.damage += ((0, 0, *pixels.shape[1::-1]),)
                trusted = (None, Distrust.UNCOVERED) if plan.completes else (None,)
                return layer if layer.characters and (anyhow or layer.distrust in trusted) else None
        return None

    def _values(self, note: Any) -> Iterator[tuple[raw.FS_RECTF, str | None]]:
        """Yield the place and the text that a visible note or filled text field should show.

        Not if a script or a barcode displays it. The text is None for a box that is not ticked as its field says, and
        for a note that may be of a hidden layer, which pdfium draws.
        """
        form, place = self._document.formenv, raw.FS_RECTF()
        is_hidden = raw.FPDFAnnot_GetFlags(note) & (raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW)
        if is_hidden or not raw.FPDFAnnot_GetRect(note, place):
            return
        if raw.FPDFAnnot_GetSubtype(note) == raw.FPDF_ANNOT_FREETEXT and not _string(note, b"Contents"):
            yield place, html.unescape(re.sub(r"<[^>]*>", "", _string(note, b"RC")))
        state, value = _string(note, b"AS"), _string(note, b"V")
        is_off = self._tree.hides_layers and raw.FPDFAnnot_HasKey(note, b"OC")
        if is_off or (state and value and state != value):
            yield place, None
        script = raw.FPDFAnnot_GetFormAdditionalActionJavaScript
        if (
            not form
            or raw.FPDFAnnot_GetFormFieldType(form, note) != raw.FPDF_FORMFIELD_TEXTFIELD
            or raw.FPDFAnnot_GetFormFieldFlags(form, note) & _PASSWORD
            or raw.FPDFAnnot_HasKey(note, b"PMD")
            or script(form, note, raw.FPDF_ANNOT_AACTION_FORMAT, None, 0) > _EMPTY
        ):
            return
        yield place, _utf_16(raw.FPDFAnnot_GetFormFieldValue, form, note)

    def close(self) -> None:
        """Free the document."""
        self._document.close()

    def _unit(self, index: int) -> float:
        return self._tree.unit(index, len(self._document))

    def _scale(self, index: int, page: pypdfium2.PdfPage) -> float:
        """Return pixels per unit of a page.

        A small page may be a large one with a wrong size: it is rendered at the resolution of its pictures, up to the
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
        """Return the page tree; a document with a wrong count of pages is opened again.

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
                found = (
                    "The PDF has more pages than it declares: save it again with a program that repairs it."
                )
                raise MediaError(FailureCode.DAMAGED, found)
            if not isinstance(content, bytes):
                content.seek(0)
                content = content.read()
            self.close()
            self._content, self._held = tree.uncounted(content), ()
            self._document = self._open()
        return tree

    def _open(self) -> pypdfium2.PdfDocument:
        """Open the content, which must stay in memory until the document is closed.

        pypdfium2 itself reports the previous file's error for a document without pages, and does not close it.
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
    """Return pixels per 1/72 inch of a page: the fleet's resolution, or less to keep the limits.

    Raises `MediaError` for an invalid size.
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
            found = "cannot be opened with the given password" if password else "asks for a password"
            raise MediaError(FailureCode.ENCRYPTED, f"The PDF {found}.") from None
        if getattr(error, "err_code", None) == raw.FPDF_ERR_SECURITY:
            found = "The PDF is protected by a certificate or a rights manager."
            raise MediaError(FailureCode.ENCRYPTED, found) from None
        raise MediaError(FailureCode.DAMAGED, "The PDF cannot be read.") from None


def _unshown(
    page: pypdfium2.PdfPage, filled: Iterable[tuple[raw.FS_RECTF, str | None]], pixels: NDArray[np.uint8]
) -> Iterator[Rectangle]:
    """Yield the places of fields whose picture shows something else than their value, as after a partial update."""
    matrix = placing(page, *pixels.shape[1::-1])
    with closing(page.get_textpage()) as text:
        for place, value in filled:
            box = (place.left, place.bottom, place.right, place.top)
            if value is None or _signs(value) not in _signs(text.get_text_bounded(*box)):
                yield cast("Rectangle", matrix.on_rect(*box))


def _string(note: Any, key: bytes) -> str:
    """Return a string or name of an annotation's dictionary, empty if it has none."""
    return _utf_16(raw.FPDFAnnot_GetStringValue, note, key)


def _utf_16(read: Callable[..., int], *about: object) -> str:
    """Return a text that pdfium writes into a buffer."""
    length = read(*about, None, 0)
    value = ctypes.create_string_buffer(length)
    read(*about, ctypes.cast(value, ctypes.POINTER(raw.FPDF_WCHAR)), length)
    return value.raw.decode("utf-16-le", "replace").rstrip("\0")


def _signs(text: str) -> str:
    """Return the letters and digits that every font names alike."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text) if sign.isascii() and sign.isalnum())


def _densities(page: pypdfium2.PdfPage) -> Iterator[float]:
    """Yield the page's size in pixels at the resolution of each picture that covers much of it."""
    across, down = ctypes.c_uint(), ctypes.c_uint()
    for item, kind, place in objects_of(page, placing(page, _FINE, _FINE)):
        if kind == raw.FPDF_PAGEOBJ_IMAGE:
            share = area_within(rectangle_of(item, place), _FINE, _FINE) / _FINE**2
            if share > _LEAST_SHOWN and raw.FPDFImageObj_GetImagePixelSize(item, across, down):
                yield across.value * down.value / share
