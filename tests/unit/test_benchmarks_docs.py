"""docs/benchmarks.md is what the newest results say, and the list of benchmarks is whole."""

import re

from harness.catalogue import CATALOGUE, HERE
from harness.page import PAGE, page
from harness.results import RESULTS, Results

LIST = (HERE / "README.md").read_text()


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
