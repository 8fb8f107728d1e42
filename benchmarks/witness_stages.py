"""CPU seconds of a page by stage: of the CPU engine, and of the same engine as a witness of a page that a model read.

The pages are drawn (`tests/shared/witnessed_pages.py`), and those of PDFs with a text layer, which is their truth. A
witness is measured beside the true text, and beside one with a digit changed, a line left out and a line made up.
`second look` is what it reads again, `comparison` both comparisons. One process, one thread; wall time plays no part.
"""

import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.report import Report, Table, parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecia_schemas.blocks import Source
from pecia_schemas.rendering import markdown_of
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Prefer
from pecia_workers.engines.cpu import networks, rapidocr
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits, MediaError, Plan
from pecia_workers.reading.markup import blocks_of
from pecia_workers.witness.grounding import grounded
from pecia_workers.witness.second_look import pieces_in_question, with_readings
from pecia_workers.witness.tokens import WitnessText
from tests.shared.planted_faults import planted
from tests.shared.witnessed_pages import KINDS, LETTER, drawn_page

T = TypeVar("T")
LIMITS = Limits.of(WorkerSettings())
STAGES = ("detection", "recognition", "rest", "second look", "comparison")
PLANTED = ("digit", "line left out", "line made up")


class Stages(defaultdict[str, float]):
    """CPU seconds by stage."""

    def take(self, stage: str, call: Callable[..., T], *args: Any) -> T:
        """Return what a call does, timed."""
        began = process_time()
        answer = call(*args)
        self[stage] += process_time() - began
        return answer


def main() -> None:
    """Read the pages in every way and print what each took."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=2, help="of each drawn kind")
    made.add_argument("--pdf", type=Path, nargs="*", default=[], help="documents with a text layer")
    arguments = made.parse_args()
    networks.load_witness()
    stages = Stages(float)
    for careful in (True, False):
        model = networks.networks(careful=careful).model
        for part, stage in ((model.text_det, "detection"), (model.text_rec, "recognition")):
            part.session = _timed(part.session, stages, stage)
    found: dict[str, list[Stages]] = {"CPU engine": [], "witness of a true text": [], "of a wrong one": []}
    for text, pixels in _pages(arguments.pages, arguments.pdf):
        wrong = text
        for kind in PLANTED:
            wrong = planted(kind, wrong, 0) or wrong
        ways: tuple[Callable[[], object], ...] = (
            partial(_read, stages, rapidocr.read_page, pixels),
            partial(_witness, pixels, text, stages),
            partial(_witness, pixels, wrong, stages),
        )
        for of, way in zip(found.values(), ways, strict=True):
            stages.clear()
            way()
            of.append(Stages(float, stages))
    rows = [
        [
            name,
            *(f"{statistics.median(one[stage] for one in of):.2f}" for stage in STAGES),
            f"{statistics.median(sum(one.values()) for one in of):.2f}",
            f"{max(sum(one.values()) for one in of):.2f}",
        ]
        for name, of in found.items()
    ]
    table = Table(
        headings=("", *STAGES, "all", "most"),
        rows=rows,
        title=f"CPU s a page, medians of {len(found['CPU engine'])} pages",
    )
    Report(tables=[table], figures={}).tell(as_json=arguments.json)


def _timed(session: Any, stages: Stages, stage: str) -> Callable[[Any], Any]:
    return lambda batch: stages.take(stage, session, batch)


def _read(stages: Stages, read: Callable[..., T], *args: Any) -> T:
    """Read a page and return the result; the time outside of the networks counts as `rest`."""
    networks = stages["detection"] + stages["recognition"]
    answer = stages.take("rest", read, *args)
    stages["rest"] -= stages["detection"] + stages["recognition"] - networks
    return answer


def _witness(pixels: NDArray[np.uint8], text: str, stages: Stages) -> None:
    page = Page(number=1, blocks=blocks_of(text), verdict=Verdict.OK, width=1, height=1, engine="model")
    glance = _read(stages, rapidocr.glance, pixels)

    def first() -> Any:
        return pieces_in_question(page, WitnessText(glance.blocks, Source.OCR, pixels=pixels), glance.glanced)

    def second() -> Page:
        return grounded(page, WitnessText(blocks, Source.OCR, pixels=pixels))

    blocks = glance.blocks
    if pieces := stages.take("comparison", first):
        apart = Stages(float, stages)
        [block] = stages.take("second look", rapidocr.read_pieces, pixels, pieces).blocks
        stages["detection"], stages["recognition"] = apart["detection"], apart["recognition"]
        blocks = with_readings(blocks, pieces, block.lines)
    stages.take("comparison", second)


def _pages(count: int, documents: list[Path]) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the text and the pixels of A4 pages."""
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        path = Path(scratch) / "page.pdf"
        for kind in (*KINDS, LETTER):
            for seed in range(count):
                drawn = drawn_page(kind, seed)
                path.write_bytes(drawn.pdf)
                yield (
                    drawn.markdown(),
                    load_page(path, 0, LIMITS, Plan(prefer=Prefer.PIXELS, steps=())).pixels,
                )
    for path in documents:
        try:
            text = markdown_of(load_page(path, 0, LIMITS, Plan()).blocks)
        except MediaError:
            continue
        yield text, load_page(path, 0, LIMITS, Plan(prefer=Prefer.PIXELS, steps=())).pixels


if __name__ == "__main__":
    main()
