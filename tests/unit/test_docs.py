"""What is generated from the code is committed as the code has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pecia_schemas.export import pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "content"), list(pages()), ids=[name for name, _ in pages()])
def test_a_generated_page_is_current(name: str, content: str) -> None:
    assert (DOCS / name).read_text() == content, "run `make docs`"
