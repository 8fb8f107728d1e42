"""Videos through a whole fleet: cut, captioned all at once, and summarised; here by an engine that writes nothing."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pecia import CaptionVideo, FailureCode, JobState
from tests.shared.command import ran, run_pecia
from tests.shared.fixture_types import RunFleet
from tests.shared.limits import WAIT_S
from tests.shared.videos import video

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def captioners(run_fleet: RunFleet) -> Iterator[Any]:
    with run_fleet("captions", engine="simulated:instant", video_segment=timedelta(seconds=2)) as fleet:
        yield fleet


def test_a_video_that_breaks_off_is_partial_and_says_where(captioners: Any) -> None:
    whole = video(9, movflags="faststart")
    job = captioners.client.submit(CaptionVideo(whole[: len(whole) * 7 // 10])).wait(WAIT_S)

    captions = job.result(timeout=0)

    assert job.state is JobState.PARTIAL
    assert captions.segments
    assert {one.failure.code for one in captions.failed} == {FailureCode.DAMAGED}
    assert len(captions.segments) + len(captions.failed) == 5
    assert captions.failed[-1].number == 5
    assert captions.summary, "what there is, is summarised"


def test_the_command_prints_captions_for_people_and_for_programs(captioners: Any, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(video(4))
    asked = ("caption", clip, "--wait", "--style", "brief", "--language", "ko", "--segments", "1")

    told, shown = (run_pecia(*asked, *form, env=captioners.environment) for form in (["--json"], []))

    assert (told.returncode, told.stderr) == (0, "")
    captions = json.loads(told.stdout)
    segments = [(one["number"], one["start"], one["end"]) for one in captions["segments"]]
    assert segments == [(1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 3, 4)]
    assert captions["summary"] == {"text": "", "verdict": "ok"}
    assert f"--- {clip}, 0:03 - 0:04 (ok)" in shown.stdout
    assert f"--- {clip}, summary (ok)" in shown.stdout
    assert captioners.query(
        "SELECT task->>'style', task->>'language' FROM jobs WHERE id = %s", captions["job"]
    ) == [("brief", "ko")]


def test_what_the_documentation_shows_runs_as_it_stands(captioners: Any, tmp_path: Path) -> None:
    (tmp_path / "gait.mp4").write_bytes(video(4))
    page = (Path(__file__).parents[2] / "docs" / "captioning.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^    pecia (caption .*)$", page, re.MULTILINE)
    for run in (["-c", snippet], ["-m", "pecia", *command.split()]):
        ended = ran(sys.executable, *run, cwd=tmp_path, env=captioners.environment)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "0:00:02" in ended.stdout or "0:00 - 0:04" in ended.stdout
