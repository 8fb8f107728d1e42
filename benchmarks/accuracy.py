"""How much of a folder of pages whose content is known a throw-away fleet with the CPU engine reads rightly.

The folder is `BENCH_PAGES`, or what `--pages` names; its files have their truth beside them, or are PDFs with a text
layer (docs/evaluation.md). By kind of page: character and word error rates in order, words and numbers anywhere,
cells, order (Kendall's tau), marks, pages that are `ok` though more than 1 % of their words is missing, seconds.

Caveats. The figures are those of the folder. Seconds are of decoding and of the engine while all cores read.
"""

import json
import os
import subprocess
import sys

from harness.report import Report, Table, parser


def main() -> None:
    """Read the folder once and print the figures."""
    made = parser(__doc__)
    made.add_argument("--pages", default=os.environ.get("BENCH_PAGES"), help="the folder")
    made.add_argument("--engine", default="cpu")
    asked = made.parse_args()
    if not asked.pages:
        made.error("which pages? BENCH_PAGES=DIR or --pages DIR")
    command = [sys.executable, "-m", "pecia", "eval", asked.pages, "--engine", asked.engine, "--json"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    kinds = found["kinds"]
    table = Table(
        headings=("kind", *next(iter(kinds.values()))),
        rows=[[kind, *map(_shown, figures.values())] for kind, figures in kinds.items()],
    )
    Report(tables=[table], figures={"kinds": kinds}).tell(as_json=asked.json)


def _shown(figure: float | None) -> str:
    if figure is None:
        return ""
    return str(figure) if isinstance(figure, int) else f"{figure:.3f}"


if __name__ == "__main__":
    main()
