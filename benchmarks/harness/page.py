"""docs/benchmarks.md, made of the newest results and of nothing else."""

from pathlib import Path

from harness.results import RESULTS, Results, newest

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

_HEAD = """\
# Benchmarks

Speed beside what you would pick instead, in one run on the same servers. `make bench` measures it on your machine in
about twelve minutes and writes this page; `make bench BENCH="rivals urgent"` measures some, `BENCH_SIZE=full` more of
each. What a script compares, and where it is unfair, stands in its first lines; `benchmarks/README.md` lists them.

A figure is the median of the rounds, least and most in brackets. On few cores the servers take their share of what is
measured: ratios carry over to other machines, rates do not."""


def page(directory: Path = RESULTS) -> str:
    """Return the page."""
    file = newest(directory)
    if file is None:
        return f"{_HEAD}\n\nNo results are kept yet.\n"
    return Results.read(file).markdown(f"{_HEAD} All figures are those of\n`benchmarks/results/{file.name}`.")
