"""`pecia watch-folder` beside a real fleet, as a scanner, a browser and a killed process meet it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pecia_workers.local.process import wait_until
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Draw, RunFleet
from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder") / "inbox"


@pytest.fixture(scope="module")
def fleet(run_fleet: RunFleet, inbox: Path) -> Iterator[Any]:
    with run_fleet("folder", engine="simulated", watch_folder=str(inbox)) as fleet:
        yield fleet


@contextmanager
def watching(fleet: Any, folder: Path, *options: str, settle: float = 0.5) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process of its own until the block ends; it ends well if it was not killed."""
    command = [sys.executable, "-m", "pecia", "watch-folder", str(folder), "--settle", f"{settle}", *options]
    watch = subprocess.Popen(
        command, env=os.environ | fleet.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watch.stderr is not None
    try:
        assert "watching" in watch.stderr.readline()
        yield watch
        if watch.poll() is None:
            watch.terminate()
            assert watch.wait(WAIT_S) == 0, watch.stderr.read()
    finally:
        watch.kill()
        watch.communicate()


def test_documents_are_read_once_through_kills_and_what_fails_has_its_reason(
    fleet: Any, drawn: Draw, tmp_path: Path
) -> None:
    (tmp_path / "one.png").write_bytes(drawn("Ward 7"))
    (tmp_path / "two.png").write_bytes(drawn("Ward 8"))
    (tmp_path / "notes.txt").write_text("call back")
    journal = tmp_path / ".pecia" / "watched.jsonl"
    with watching(fleet, tmp_path) as watch:
        wait_until(lambda: b"one.png" in journal.read_bytes(), WAIT_S)
        watch.send_signal(signal.SIGKILL)
        watch.wait(WAIT_S)
    with watching(fleet, tmp_path):
        wait_until(lambda: not list(tmp_path.glob("*.*g")) and not list(tmp_path.glob("*.txt")), WAIT_S)
        (tmp_path / "arriving.part").write_bytes(drawn("Ward 10"))
        (tmp_path / "arriving.part").rename(tmp_path / "one.png")
        wait_until((tmp_path / "done" / "one-2.png").exists, WAIT_S)
    assert {path.name for path in (tmp_path / "done").iterdir()} == {
        f"{stem}.png{end}" for stem in ("one", "two", "one-2") for end in ("", ".txt")
    }
    reason = (tmp_path / "failed" / "notes.txt.error.txt").read_text()
    assert ("Code: unsupported_type" in reason, "Next: Send PNG" in reason) == (True, True)
    assert (tmp_path / "failed" / "notes.txt").read_text() == "call back"
    labels = Counter(job.label for job in fleet.client.jobs())
    assert labels == {"one.png": 2, "two.png": 1, "notes.txt": 1}


def test_a_file_written_slowly_is_read_once_and_whole(fleet: Any, drawn: Draw, tmp_path: Path) -> None:
    picture = drawn("Ward 9")
    with watching(fleet, tmp_path, settle=4), (tmp_path / "slow.png").open("wb", buffering=0) as file:
        for at in range(0, len(picture), len(picture) // 8):
            file.write(picture[at : at + len(picture) // 8])
            time.sleep(0.25)
        wait_until((tmp_path / "done" / "slow.png").exists, WAIT_S)
    assert {path.name for path in (tmp_path / "done").iterdir()} == {"slow.png", "slow.png.txt"}
    assert (tmp_path / "done" / "slow.png").read_bytes() == picture
    assert [job.state for job in fleet.client.jobs() if job.label == "slow.png"] == ["succeeded"]


def test_a_network_drive_is_polled_until_all_is_read(fleet: Any, drawn: Draw, tmp_path: Path) -> None:
    folder, out = tmp_path / "scans", tmp_path / "out"
    (folder / "ward").mkdir(parents=True)
    (folder / "ward" / "a.png").write_bytes(drawn("Ward 11"))
    words = ("watch-folder", folder, "--poll", "0.2", "--settle", "0.3", "--once", "--recursive", "--keep")
    more = ("--out", out, "--format", "json", "--json")
    first = run_pecia(*words, *more, env=fleet.environment)
    assert (first.returncode, json.loads(first.stdout)["file"]) == (0, "ward/a.png"), first.stderr
    assert json.loads((out / "ward" / "a.png.json").read_bytes())["pages"]
    again = run_pecia(*words, *more, env=fleet.environment)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    (folder / "b.pdf").write_bytes(b"%PDF-1.7 that ends here")
    failed = run_pecia(*words, env=fleet.environment)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "b.pdf: damaged: " in failed.stderr
    assert {path.name for path in (folder / "failed").iterdir()} == {"b.pdf", "b.pdf.error.txt"}
    with watching(fleet, folder, "--keep", "--recursive"):
        assert "Another" in run_pecia(*words, env=fleet.environment).stderr


def test_a_fleet_watches_the_folder_of_its_settings_and_its_log_names_no_file(
    fleet: Any, drawn: Draw, inbox: Path
) -> None:
    scratch = inbox.with_name("Kim-Minji.png")
    scratch.write_bytes(drawn("Ward 12"))
    scratch.rename(inbox / scratch.name)
    assert wait_until((inbox / "done" / "Kim-Minji.png.txt").exists, WAIT_S)
    assert wait_until(lambda: not (inbox / "Kim-Minji.png").exists(), WAIT_S)
    logs = [path.read_text(errors="replace") for path in fleet.fleet.home.path.rglob("logs/*.log")]
    assert any("watching" in log for log in logs)
    assert not any("Minji" in log for log in logs)
