"""Made-up medical documents with their exact text: what `pecia demo` reads, and what accuracy is measured on.

A4 at 150 dots per inch, body text of 11 points. People, clinics and values are invented.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.tasks import DocumentType
from pecia_workers.local import sample_texts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DPI: Final = 150
_A4: Final = (1240, 1754)
_MARGIN: Final = 120
_POINTS: Final = {"title": 16, "heading": 13, "body": 11, "small": 10}
_PAPER, _PRINT, _RULE = "white", (20, 20, 24), (120, 120, 120)
_LEADING: Final = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """One drawn page and what stands on it."""

    image: Image.Image = field(repr=False)
    lines: tuple[str, ...]
    """Top to bottom, left to right; a table's row is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDocument:
    """A document whose text is known."""

    name: str
    document_type: DocumentType
    pages: tuple[SamplePage, ...]

    @property
    def text(self) -> str:
        """The whole known text, a form feed between pages."""
        return "\f".join("\n".join(page.lines) for page in self.pages)


def sample_documents(seed: int = 0) -> tuple[SampleDocument, ...]:
    """Return one document of each type; the same seed draws the same pixels."""
    return tuple(sample_document(kind, seed) for kind in sample_texts.WRITERS)


def sample_document(kind: DocumentType, seed: int = 0) -> SampleDocument:
    """Return a document of that type; different seeds give different people and values."""
    pages = sample_texts.WRITERS[kind](random.Random(f"{kind}{seed}"))  # noqa: S311  made-up content, no secret
    return SampleDocument(
        name=f"{kind}-{seed}", document_type=kind, pages=tuple(draw_page(blocks) for blocks in pages)
    )


def draw_page(blocks: Iterable[sample_texts.Block]) -> SamplePage:
    """Return the page with these blocks from top to bottom."""
    sheet = _Sheet()
    for block in blocks:
        sheet.add(block)
    return SamplePage(image=sheet.image, lines=tuple(sheet.lines))


def write_png(document: SampleDocument, path: Path) -> None:
    """Write the first page as a PNG."""
    document.pages[0].image.save(path, "PNG", dpi=(DPI, DPI))


def write_pdf(document: SampleDocument, path: Path) -> None:
    """Write all pages as a scanned PDF: pictures, no text layer."""
    first, *others = (page.image for page in document.pages)
    first.save(path, "PDF", resolution=DPI, save_all=True, append_images=others, quality=90)


def write_scan(document: SampleDocument, path: Path, *, degrees: int = 90, seed: int = 0) -> None:
    """Write the first page as a noisy JPEG that lies turned clockwise by a multiple of 90 degrees."""
    turned = document.pages[0].image.rotate(-degrees, expand=True)
    noise = np.random.default_rng(seed).normal(0, 6, (turned.height, turned.width, 1))
    grey_cast = np.asarray(turned, dtype=np.float32) * 0.94 + noise
    Image.fromarray(grey_cast.clip(0, 255).astype(np.uint8)).save(path, "JPEG", quality=85, dpi=(DPI, DPI))


def write_damaged_png(document: SampleDocument, path: Path) -> None:
    """Write the first half of the first page's PNG, as an interrupted upload leaves it."""
    write_png(document, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


class _Sheet:
    """A page that is being drawn; knows every line it holds."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", _A4, _PAPER)
        self.lines: list[str] = []
        self._draw = ImageDraw.Draw(self.image)
        self._y = float(_MARGIN)

    def add(self, block: sample_texts.Block) -> None:
        """Draw one block and go below it."""
        if block.style == "rule":
            self._rule()
        elif len(block.cells) > 1:
            self._row(block)
        else:
            self._paragraph(block)

    def _rule(self) -> None:
        self._draw.line((_MARGIN, self._y, _A4[0] - _MARGIN, self._y), fill=_RULE, width=2)
        self._y += 14

    def _row(self, block: sample_texts.Block) -> None:
        font = _font(block.style)
        pitch = (_A4[0] - 2 * _MARGIN) / len(block.cells)
        for column, cell in enumerate(block.cells):
            self._draw.text((_MARGIN + column * pitch, self._y), cell, fill=_PRINT, font=font)
        self.lines.append(" ".join(block.cells))
        self._y += font.size * _LEADING

    def _paragraph(self, block: sample_texts.Block) -> None:
        font = _font(block.style)
        for line in _wrapped(block.cells[0], font):
            self._draw.text((_MARGIN, self._y), line, fill=_PRINT, font=font)
            self.lines.append(line)
            self._y += font.size * _LEADING
        self._y += font.size * 0.4


def _font(style: str) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(_POINTS[style] * DPI / 72)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise TypeError("This Pillow was built without FreeType, so it cannot draw text at a size.")
    return font


def _wrapped(text: str, font: ImageFont.FreeTypeFont) -> Iterable[str]:
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and font.getlength(longer) > _A4[0] - 2 * _MARGIN:
            yield line
            longer = word
        line = longer
    yield line
