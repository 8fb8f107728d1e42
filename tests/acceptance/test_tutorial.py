"""What the tutorial says is done as it stands there, from top to bottom, against a real fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snippets import agrees, blocks, commands

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
DRAWING, READING, FAILING = blocks(PAGE, "python")


@pytest.fixture(scope="module")
def type_in(fleet: Any, session_directory: Path) -> Callable[..., str]:
    """Runs a command where the reader sits, who has drawn the documents."""
    desk = session_directory / "tutorial"
    desk.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **fleet.environment, "PATH": path}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=desk, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-c", DRAWING)
    return run


def test_every_command_prints_what_the_page_shows(type_in: Callable[..., str]) -> None:
    for command, shown in commands(PAGE):
        printed = type_in("/bin/sh", "-c", command)
        assert agrees(printed, shown), f"{command}\n{printed}"


def test_the_long_document_comes_page_by_page(type_in: Callable[..., str]) -> None:
    assert type_in(sys.executable, "-c", READING).splitlines() == [
        "1 HOSPITAL CHART",
        "2 DISCHARGE",
        "2 pages, succeeded",
    ]


def test_the_bad_one_says_what_to_do(type_in: Callable[..., str]) -> None:
    code, sentence = type_in(sys.executable, "-c", FAILING).splitlines()
    assert code == "damaged"
    assert "scan it again" in sentence
