"""`pecia up` in one terminal, everything else in another, and `pecia demo`: what a person sees, and what is left."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from tests.shared.command import run_pecia
from tests.shared.fixture_types import Draw
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S, eventually
from tests.soak.auditor import processes_with

pytestmark = pytest.mark.gate


SERVICES = ("postgres", "redis", "ingest", "engine", "webhooks", "upkeep", "flower")
PECIA = (sys.executable, "-m", "pecia")


@dataclass(frozen=True)
class Desk:
    """A user with two terminals: in one runs the fleet, in the other nothing but the way home is set."""

    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def screen(self) -> str:
        return (self.directory / "screen").read_text()

    def up(self, **settings: str) -> subprocess.Popen[bytes]:
        """Start the fleet; returns when its screen is there."""
        with (self.directory / "screen").open("wb") as screen:
            process = subprocess.Popen(
                [*PECIA, "up", "--home", self.home],
                env=os.environ | self._own | settings,
                stdout=screen,
                stderr=screen,
                start_new_session=True,
            )
        self.started.append(process)
        eventually(lambda: "pecia doctor" in self.screen or process.poll() is not None)
        assert process.poll() is None, self.screen
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with chdir(self.directory):
            return run_pecia(*arguments, env=self._own)

    @contextmanager
    def typing(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Type a command in a third terminal, which goes on meanwhile."""
        pipe = subprocess.PIPE
        command = [*PECIA, *arguments]
        with subprocess.Popen(
            command, env=os.environ | self._own, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def _own(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.state)}

    def processes(self) -> dict[int, str]:
        return processes_with(self.directory)


@pytest.fixture(scope="module")
def make_desk(session_directory: Path) -> Iterator[Callable[[str], Desk]]:
    """Makes users, each with a state and a home of their own; whatever they leave running is ended."""
    desks: list[Desk] = []

    def make(name: str) -> Desk:
        directory = session_directory / name
        directory.mkdir()
        directory.chmod(0o711)
        desks.append(Desk(directory))
        return desks[-1]

    yield make
    for desk in desks:
        for pid in desk.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in desk.started:
            process.wait()


@pytest.fixture(scope="module")
def desk(make_desk: Callable[[str], Desk]) -> Desk:
    desk = make_desk("up")
    desk.up(PECIA_WEBHOOK_LISTENER=str(free_port()))
    return desk


@pytest.fixture(scope="module")
def papers(desk: Desk, drawn: Draw) -> Path:
    """Files on the desk: a picture, a report of two pages, and one that is no document."""
    first, second = (Image.open(io.BytesIO(drawn(text))).convert("RGB") for text in ("Page one", "Page two"))
    (desk.directory / "scan.png").write_bytes(drawn("Scanned at the desk"))
    first.save(desk.directory / "report.pdf", save_all=True, append_images=[second], resolution=150)
    (desk.directory / "notes.txt").write_text("no document")
    return desk.directory


def lines(completed: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in completed.stdout.splitlines()]


def test_the_screen_tells_each_step_what_runs_what_to_type_and_how_to_get_into_flower(desk: Desk) -> None:
    told = desk.screen.partition("service ")[0].splitlines()
    assert told[0].startswith("A fleet in ")
    assert told[1:4] == ["Starting postgres …", "Starting redis …", "Bringing the database up to date …"]
    assert {f"{service}: ready" for service in SERVICES} <= set(told)
    table = [row.split() for row in desk.screen.splitlines()]

    for service in SERVICES:
        row = next(row for row in table if row and row[0] == service)
        assert row[1] == "ready"
        assert int(row[2]) in desk.processes()
    assert "http://127.0.0.1:" in desk.screen
    for command in ("pecia read", "pecia watch", "pecia doctor", "Ctrl-C"):
        assert command in desk.screen
    said = re.search(r"Flower +(\S+) +user (\S+), password\s+(\S+)", desk.screen)
    assert said
    url, user, password = said.groups()
    assert httpx2.get(url).status_code == 401
    assert httpx2.get(url, auth=(user, password)).status_code == 200


def test_documents_are_read_from_the_other_terminal_and_the_screen_says_how_the_jobs_stand(
    desk: Desk, papers: Path
) -> None:
    assert papers.is_dir()
    read = desk.run("read", "scan.png", "report.pdf", "--wait", "--json")
    assert (read.returncode, read.stderr) == (0, "pecia: 2 documents, 3 pages read: none needs a review.\n")
    scan, report = lines(read)
    assert (scan["file"], scan["state"], report["file"]) == ("scan.png", "succeeded", "report.pdf")
    assert [page["text"] for page in scan["pages"]] == ["Scanned at the desk"]
    assert [(page["number"], page["text"]) for page in report["pages"]] == [(1, "Page one"), (2, "Page two")]
    shown = r"0 queued, 0 running; in the last minute [1-9]\d* done, 0 failed, \d+\.\d pages/s"
    eventually(lambda: re.search(shown, desk.screen), what="A line about the job")


