"""What several tests of media want."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.pages import Limits


@pytest.fixture
def limits() -> Limits:
    return Limits.of(WorkerSettings())


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes a file whose name is wrong for most, and must not be told."""
    numbers = count()

    def written(content: bytes) -> Path:
        path = tmp_path / f"letter {next(numbers)} of a patient.pdf"
        path.write_bytes(content)
        return path

    return written
