"""PDF documents, through pdfium. Not thread-safe: one process opens a document and renders its pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from pydantic import SecretStr
from pypdfium2 import raw
from pypdfium2.internal import get_bufreader

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.media.limits import Limits, MediaError
from pecia_workers.media.pages import PageInfo, Plan
from pecia_workers.media.text_layer import TextLayer, text_layer

_POINTS_PER_INCH = 72
_A4 = (595.0, 842.0)
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
        self._document = self._open()
        self._rendered = 0

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size that each page asked for is rendered at.

        A page whose own description is broken counts as A4 here, so that it fails alone when it is rendered.
        """
        with _translated_errors():
            count = len(self._document)
        infos = tuple(self._info(index) for index in self._limits.choose(count, pages))
        self._limits.check_total(sum(page.width * page.height for page in infos))
        return infos

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
            scale: Any = render_scale(width, height, self._limits)  # typed as int there
            with closing(
                page.render(scale=scale, rev_byteorder=True, fill_color=(255, 255, 255, 255))
            ) as bitmap:
                pixels = np.array(bitmap.to_numpy()[:, :, :3])
            if (
                pixels == pixels[0, 0]
            ).all():  # pdfium leaves out what it cannot decode: a scan would pass as blank
                for item in page.get_objects():
                    if isinstance(item, pypdfium2.PdfImage):
                        item.get_bitmap().close()
            return pixels

    def layer(self, index: int, pixels: NDArray[np.uint8], plan: Plan) -> TextLayer | None:
        """Return the page's own text, if it is to be read from that; `pixels` are those that it was rendered to.

        Annotations and form fields become part of the page, and their text part of its own.
        """
        with suppress(pypdfium2.PdfiumError, MemoryError):
            with closing(self._document[index]) as page:
                raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
            with closing(self._document[index]) as page:
                anyhow = plan.prefer is Prefer.LAYER
                layer = text_layer(page, pixels, may_turn=Preparation.ORIENT in plan.steps, hidden=anyhow)
                return layer if layer.characters and (anyhow or layer.distrust is None) else None
        return None

    def close(self) -> None:
        """Free the document."""
        self._document.close()

    def _open(self) -> pypdfium2.PdfDocument:
        password = self._password.get_secret_value() if self._password else None
        with _translated_errors(password=bool(password)):
            document = _loaded(self._content, password)
            if document.get_formtype():
                document.init_forms()
            return document

    def _info(self, index: int) -> PageInfo:
        try:
            width, height = self._document.get_page_size(index)
            scale = render_scale(width, height, self._limits)
        except (pypdfium2.PdfiumError, MediaError):
            width, height = _A4
            scale = render_scale(width, height, self._limits)
        return PageInfo(index=index, width=math.ceil(width * scale), height=math.ceil(height * scale))


def _loaded(content: raw.FPDF_FILEACCESS | bytes, password: str | None) -> pypdfium2.PdfDocument:
    """Open a document, whose content must stay where it is until it is closed.

    Left to itself, pypdfium2 calls one without pages by the error of the file before it, and never closes it.
    """
    key = None if password is None else password.encode() + b"\0"
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
    return pypdfium2.PdfDocument(handle)


def render_scale(width: float, height: float, limits: Limits) -> float:
    """Return pixels per point for a page of this size in points: the fleet's resolution, or less to keep the limits.

    Raises `MediaError` for a size that is no size.
    """
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise MediaError(FailureCode.DAMAGED, "A page has no size.")
    scale = min(limits.render_dpi / _POINTS_PER_INCH, (MAX_SIDE - 1) / max(width, height))
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
            raise MediaError(
                FailureCode.ENCRYPTED, "The PDF is protected by a certificate or a rights manager."
            ) from None
        raise MediaError(FailureCode.DAMAGED, "The PDF cannot be read.") from None
