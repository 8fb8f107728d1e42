"""A folder of pictures: read, left with Ctrl-C, followed by name, half of it cancelled, the rest exported."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from pyarrow import parquet

from tests.shared.command import run_pecia
from tests.shared.fixture_types import RunFleet
from tests.shared.limits import WAIT_S


def test_a_folder_is_left_followed_thinned_and_exported(run_fleet: RunFleet, tmp_path: Path) -> None:
    count = 40
    for number in range(count):
        half = tmp_path / ("later" if number % 2 else "now")
        half.mkdir(exist_ok=True)
        Image.new("L", (60 + number % 50, 80), number % 256).save(half / f"{number:04}.png")

    with run_fleet("batches", engine="simulated:instant") as fleet:

        def pecia(*words: object) -> Any:
            return run_pecia(*words, env=fleet.environment)

        asked = ("--batch", "night", "--metadata", "half=later", "--not-before", "1h", "--wait")
        with subprocess.Popen(
            [sys.executable, "-m", "pecia", "read", str(tmp_path / "later"), *asked],
            env=os.environ | fleet.environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as reading:
            try:
                while not fleet.query("SELECT 1 FROM jobs OFFSET %s", count // 2 - 1):
                    assert reading.poll() is None
                reading.send_signal(signal.SIGINT)
                _, said = reading.communicate(timeout=WAIT_S)
            finally:
                reading.kill()
        assert "`pecia watch --batch night`" in said
        # `python -m` ends by the signal where it came in an `exec`, as of a dataclass. Shells say 130 of both.
        assert reading.returncode in (130, -signal.SIGINT)

        assert len(pecia("read", tmp_path / "now", "--batch", "night").stdout.split()) == count // 2
        cancelled = pecia("cancel", "--batch", "night", "--metadata", "half=later")
        assert (cancelled.returncode, cancelled.stdout) == (0, f"{count // 2:,} jobs cancelled.\n")
        watched = pecia("watch", "--batch", "night")
        assert (watched.returncode, f"{count // 2:,} cancelled" in watched.stdout) == (0, True)
        assert pecia("list", "--batch", "night", "--state", "queued", "--json").stdout == ""

        exported = pecia(
            "export", "--batch", "night", "--format", "parquet", "--to", tmp_path / "out", "--json"
        )
        assert (exported.returncode, json.loads(exported.stdout)["written"]) == (1, count // 2), (
            "some were cancelled"
        )
        again = pecia("export", "--batch", "night", "--format", "parquet", "--to", tmp_path / "out", "--json")
        assert json.loads(again.stdout) == {
            "written": 0,
            "before": count,
            "empty": 0,
            "open": 0,
            "held_back": 0,
        }

    rows = parquet.read_table(sorted((tmp_path / "out").glob("*.parquet"))).to_pydict()
    assert sorted(rows["label"]) == [f"{number:04}.png" for number in range(0, count, 2)]
