"""The text that a PDF itself holds, as its decoder tells it: what `pecia eval` takes for the truth about its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pypdfium2

from pecia_schemas.blocks import text_of
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import load_page
from pecia_workers.media.errors import MediaError
from pecia_workers.media.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path


def own_text(path: Path) -> list[tuple[str, str]]:
    """Return the text of every page twice; nothing if the file is locked or damaged.

    First what can be seen of it, in the order in which its layout is read; then as the file has it, which writes it
    in any order. A page whose text layer is not trusted has the second twice.
    """
    limits = Limits.of(WorkerSettings())
    try:
        with pypdfium2.PdfDocument(path) as document:
            in_file = [page.get_textpage().get_text_bounded() for page in document]
        laid_out = [text_of(load_page(path, index, limits).blocks) for index in range(len(in_file))]
    except (pypdfium2.PdfiumError, MediaError):
        return []
    return [(seen or written, written) for seen, written in zip(laid_out, in_file, strict=True)]
