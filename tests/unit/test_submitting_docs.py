"""docs/submitting.md runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pecia.testing import FakeFleet
from snippets import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "submitting.md").read_text()


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scans").mkdir()
    for number in range(2):
        Path(f"scans/{number}.pdf").write_bytes(b"%%PDF-1.7 %d" % number)
    with FakeFleet() as fleet:
        names: dict[str, Any] = {"client": fleet.client()}
        for block in blocks(PAGE, "python"):
            exec(compile(block, "docs/submitting.md", "exec"), names)  # noqa: S102  our own documentation
    refused, repeated = capsys.readouterr().out.splitlines()
    assert refused.startswith("2 The source cannot be read")
    assert repeated == "[False, False]"
    assert len(names["group"]) == 2
