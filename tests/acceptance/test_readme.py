"""What the README and the examples say is run as it stands there, against a real fleet."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pecia import ReadDocument
from pecia_schemas import DocumentType
from pecia_workers.local.sample_documents import sample_document, write_damaged_png, write_pdf, write_png
from snippets import agrees, blocks, commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md")] + sorted(
    page for folder in ("docs", "compose", "examples", "benchmarks") for page in (ROOT / folder).rglob("*.md")
)


@pytest.fixture(scope="session")
def desk(session_directory: Path) -> Path:
    """A directory with the documents that the README speaks of."""
    path = session_directory / "desk"
    path.mkdir()
    write_png(sample_document(DocumentType.PRESCRIPTION), path / "scan.png")
    write_pdf(sample_document(DocumentType.CHART), path / "report.pdf")
    write_damaged_png(sample_document(DocumentType.LAB_RESULT), path / "cut.png")
    return path


@pytest.fixture
def environment(fleet: Any) -> dict[str, str]:
    """A user's shell: this virtual environment on the path, this fleet in the settings."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **fleet.environment, "PATH": path, "WEBHOOK_SECRET": fleet.webhook_secret}


def run(command: list[str], desk: Path, environment: dict[str, str]) -> str:
    completed = subprocess.run(
        command, cwd=desk, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_the_python_snippet_prints_a_line_for_each_page(desk: Path, environment: dict[str, str]) -> None:
    lines = run([sys.executable, "-c", blocks(README, "python")[0]], desk, environment).splitlines()
    assert lines[0] == "1 ok Hospital Chart"
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(("command", "shown"), list(commands(README)))
def test_a_command_prints_what_the_readme_shows(
    desk: Path, environment: dict[str, str], command: str, shown: str
) -> None:
    printed = run(["/bin/sh", "-c", command], desk, environment)
    assert agrees(printed, shown), printed


@contextmanager
def receiving(
    program: str, port: int, desk: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    assert "8787" in program
    receiver = subprocess.Popen(
        [sys.executable, "-c", program.replace("8787", str(port))],
        cwd=desk,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield receiver
    finally:
        receiver.kill()
        receiver.communicate()


def test_the_receiver_among_the_examples_is_called_back_and_believes_it(
    fleet: Any, desk: Path, environment: dict[str, str], eventually: Callable[..., Any]
) -> None:
    program = (ROOT / "examples" / "receive_callbacks.py").read_text()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with receiving(program, port, desk, environment) as receiver:
        eventually(lambda: listens(port))
        job = fleet.client.submit(ReadDocument(desk / "scan.png"), webhook=f"http://127.0.0.1:{port}/")
        job.wait(60)
        assert receiver.stdout is not None
        told = receiver.stdout.readline().split()
    assert (told[0], told[-2], told[-1]) == ("job.succeeded", "1", "pages")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_example_for_many_documents_tells_texts_and_failures(
    desk: Path, environment: dict[str, str]
) -> None:
    script = str(ROOT / "examples" / "read_documents.py")
    printed = run([sys.executable, script, "scan.png", "report.pdf", "cut.png"], desk, environment)
    assert {line.partition(":")[0] for line in printed.splitlines()} == {"scan.png", "report.pdf", "cut.png"}
    assert "report.pdf: 4 pages, 'Hospital Chart" in printed
    assert "cut.png: damaged: " in printed


def test_so_does_the_asynchronous_one(desk: Path, environment: dict[str, str]) -> None:
    script = str(ROOT / "examples" / "read_documents_async.py")
    printed = run([sys.executable, "-W", "error", script, "scan.png", "cut.png"], desk, environment)
    assert "scan.png: 1 pages, '" in printed
    assert "cut.png: damaged: " in printed


def test_both_clients_tell_the_same_side_by_side(desk: Path, environment: dict[str, str]) -> None:
    side_by_side = blocks((ROOT / "docs" / "clients.md").read_text(), "python")
    sync, twin, early = [
        sorted(run([sys.executable, "-W", "error", "-c", snippet], desk, environment).splitlines())
        for snippet in side_by_side
    ]
    assert sync == twin == ["1 ok", "failed", "succeeded"]
    assert early == ["ok"]


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(
            r"make ([a-z]+)\b",
            " ".join(blocks(README, "sh")) + " ".join(re.findall(r"`(make [a-z]+)`", README)),
        )
    )
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 120
