"""The text that a PDF itself holds, as its decoder tells it: what `pecia eval` takes for the truth about its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pypdfium2

if TYPE_CHECKING:
    from pathlib import Path


def own_text(path: Path) -> list[str]:
    """Return the text of every page, in the order in which the file has it; nothing if it is locked or damaged."""
    try:
        with pypdfium2.PdfDocument(path) as document:
            return [page.get_textpage().get_text_bounded() for page in document]
    except pypdfium2.PdfiumError:
        return []
