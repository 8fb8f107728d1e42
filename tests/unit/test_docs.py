"""What is generated from the code is committed as the code has it."""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.catalogue import CATALOGUE, HERE
from harness.page import PAGE, page
from harness.results import RESULTS, Results
from pecia.cli.app import OWN, app
from tests.shared.snippets import fenced

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_korean_shows_what_the_readme_shows_which_is_run() -> None:
    korean = fenced((DOCS / "ko.md").read_text())
    assert korean
    assert set(korean) <= set(fenced((DOCS.parent / "README.md").read_text()))


CONTRACT = dict(runpy.run_path(str(DOCS / "contract.py"))["pages"]())


@pytest.mark.parametrize(("name", "content"), CONTRACT.items(), ids=CONTRACT)
def test_a_generated_page_is_current(name: str, content: str) -> None:
    assert (DOCS / name).read_text() == content, "run `make docs`"


def test_the_page_of_the_command_is_current(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    typer = Path(sys.executable).with_name("typer")
    named = ("--name", "pecia", "--title", "The command", "--output", str(page))
    subprocess.run([typer, "pecia.cli.app", "utils", "docs", *named], check=True, capture_output=True)
    assert (DOCS / "cli.md").read_text() == page.read_text(), "run `make docs`"


def verbs(group: Any, path: tuple[str, ...] = ("pecia",)) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, and what to type for it."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from verbs(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(("typed", "command"), list(verbs(typer.main.get_command(app))))
def test_the_help_of_every_verb_ends_with_an_example_that_can_be_meant(typed: str, command: Any) -> None:
    (example,) = re.findall(r"Example: `([^`]+)`", command.help)
    assert typed in example
    options = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
    assert set(re.findall(r"(?<=\s)--[a-z-]+", example)) <= options


@pytest.mark.parametrize(("name", "does"), OWN.items(), ids=OWN)
def test_the_list_of_verbs_says_what_each_verb_says_of_itself(name: str, does: str) -> None:
    group: Any = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name)
    assert command.help.split("\n\n")[0].replace("\n", " ") == does


LIST = (HERE / "README.md").read_text()


def test_the_page_is_made_of_the_newest_results() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_the_page_beside_each_file_of_results_is_that_files() -> None:
    for path in RESULTS.glob("*.json"):
        kept = Results.read(path)
        assert path.with_suffix(".md").read_text() == kept.markdown(f"# Benchmarks, {kept.at[:10]}")


def test_every_script_is_in_the_catalogue_and_in_the_list() -> None:
    assert {one.script for one in CATALOGUE} == {path.name for path in HERE.glob("*.py")} - {
        "run.py",
        "calibrate.py",  # writes a part of the product, and no results
        "on_a_card.py",  # writes each step down as it ends, on a machine with a GPU
    }
    for one in CATALOGUE:
        assert re.search(rf"^\| `{one.name}` \|.*`{one.script}`", LIST, re.MULTILINE), one.name


WHERE = re.findall(r"^\| (.+\?) \| `(.+)` \| `(.+)` \|$", (DOCS / "where.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("question", "file", "name"), WHERE, ids=[question for question, _, _ in WHERE])
def test_a_rule_stands_where_the_docs_say(question: str, file: str, name: str) -> None:
    defined = rf"^(def|async def|class|local) .*\b{name}\b|^{name}\b.* = |^    {name} = "
    assert re.search(defined, (DOCS.parent / file).read_text(), re.MULTILINE), question


@pytest.mark.parametrize("start", ["README.md", "architecture.md"])
def test_the_page_of_rules_is_one_step_away(start: str) -> None:
    assert len(WHERE) >= 12
    assert "(where.md)" in (DOCS / start).read_text()


def test_the_picture_of_the_house_is_of_the_contract_that_is_checked() -> None:
    house = runpy.run_path(str(DOCS / "house.py"))
    assert house["PICTURE"].read_text() == house["drawn"](), "run `make docs`"


def test_the_reference_is_of_the_code_and_has_every_public_name() -> None:
    reference = runpy.run_path(str(DOCS / "reference.py"))
    assert reference["OPENAPI"].read_text() == reference["described"](), "run `make docs`"
    pages = list(reference["pages"]())
    assert [path for path, text in pages if path.read_text() != text] == [], "run `make docs`"
    assert {path for path, _ in pages} == set((DOCS / "reference").iterdir())
    headings = {name for _, text in pages for name in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    assert set(import_module("pecia").__all__) <= headings
