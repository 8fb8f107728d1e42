"""What is generated from the code is committed as the code has it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pecia.cli.app import OWN, app
from pecia_schemas.export import pages
from snippets import fenced

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_korean_shows_what_the_readme_shows_which_is_run() -> None:
    korean = fenced((DOCS / "ko.md").read_text())
    assert korean
    assert set(korean) <= set(fenced((DOCS.parent / "README.md").read_text()))


@pytest.mark.parametrize(("name", "content"), list(pages()), ids=[name for name, _ in pages()])
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
