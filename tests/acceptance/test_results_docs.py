"""What docs/results.md says is done as it stands there, against a real fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from pecia_schemas import DocumentType
from pecia_workers.local.sample_documents import sample_document, write_pdf, write_png
from snippets import agrees, blocks, commands

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
SAVING, RENDERING = blocks(PAGE, "python")
CHART, PRESCRIPTION = sample_document(DocumentType.CHART), sample_document(DocumentType.PRESCRIPTION)


@pytest.fixture(scope="module")
def desk(session_directory: Path) -> Path:
    """Where the documents lie that the page speaks of."""
    path = session_directory / "results"
    path.mkdir()
    write_pdf(CHART, path / "report.pdf")
    write_png(PRESCRIPTION, path / "scan.png")
    write_png(sample_document(DocumentType.PRESCRIPTION, 1), path / "letter.png")
    return path


@pytest.fixture(scope="module")
def type_in(fleet: Any, desk: Path) -> Callable[..., str]:
    """Runs a command where the reader sits."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **fleet.environment, "PATH": path}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=desk, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_job_is_saved_in_the_forms_that_the_names_ask_for(type_in: Callable[..., str], desk: Path) -> None:
    script = desk / "save.py"  # a file, as a user has it: what draws the pages must not run it again
    script.write_text(SAVING)
    assert type_in(sys.executable, str(script)) == "pages.xml\n"
    assert (desk / "report.md").read_text().count("\n---\n") == len(CHART.pages) - 1
    assert (desk / "pages.xml").read_text().count('class="ocr_page"') == len(CHART.pages)
    searchable = pypdfium2.PdfDocument(desk / "searchable.pdf")
    for page, known in zip(searchable, CHART.pages, strict=True):
        text = page.get_textpage()
        assert text.search(known.lines[0]).get_next() is not None
        assert page.get_size() == pytest.approx((595, 842), abs=1)


def test_a_result_is_text_in_memory(type_in: Callable[..., str]) -> None:
    assert type_in(sys.executable, "-c", RENDERING).startswith("<!-- page 1: ok -->\n\n")


def test_every_command_prints_what_the_page_shows(type_in: Callable[..., str], desk: Path) -> None:
    for command, shown in commands(PAGE):
        printed = type_in("/bin/sh", "-c", command)
        assert agrees(printed, shown), f"{command}\n{printed}"
    ids = (desk / "ids").read_text().split()
    assert sorted(path.stem for path in (desk / "archive").iterdir()) == sorted(ids)
