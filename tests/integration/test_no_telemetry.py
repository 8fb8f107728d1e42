"""Libraries that would report home from a hospital's network are told not to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limits import WAIT_S

pytestmark = pytest.mark.gate

LOAD_EVERY_MODEL = """
from pecia_workers.engines.cpu import rapidocr
from pecia_workers.media.orientation import line_classifier

rapidocr.load_model()
assert line_classifier() is not None
"""


def test_loading_the_models_leaves_no_device_id_and_no_reports_to_send(tmp_path: Path) -> None:
    places = {"HOME": tmp_path, "TMPDIR": tmp_path, "XDG_CACHE_HOME": tmp_path, "XDG_DATA_HOME": tmp_path}
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")
    }

    subprocess.run(
        [sys.executable, "-c", LOAD_EVERY_MODEL],
        env=inherited | {name: str(path) for name, path in places.items()},
        timeout=WAIT_S,
        check=True,
    )

    assert list(tmp_path.iterdir()) == []
