"""Many processes that submit and read at once, as the benchmark has them do it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command import ran

pytestmark = pytest.mark.gate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_submitters.py"


def test_nobody_who_waits_is_forgotten_and_no_connection_is_kept(fleet: Any) -> None:
    size = ("--processes", "4", "--tasks", "30")
    done = ran(sys.executable, SCRIPT, "--this-fleet", "--json", *size, env=fleet.environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["jobs"], told["lost"]) == (120, 0)
    assert 0 < told["postgres_most"] <= 4 * 15
    assert told["redis_most"] > 0
    assert (told["postgres_after"], told["redis_after"]) == (0, 0)