def test_a_first_callback_arrives_verified_with_nothing_set(desk: Desk, papers: Path) -> None:
    with desk.typing("webhook", "listen", "--count", "1", "--json") as listener:
        assert listener.stderr is not None
        url = listener.stderr.readline().removeprefix("Listening on ").strip()
        [job] = lines(desk.run("read", str(papers / "scan.png"), "--webhook", url, "--wait", "--json"))
        told, _ = listener.communicate(timeout=WAIT_S)
    notice = json.loads(told)
    assert (notice["type"], notice["data"]["job_id"]) == ("job.succeeded", job["job"])

    def states() -> list[str]:
        return [each["state"] for each in lines(desk.run("webhook", "deliveries", "--json"))]

    eventually(lambda: states() == ["delivered"], what="the outcome")


def test_doctor_finds_everything_in_order(desk: Desk) -> None:
    examined = desk.run("doctor", "--deep", "--json")
    assert examined.returncode == 0, examined.stdout
    assert {finding["subject"] for finding in lines(examined)} >= {"Postgres", "Redis", "engine worker"}
    assert all(finding["ok"] for finding in lines(examined))
    [engine] = [finding["detail"] for finding in lines(examined) if finding["subject"].startswith("engine@")]
    assert re.match(
        r"cpu PP-OCRv6-small(, Tesseract kor\+eng)?; cpu; read; languages en, (ko, )?zh; ", engine
    )


def test_ctrl_c_ends_everything_and_the_next_start_finds_all_again(
    make_desk: Callable[[str], Desk], drawn: Draw
) -> None:
    desk = make_desk("up-again")
    (desk.directory / "scan.png").write_bytes(drawn("Kept"))
    process = desk.up(PECIA_ENGINE="simulated:instant")
    [job] = lines(desk.run("read", "scan.png", "--wait", "--json"))

    process.send_signal(signal.SIGINT)

    assert process.wait(WAIT_S) == 0
    assert desk.processes() == {}
    assert desk.run("list").returncode == 4
    process = desk.up(PECIA_ENGINE="simulated:instant")
    assert [listed["job"] for listed in lines(desk.run("list", "--json"))] == [job["job"]]

    process.kill()  # as the kernel does when memory is short: nothing can be tidied up

    process.wait()
    eventually(lambda: desk.processes() == {}, what="an empty list of processes")
    assert desk.run("list").returncode == 4


DEMO = (sys.executable, "-m", "pecia", "demo")
EXHIBITS = {
    "hospital chart": "succeeded",
    "diagnosis certificate": "succeeded",
    "lab result": "succeeded",
    "scan turned": "succeeded",
    "damaged upload": "failed (damaged)",
    "pile of scans": "succeeded",
    "prescription": "succeeded",
}
"""How the rows of the table begin, and the state that stands in them."""


@pytest.fixture
def temporary(short_path: Path) -> Iterator[Path]:
    """The system's temporary directory, as the demo sees it; what is left running there is ended."""
    yield short_path
    for pid in processes_with(short_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(temporary: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(temporary), "COLUMNS": "160"}


def test_the_demo_reads_everything_and_leaves_nothing(temporary: Path) -> None:
    demo = subprocess.run(
        DEMO, env=environment(temporary), capture_output=True, text=True, timeout=WAIT_S, check=False
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    for title, state in EXHIBITS.items():
        row = next(line for line in demo.stdout.splitlines() if line.startswith(title))
        assert state in row
        assert "verified" in row
    assert "pages/s" in demo.stdout
    closing = " ".join(demo.stdout.partition("All as it should be:")[2].split())
    assert closing.startswith(
        "6 documents read, one of them split into 3 of 2 patients, 1 refused as damaged, 7 signed callbacks verified; "
        "the urgent one,"
    )
    steps = demo.stdout.partition("Drawing documents")[0].splitlines()
    assert steps[1:3] == ["Starting postgres …", "Starting redis …"]
    assert "engine: ready" in steps
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == {}


def test_a_demo_that_is_interrupted_leaves_nothing_either(temporary: Path) -> None:
    with subprocess.Popen(
        DEMO,
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as demo:
        eventually(lambda: len(processes_with(temporary)) > 5)  # it is in the middle of its start

        demo.send_signal(signal.SIGINT)
        output = demo.communicate(timeout=WAIT_S)

    assert demo.returncode != 0
    assert b"Traceback" not in output[1]
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == {}
