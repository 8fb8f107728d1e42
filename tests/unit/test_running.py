"""How clients find the fleets that run on their machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pecia_schemas import running
from pecia_schemas.running import NoFleetError, RunningFleet


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def _fleet(pid: int, home: str = "/h") -> RunningFleet:
    return RunningFleet(
        pid=pid, home=home, database_url="postgresql://d", redis_url=f"unix://{home}/r", payload_url="/p"
    )


@pytest.fixture
def fleet() -> RunningFleet:
    fleet = _fleet(os.getpid())
    running.announce(fleet)
    return fleet


@pytest.fixture
def note(fleet: RunningFleet) -> Path:
    [path] = running.notes().iterdir()
    assert fleet.home in path.read_text()
    return path


def test_nothing_is_found_before_anything_runs() -> None:
    with pytest.raises(NoFleetError, match="No fleet runs on this machine: start `pecia up`"):
        running.find()


def test_an_announced_fleet_is_found_until_its_own_supervisor_withdraws_it(fleet: RunningFleet) -> None:
    running.withdraw(fleet.home, fleet.pid + 1)
    assert running.find().redis_url == fleet.redis_url
    running.withdraw(fleet.home, fleet.pid)
    assert running.running_fleets() == []


def test_two_fleets_are_told_apart_by_their_homes(fleet: RunningFleet) -> None:
    other = _fleet(os.getpid(), "/other")
    running.announce(other)
    with pytest.raises(NoFleetError, match=r"choose one by --home or PECIA_HOME\. They are /h, /other\."):
        running.find()
    assert [running.find(home).home for home in ("/h", "/other", "/h/../other/")] == [
        "/h",
        "/other",
        "/other",
    ]
    running.withdraw(other.home, other.pid)
    assert running.find().home == fleet.home


@pytest.mark.usefixtures("fleet")
def test_a_home_in_which_no_fleet_runs_is_told_beside_those_in_which_one_does() -> None:
    with pytest.raises(NoFleetError, match=r"No fleet runs in /other: .* Fleets run in /h\."):
        running.find("/other")


def test_the_note_is_for_its_user_alone(note: Path) -> None:
    assert note.stat().st_mode & 0o777 == 0o600


def test_the_fleet_of_a_dead_process_is_not_found() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    running.announce(_fleet(supervisor.pid))
    assert running.find()
    supervisor.communicate()
    assert running.running_fleets() == []


def test_another_process_with_the_supervisors_number_is_not_it(fleet: RunningFleet, note: Path) -> None:
    note.write_text(fleet.model_copy(update={"started": 1}).model_dump_json())
    assert running.running_fleets() == []


def test_a_note_that_cannot_be_read_is_none(note: Path) -> None:
    note.write_text("{")
    assert running.running_fleets() == []


@pytest.mark.usefixtures("fleet")
def test_the_note_of_another_user_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert running.running_fleets() == []
