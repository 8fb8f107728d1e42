"""docs/simulation.md: its commands run, and its figures are what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command import run_pecia
from pecia_workers.batching.policies import PolicyName
from pecia_workers.simulation.scenarios import simulated_seed

pytestmark = pytest.mark.gate

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--real" not in command])
def test_a_command_of_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day.csv").write_text("arrived,document_type\n0,chart\n3.5,prescription\n")
    program, *words = shlex.split(command)

    result = run_pecia(*words)

    assert program == "pecia"
    assert result.returncode == 0, result.stderr


def rows(head: str) -> list[list[str]]:
    table = PAGE[PAGE.index(head) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    ("place", "name"),
    list(enumerate((PolicyName.STATIC, PolicyName.DYNAMIC, PolicyName.CONTINUOUS, PolicyName.SHORTEST))),
)
def test_the_comparison_is_what_is_simulated(place: int, name: PolicyName) -> None:
    found = simulated_seed(name).figures

    assert rows("| policy | total s")[place][1:] == [
        f"{found.total:.2f}",
        f"{found.requests_per_s:.2f}",
        f"{found.service.mean:.3f}, {found.service.p95:.2f}",
        f"{100 * found.utilisation:.1f} %",
        f"{found.in_system.mean:.2f}, {found.in_system.p95:.2f}",
    ]


def test_what_a_worker_needs_to_see_is_what_is_simulated() -> None:
    for ahead, total, mean in rows("| waiting at the worker"):
        seen = simulated_seed(PolicyName.SHORTEST, ahead=None if ahead == "all" else int(ahead)).figures
        assert (total, mean) == (f"{seen.total:.2f}", f"{seen.in_system.mean:.2f}")


def test_the_experiment_is_what_is_simulated() -> None:
    printed = run_pecia("experiment").stdout

    for size, window, *figures in rows("| size | window"):
        typed = r"\d+" if window == "any" else window.removesuffix(" ms")
        assert re.search(
            rf"^\s*{size}\s+{typed}\s+{figures[0]}\s+{figures[1]}\s+\S+\s+{figures[2]}", printed, re.MULTILINE
        )
