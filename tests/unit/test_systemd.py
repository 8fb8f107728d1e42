"""`compose/systemd`: units that systemd takes, of commands that there are, which end workers with time to drain."""

import configparser
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from pecia.cli.endings import Ending
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands.worker import Role
from tests.shared.command import run_pecia
from tests.shared.snippets import ROOT, blocks

UNITS = sorted((ROOT / "compose" / "systemd").glob("*.service"))
PAGE = (ROOT / "docs" / "systemd.md").read_text()


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_there_is_and_waits_for_its_drain(unit: Path) -> None:
    about = service(unit)
    program, *words = about["ExecStart"].replace("%i", Role.INGEST).split()
    assert (program, about["User"]) == ("/opt/pecia/bin/pecia", "pecia")
    assert run_pecia(*words, "--help").returncode == 0  # which is after the words were understood
    assert timedelta(seconds=int(about["TimeoutStopSec"])) > 2 * WorkerSettings().drain_timeout
    assert int(about["RestartPreventExitStatus"]) == Ending.USAGE


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this machine has no systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/pecia/bin/pecia", sys.executable)
        (tmp_path / unit.name.replace("@", "@ingest")).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_page_installs_each_unit_from_the_wheel() -> None:
    shell = "\n".join(blocks(PAGE, "sh"))
    assert "make wheel" in shell
    assert "compose/systemd/*.service" in shell
    assert all(unit.stem in shell for unit in UNITS)
