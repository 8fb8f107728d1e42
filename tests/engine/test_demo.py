"""`pecia demo --engine vllm`: slips read by real vLLM with 4-bit weights, every character checked."""

import os
import subprocess
import sys

import pytest

from fleets import READY_S

pytestmark = [pytest.mark.xdist_group("fleet"), pytest.mark.usefixtures("_avx512")]


def test_the_demo_reads_slips_and_says_where_one_is_misread() -> None:
    demo = subprocess.run(
        (sys.executable, "-m", "pecia", "demo", "--engine", "vllm"),
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    rows = [line.split() for line in demo.stdout.splitlines() if line.startswith("slip right")]
    assert rows
    assert all("100.0%" in row for row in rows)
    assert "slip wrong-1, line " in demo.stdout
    assert "2 of them misread and marked for review" in " ".join(demo.stdout.split())
