"""How a machine hears that it will be taken away: by a file, which the example creates by a cloud's word."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pecia_schemas.settings import SettingsError, WorkerSettings, read_settings
from pecia_workers.processes import service
from pecia_workers.processes.service import termination_heard
from tests.shared.limits import WAIT_S, eventually
from tests.shared.metadata_server import metadata_server
from tests.shared.snippets import ROOT

pytestmark = pytest.mark.gate


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when this process was sent SIGTERM."""
    monkeypatch.setattr(service, "_LOOK_S", 0.02)
    stopped = threading.Event()
    former = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    yield stopped
    signal.signal(signal.SIGTERM, former)


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_the_example_creates_the_file_when_the_cloud_takes_this_machine_and_not_before(
    cloud: str, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    with metadata_server() as server:
        server.neighbour_going = True
        command = [sys.executable, str(ROOT / "examples/spot_notice.py"), cloud, str(notice), server.url]
        with subprocess.Popen(command) as polling:
            eventually(lambda: server.looks >= 4, what="looks")
            assert not notice.exists()
            server.going = True
            assert polling.wait(WAIT_S) == 0
    assert notice.exists()


def test_a_new_file_stops_a_worker(tmp_path: Path, stopped: threading.Event) -> None:
    notice = tmp_path / "notice"
    with termination_heard(str(notice)):
        assert not stopped.wait(0.1)
        notice.touch()
        eventually(stopped.is_set)


def test_who_has_ended_is_told_nothing_more(tmp_path: Path, stopped: threading.Event) -> None:
    with termination_heard(str(tmp_path / "notice")):
        pass
    (tmp_path / "notice").touch()
    assert not stopped.wait(0.1)
    assert "termination" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("notice", ["aws", "notice", "http://169.254.169.254"])
def test_a_notice_that_is_no_path_is_refused(monkeypatch: pytest.MonkeyPatch, notice: str) -> None:
    monkeypatch.setenv("PECIA_TERMINATION_NOTICE", notice)
    with pytest.raises(SettingsError, match="PECIA_TERMINATION_NOTICE"):
        read_settings(WorkerSettings)
