"""Forty pages, turned and askew, through the preparation that every page passes before an engine sees it.

How many come back upright (turned as they must be, sloping by less than half a degree), which do not, and what each
step takes of a core. The pages are drawn (`tests/shared/drawn_pages.py`): eight layouts, four kinds of files, slopes up
to 9.5 degrees, noise; three of ten Korean if a font is given.

Caveats. Drawn pages are cleaner than scanned ones. Times are of whole pages, the first look at them included, and of
pages that have something to do: an upright page costs no turn.
"""

import sys
import tempfile
from collections import defaultdict
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time

from harness.report import Report, Table, parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preparation
from pecia_workers.media.decoding import initialize_process, page_pixels_and_dpi, prepare
from pecia_workers.media.pages import Limits, PageImage, Plan
from tests.shared.drawn_pages import CASES, NEEDED, Case, askew_pages

LIMITS = Limits.of(WorkerSettings())


def main() -> None:
    """Prepare the pages, once for each round, and print what became of them."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--pages", type=int, default=CASES, help="of the forty, the first so many")
    made.add_argument("--korean-font", type=Path, help="a font file with Hangul")
    arguments = made.parse_args()
    initialize_process(LIMITS)
    took: dict[str, list[float]] = defaultdict(list)
    lost: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        for number in range(arguments.rounds):
            for case in islice(askew_pages(Path(scratch), arguments.korean_font), arguments.pages):
                page = _prepared(case, took)
                if number == 0 and not case.came_back(page):
                    lost.append(f"{case.name}: turned by {page.rotation}, levelled by {page.skew:g}")
    _report(lost, took, arguments.pages).tell(as_json=arguments.json)


def _prepared(case: Case, took: dict[str, list[float]]) -> PageImage:
    """Prepare a page by ever more steps, and note the milliseconds that each one adds."""
    pixels, _dpi = page_pixels_and_dpi(case.path, 0, LIMITS)
    page = PageImage(pixels=pixels)
    steps = tuple(Preparation)
    before = 0.0
    for count, name in enumerate(("look", *steps)):
        begun = process_time()
        page = prepare(pixels, Plan(steps=steps[:count]))
        spent = 1000 * (process_time() - begun)
        took[name].append(spent - before)
        before = spent
    return page


def _report(lost: list[str], took: dict[str, list[float]], pages: int) -> Report:
    upright = pages - len(lost)
    rows = [[step, f"{median(values):.0f}", f"{max(values):.0f}"] for step, values in took.items()]
    return Report(
        tables=[Table(headings=("step", "median, ms", "most, ms"), rows=rows)],
        notes=[f"{upright} of {pages} pages came back upright; {NEEDED} of {CASES} are asked for.", *lost],
        figures={
            "pages": pages,
            "upright": upright,
            "lost": lost,
            "median_ms": {step: round(median(values), 1) for step, values in took.items()},
        },
    )


if __name__ == "__main__":
    main()
