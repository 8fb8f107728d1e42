"""Pages whose snippets need no fleet run as they stand, and every page leads where it says.

Those that need one are run by tests/acceptance/test_docs.py, or with what they show, as docs/webhooks.md by
tests/integration/test_client_contract_webhooks.py.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pecia import Lane
from pecia.testing import FakeFleet
from tests.shared.command import run_pecia
from tests.shared.snippets import ROOT, blocks

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md")] + sorted(
    page for folder in ("docs", "compose", "examples", "benchmarks") for page in (ROOT / folder).rglob("*.md")
)


@dataclass(frozen=True)
class Run:
    """What came of a page: the names that it leaves, and what it printed."""

    fleet: FakeFleet
    names: dict[str, Any]
    printed: list[str]


def after_submitting(run: Run) -> None:
    refused, repeated = run.printed
    assert refused.startswith("2 The source cannot be read")
    assert repeated == "[False, False]"
    assert len(run.names["group"]) == 2


def after_priorities(run: Run) -> None:
    lanes = [job.lane for job in run.names["client"].jobs()]
    assert lanes == [Lane.URGENT, Lane.BULK, Lane.BULK, Lane.URGENT]
    assert run.names["tonight"] > datetime.now(UTC)


def after_testing(run: Run) -> None:
    run.names["test_a_scan_is_read_once"](run.fleet)


def after_preparation(run: Run) -> None:
    assert run.names["as_it_is"].prepare == ()


def after_review(run: Run) -> None:
    assert (run.printed, run.names["now"]) == ([], run.names["original"])


def after_batches(run: Run) -> None:
    assert run.printed == ["2 0 {}"]
    assert sorted(job.label for job in run.names["client"].jobs(batch="night")) == ["0.pdf", "1.pdf"]


SNIPPETS: dict[str, Callable[[Run], None]] = {
    "submitting": after_submitting,
    "batches": after_batches,
    "priorities": after_priorities,
    "testing": after_testing,
    "preparation": after_preparation,
    "review": after_review,
}
"""Pages, and what is to come of each."""


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_page_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scans").mkdir()
    for scan in ("scans/0.pdf", "scans/1.pdf", "emergency.pdf", "archive.pdf", "triage.pdf"):
        Path(scan).write_bytes(b"%PDF-1.7 " + scan.encode())
    with FakeFleet() as fleet:
        names: dict[str, Any] = {"client": fleet.client(), "scans": [Path("archive.pdf")]}
        for block in blocks((ROOT / "docs" / f"{name}.md").read_text(), "python"):
            exec(compile(block, f"docs/{name}.md", "exec"), names)  # noqa: S102  our own documentation
        SNIPPETS[name](Run(fleet, names, capsys.readouterr().out.splitlines()))


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(r"make ([a-z]+)\b", " ".join([*blocks(README, "sh"), *re.findall("`.*?`", README)]))
    )
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in set(re.findall(r"\]\(([^)\s]+)\)", page.read_text())):
        file, _, anchor = target.partition("#")
        if not target.startswith("http"):
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Git hosts make them, and those that it sets itself."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r"^\((\S+)\)=$", text, re.MULTILINE))


PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.gate
@pytest.mark.parametrize("command", [command for command in COMMANDS if "--real" not in command])
def test_a_command_of_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day.csv").write_text("arrived,document_type\n0,chart\n3.5,prescription\n")
    program, *words = shlex.split(command)
    result = run_pecia(*words)
    assert program == "pecia"
    assert result.returncode == 0, result.stderr


def test_the_page_on_a_first_change_names_files_and_targets_that_are_there() -> None:
    page = (ROOT / "docs" / "first-change.md").read_text()
    files = set(re.findall(r"\b(?:docs|schemas|tests|workers)/[\w./-]*\w", page))
    assert len(files) > 15
    assert {name for name in files if not (ROOT / name).exists()} == set()
    targets = {word for line in re.findall(r"^make ([a-z -]+)", page, re.MULTILINE) for word in line.split()}
    makefile = (ROOT / "Makefile").read_text()
    assert {word for word in targets if not re.search(rf"^{word}:", makefile, re.MULTILINE)} == set()
