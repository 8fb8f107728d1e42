"""A short soak: a fleet at work is broken in the ways that lose work elsewhere, and keeps its promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]
FAULTS = (
    *("kill-engine", "flush-redis", "silence-postgres", "pause-engine", "kill-webhooks"),
    *("fail-over-redis", "fail-over-redis-empty"),
)


def test_a_fleet_that_is_broken_again_and_again_keeps_its_promises() -> None:
    wanted = [word for fault in FAULTS for word in ("--fault", fault)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.soak", "--json", "--seed", "4", "--pages", "100", "--lease", "5"),
            *("--strikes", str(len(FAULTS)), "--slack", "30", *wanted),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=WAIT_S,  # beyond its own patience: it says itself what did not come to rest
        check=False,
    )
    report = json.loads(done.stdout) if done.stdout else {"promises": [], "faults": []}
    assert [promise for promise in report["promises"] if not promise["kept"]] == []
    assert len(report["faults"]) == len(FAULTS)
    assert done.returncode == 0
