"""The commands of docs/simulation.md run."""

import re
import shlex
from pathlib import Path

import pytest

from command import run_pecia

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
