"""What the fleet's logs say of an error: where it happened, not what was in hand there."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging
from pecia_schemas.settings import WorkerSettings
from pecia_workers.logs import configure_logs

configure_logs(WorkerSettings(log_format="{form}"))

def read(page):
    raise LookupError("no such font")

try:
    read("Quill" + "feather")
except LookupError:
    logging.getLogger("some.library").exception("could not read")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_librarys_error_shows_no_variable(form: str) -> None:
    script = SCRIPT.replace("{form}", form)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "could not read" in ran.stderr
    assert "LookupError" in ran.stderr
    assert "Quillfeather" not in ran.stderr
