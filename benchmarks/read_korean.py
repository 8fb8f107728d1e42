"""Korean on the CPU: the two libraries of the engine `cpu` side by side on the same drawn pages.

Wrong characters (white space left out), pages a second in one process, and the memory of that process. Takes the font
and Tesseract's data of the machine, else of npm's registry (`tests/shared/korean.py`).

Caveats. Six drawn pages of A4 at 150 dots per inch in one font; scans are worse. rapidocr's models know no Hangul: it
stands here to show what becomes of a Korean page whose language is not named.
"""

import multiprocessing
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from harness.report import Report, Table, parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecia_schemas.blocks import text_of
from pecia_workers.engines.cpu.ocr_engine import PageReader
from pecia_workers.engines.cpu.rapidocr import rapidocr_reader
from pecia_workers.engines.registry import tesseract_reader
from pecia_workers.media.samples import accuracy
from tests.shared.korean import korean_font, korean_tessdata
from tests.shared.korean_pages import korean_pages


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one library made of the pages."""

    reader: str
    wrong: float
    """Share of the characters."""
    pages_s: float
    memory_mb: float


def main() -> None:
    """Read the pages with each library, in a process of its own, and print the figures."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=1)
    arguments = made.parse_args()
    readers = [rapidocr_reader(), tesseract_reader(str(korean_tessdata()))]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, maxtasksperchild=1) as pool:
        found = [pool.apply(_measure, (reader, arguments.rounds)) for reader in readers]
    rows = [
        [figures.reader, f"{figures.wrong:.1%}", f"{figures.pages_s:.2f}", f"{figures.memory_mb:.0f}"]
        for figures in found
    ]
    table = Table(headings=("library", "wrong characters", "pages/s", "memory, MB"), rows=rows)
    Report(tables=[table], figures={"libraries": [asdict(figures) for figures in found]}).tell(
        as_json=arguments.json
    )


def _measure(reader: PageReader, rounds: int) -> Figures:
    pages = korean_pages(korean_font())
    reader.load()
    begun, texts = perf_counter(), [""]
    for _ in range(rounds):
        texts = [text_of(reader.read(page.pixels).blocks) for page in pages]
    seconds = perf_counter() - begun
    return Figures(
        reader=reader.name,
        wrong=1 - accuracy("\n".join(texts), "\n".join(page.text for page in pages)),
        pages_s=rounds * len(pages) / seconds,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


if __name__ == "__main__":
    main()
