"""docs/priorities.md runs as it stands."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pecia import Lane
from pecia.testing import FakeFleet
from snippets import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "priorities.md").read_text()


def test_jobs_land_in_the_lanes_and_at_the_times_that_the_page_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("emergency.pdf", "archive.pdf", "triage.pdf"):
        Path(name).write_bytes(b"%PDF-1.7 " + name.encode())
    with FakeFleet() as fleet:
        client = fleet.client()
        names: dict[str, Any] = {"client": client, "scans": [Path("archive.pdf")]}
        for block in blocks(PAGE, "python"):
            exec(compile(block, "docs/priorities.md", "exec"), names)  # noqa: S102  our own documentation
        lanes = [job.lane for job in client.jobs()]
    assert lanes == [Lane.URGENT, Lane.BULK, Lane.BULK, Lane.URGENT]
    assert names["tonight"] > datetime.now(UTC)
