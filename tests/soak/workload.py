"""What producers hand over: documents of every shape, endless and the same for the same seed."""

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from PIL import Image, ImageDraw, ImageFont

from pecia import DocumentType, Lane

_PAGE = (600, 120)  # pixels
_MOST_PAGES = 24


class Shape(StrEnum):
    """What a document is."""

    PICTURE = "picture"
    PDF = "pdf"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    number: int
    shape: Shape
    pages: int
    lane: Lane
    document_type: DocumentType
    cancelled: bool
    """Whether its producer changes their mind as soon as it is accepted."""

    def draw(self) -> bytes:
        """Return the document: no page of it looks like another one's."""
        if self.shape is Shape.PDF:
            return _pdf([_page(f"document {self.number} page {page}") for page in range(self.pages)])
        picture = _png(_page(f"document {self.number}"))
        return picture if self.shape is Shape.PICTURE else picture[: len(picture) // 2]


def orders(seed: int) -> Iterator[Order]:
    """Yield what is handed over, in that order: mostly small, some long, a few damaged or cancelled."""
    chance = random.Random(f"orders {seed}")  # noqa: S311  a workload, no secret
    number = 0
    while True:
        shape = chance.choices(list(Shape), weights=(70, 27, 3))[0]
        yield Order(
            number=number,
            shape=shape,
            pages=chance.randint(2, _MOST_PAGES) if shape is Shape.PDF else 1,
            lane=chance.choices(list(Lane), weights=(20, 40, 40))[0],
            document_type=chance.choices(
                (DocumentType.PRESCRIPTION, DocumentType.LAB_RESULT, DocumentType.DIAGNOSIS),
                weights=(60, 30, 10),
            )[0],
            cancelled=chance.random() < 0.03,
        )
        number += 1


def _page(words: str) -> Image.Image:
    image = Image.new("L", _PAGE, "white")
    ImageDraw.Draw(image).text((30, 40), words, fill="black", font=ImageFont.load_default(28))
    return image


def _png(page: Image.Image) -> bytes:
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    return buffer.getvalue()


def _pdf(pages: list[Image.Image]) -> bytes:
    buffer = io.BytesIO()
    pages[0].save(buffer, "PDF", save_all=True, append_images=pages[1:])
    return buffer.getvalue()
