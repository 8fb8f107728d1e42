"""`pecia demo` shows the main job from end to end and leaves the machine as it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.soak.auditor import processes_with

from fixture_types import Eventually
from limits import WAIT_S

pytestmark = pytest.mark.gate

DEMO = (sys.executable, "-m", "pecia", "demo")
EXHIBITS = {
    "hospital chart": "succeeded",
    "diagnosis certificate": "succeeded",
    "lab result": "succeeded",
    "scan turned": "succeeded",
    "damaged upload": "failed (damaged)",
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
    steps = demo.stdout.partition("Drawing documents")[0].splitlines()
    assert steps[1:3] == ["Starting postgres …", "Starting redis …"]
    assert "engine: ready" in steps
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == {}


def test_a_demo_that_is_interrupted_leaves_nothing_either(temporary: Path, eventually: Eventually) -> None:
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
