"""docs/benchmarks.md is what the newest results say, and the list of benchmarks is whole."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.catalogue import CATALOGUE, HERE, Size, named
from harness.page import PAGE, page
from harness.report import spread
from harness.results import RESULTS, Results, entry_of, newest

LIST = (HERE / "README.md").read_text()


@pytest.fixture
def results() -> Results:
    told = {
        "ratio": 2.0,
        "report": {
            "tables": [{"headings": ["side", "jobs/s"], "rows": [["Pecia", "2,000"]], "title": "two rounds"}],
            "notes": ["Celery was left out."],
        },
    }
    return Results(
        at="2026-11-21T10:00:00+00:00",
        machine={
            "processor": "A CPU",
            "architecture": "x86_64",
            "cores": "2",
            "memory": "4 GiB",
            "system": "Linux",
        },
        versions={"python": "3.11"},
        benchmarks={"rivals": entry_of(Size.TINY, "python benchmarks/overhead.py", told, 3.21)},
    )


def test_the_page_is_made_of_the_newest_results() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_the_page_beside_each_file_of_results_is_that_files() -> None:
    for path in RESULTS.glob("*.json"):
        kept = Results.read(path)
        assert path.with_suffix(".md").read_text() == kept.markdown(f"# Benchmarks, {kept.at[:10]}")


def test_every_script_is_in_the_catalogue_and_in_the_list() -> None:
    scripts = {path.name for path in HERE.glob("*.py")} - {"run.py"}
    assert {one.script for one in CATALOGUE} == scripts
    for one in CATALOGUE:
        assert re.search(rf"^\| `{one.name}` \|.*`{one.script}`", LIST, re.MULTILINE), one.name


def test_what_is_written_is_read_again(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "2026-11-21-somewhere.json"
    results.write(path)
    assert Results.read(path) == results


def test_the_newest_is_found_by_its_time_not_by_its_name(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "b.json")
    replace(results, at="2026-11-22T10:00:00+00:00").write(tmp_path / "a.json")
    assert newest(tmp_path) == tmp_path / "a.json"


def test_a_page_without_results_says_so_and_how_to_make_them(tmp_path: Path) -> None:
    shown = page(tmp_path)
    assert "`make bench` measures it" in shown
    assert shown.endswith("No results are kept yet.\n")


def test_a_name_that_is_no_benchmark_is_refused_with_those_that_are() -> None:
    with pytest.raises(LookupError, match=r"no benchmark nothing: rivals, "):
        named(["rivals", "nothing"])


def test_benchmarks_run_in_the_order_of_the_catalogue() -> None:
    assert [one.name for one in named(["depth", "rivals"])] == ["rivals", "depth"]
    assert named([]) == list(CATALOGUE)


def test_of_several_rounds_the_spread_is_shown() -> None:
    assert spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0)"
    assert spread([1234.5]) == "1,234"
