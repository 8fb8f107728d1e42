"""Faults that a model makes, of nineteen kinds, held against either witness of the page: found, and nothing else."""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from pecia_schemas.blocks import Block, Doubt, Line, Source
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Prefer
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits, PageImage, Plan
from pecia_workers.protocol.base import Piece
from pecia_workers.reading.markup import blocks_of
from pecia_workers.witness.grounding import grounded
from pecia_workers.witness.second_look import pieces_in_question, with_readings
from pecia_workers.witness.tokens import WitnessText, tokens_of
from tests.shared.ocr import ReadPieces, witness_process
from tests.shared.planted_faults import FAULTS, planted
from tests.shared.witnessed_pages import KINDS, LETTER, drawn_page

EACH = 60
"""Faults of a kind."""
SOURCES = (
    "layer",
    pytest.param("ocr", marks=pytest.mark.gate),
    pytest.param("degraded", marks=pytest.mark.gate),
)
LIMITS = Limits.of(WorkerSettings())


@dataclass(frozen=True)
class Read:
    """A true page, and what a witness read of it."""

    markdown: str
    blocks: tuple[Block, ...]
    pixels: NDArray[np.uint8] | None = None
    glanced: tuple[Piece, ...] = ()
    read_again: ReadPieces | None = None
    readings: dict[Piece, Line] = field(default_factory=dict)
    """Of pieces that were read again, for one page is judged many times."""

    def judged(self, markdown: str) -> Page:
        source = Source.LAYER if self.pixels is None else Source.OCR
        page = Page(
            number=1, blocks=blocks_of(markdown), verdict=Verdict.OK, width=1, height=1, engine="model"
        )
        witness = WitnessText(self.blocks, source, pixels=self.pixels)
        pieces = pieces_in_question(page, witness, self.glanced)
        if pieces and self.read_again and self.pixels is not None:
            new = [piece for piece in pieces if piece not in self.readings]
            self.readings.update(zip(new, self.read_again(self.pixels, new), strict=True))
            blocks = with_readings(self.blocks, pieces, [self.readings[piece] for piece in pieces])
            witness = WitnessText(blocks, source, pixels=self.pixels)
        return grounded(page, witness)


@pytest.fixture(scope="module", params=SOURCES)
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Read]]:
    path: Path = tmp_path_factory.mktemp("drawn") / "page.pdf"
    kinds = [(LETTER, seed) for seed in range(6)] + [(kind, seed) for kind in KINDS for seed in range(2)]
    drawn = []
    for number, (kind, seed) in enumerate(kinds):
        page = drawn_page(kind, seed)
        path.write_bytes(page.pdf)
        image: PageImage = load_page(path, 0, LIMITS, Plan(prefer=Prefer.PIXELS, witness=True, steps=()))
        pixels = degraded(image.pixels, number) if request.param == "degraded" else image.pixels
        drawn.append((page.markdown(), image.witness, pixels))
    if request.param == "layer":
        yield [Read(markdown, blocks) for markdown, blocks, _ in drawn]
        return
    with witness_process() as (glance, read_again):
        seen = [(markdown, glance(pixels), pixels) for markdown, _, pixels in drawn]
        yield [Read(text, read.blocks, pixels, read.glanced, read_again) for text, read, pixels in seen]


def degraded(pixels: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    """Return a page as a poor scanner gives it: aslant, blurred, grey, noisy, and packed hard."""
    rng = np.random.default_rng(seed)
    turned = Image.fromarray(pixels).rotate(
        rng.uniform(-0.6, 0.6), fillcolor=(250, 248, 240), resample=Image.Resampling.BICUBIC
    )
    grey = np.asarray(turned.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float32) * 0.85 + 25
    noisy = (grey + rng.normal(0, 12, pixels.shape)).clip(0, 255).astype(np.uint8)
    packed = io.BytesIO()
    Image.fromarray(noisy).save(packed, "JPEG", quality=45)
    return np.asarray(Image.open(packed).convert("RGB"))


def keys(doubts: tuple[Doubt, ...]) -> Counter[tuple[str, str, str | None]]:
    return Counter((doubt.reason.value, doubt.text, doubt.other) for doubt in doubts)


def test_what_is_true_is_not_doubted(pages: list[Read]) -> None:
    judged = [page.judged(page.markdown) for page in pages]
    values = [token for page in judged for token in tokens_of(page.text.replace("\n", " ")) if token.is_value]
    doubted = [doubt for page in judged for doubt in page.doubts if doubt.on_value]
    is_degraded = pages[0].pixels is not None and len(np.unique(pages[0].pixels)) > 200
    assert len(doubted) <= (0.02 if is_degraded else 0) * len(values), doubted
    assert sum(page.verdict is Verdict.OK for page in judged) >= 0.85 * len(judged)


@pytest.mark.parametrize("kind", FAULTS)
def test_each_kind_of_fault_is_doubted_and_its_page_not_ok(pages: list[Read], kind: str) -> None:
    true = [keys(page.judged(page.markdown).doubts) for page in pages]
    missed = []
    for number, text in faults(pages, kind):
        page = pages[number].judged(text)
        if page.verdict is Verdict.OK or not keys(page.doubts) - true[number]:
            missed.append(text)
    assert missed == []


def faults(pages: list[Read], kind: str) -> Iterator[tuple[int, str]]:
    """Yield pages by their number, each with one fault of this kind."""
    made = seed = 0
    while made < EACH:
        for number, page in enumerate(pages):
            text = planted(kind, page.markdown, seed)
            seed += 1
            if text is not None and made < EACH:
                made += 1
                yield number, text
