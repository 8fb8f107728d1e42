"""How clients find the fleet that runs on their machine."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pecia_schemas import running
from pecia_schemas.running import RunningFleet

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def _fleet(pid: int) -> RunningFleet:
    return RunningFleet(
        pid=pid,
        home="/h",
        database_url="postgresql://d",
        redis_url="unix:///r",
        payload_url="/p",
        flower_url=None,
    )


def test_nothing_is_found_before_anything_runs() -> None:
    assert running.find() is None


def test_an_announced_fleet_is_found() -> None:
    running.announce(_fleet(os.getpid()))
    found = running.find()
    assert found is not None
    assert found.redis_url == "unix:///r"


def test_the_note_is_for_its_user_alone() -> None:
    running.announce(_fleet(os.getpid()))
    assert running.fleet_file().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in running.fleet_file().parent.iterdir()] == ["fleet.json"]


def test_a_withdrawn_fleet_is_not_found() -> None:
    running.announce(_fleet(os.getpid()))
    running.withdraw(os.getpid())
    assert running.find() is None


def test_a_fleet_is_not_withdrawn_by_another() -> None:
    running.announce(_fleet(os.getpid()))
    running.withdraw(os.getpid() + 1)
    assert running.find() is not None


def test_the_fleet_of_a_dead_process_is_not_found() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    running.announce(_fleet(supervisor.pid))
    assert running.find() is not None
    supervisor.communicate()
    assert running.find() is None


def test_another_process_with_the_number_of_the_supervisor_is_not_taken_for_it() -> None:
    note = _fleet(os.getpid()).model_copy(update={"started": 1})
    running.announce(note)
    running.fleet_file().write_text(note.model_dump_json())
    assert running.find() is None


def test_a_note_that_cannot_be_read_is_none() -> None:
    running.announce(_fleet(os.getpid()))
    running.fleet_file().write_text("{")
    assert running.find() is None


def test_the_note_of_another_user_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    running.announce(_fleet(os.getpid()))
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert running.find() is None
