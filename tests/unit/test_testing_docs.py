"""docs/testing.md runs as it stands, the test in it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pecia.testing import FakeFleet
from snippets import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_page_runs_from_top_to_bottom() -> None:
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, "docs/testing.md", "exec"), names)  # noqa: S102  our own documentation
    with FakeFleet() as fleet:
        names["test_a_scan_is_read_once"](fleet)
