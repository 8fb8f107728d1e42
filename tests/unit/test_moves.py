"""States of parts and jobs, counters and events are written in one place: `pecia_schemas/moves.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pecia
import pecia_schemas
import pecia_workers

PACKAGES = [Path(package.__file__ or "").parent for package in (pecia, pecia_schemas, pecia_workers)]
_SET = r"\b(UPDATE\s+(parts|jobs)\b.*?\bSET\b|update\(\s*(PARTS|JOBS|PartRow|JobRow)\b)"
_WRITTEN = re.compile(
    rf"INSERT\s+INTO\s+job_events\b|insert\(\s*EVENTS\b"
    rf"|{_SET}(?:(?!\b(?:FROM|WHERE|RETURNING)\b).)*?\b(state|done|failed|cancelled|total)\s*=(?!=)",
    re.DOTALL,
)


def texts_of(module: Path) -> Iterator[str]:
    """Give every string of a module, with the fixed parts of those that are put together, and every statement."""
    source = module.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
        elif isinstance(node, ast.Call):
            yield ast.unparse(node)


def test_nothing_but_the_moves_writes_states_counters_or_events() -> None:
    writers = {
        module.name
        for package in PACKAGES
        for module in package.rglob("*.py")
        if any(_WRITTEN.search(text) for text in texts_of(module))
    }

    assert writers == {"moves.py"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE parts SET deaths = 0, state = 'queued' WHERE id = :id",
        "WITH due AS (SELECT 1) UPDATE jobs\n SET failed = jobs.failed + 1 FROM due",
        "INSERT INTO job_events (job_id) SELECT 1",
        "connection.execute(update(PARTS).where(PARTS.c.id == part).values(state='done'))",
    ],
)
def test_the_search_sees_every_way_to_write_them(statement: str, tmp_path: Path) -> None:
    module = tmp_path / "stray.py"
    module.write_text(statement if statement.startswith("connection") else f"TEXT = {statement!r}")

    assert any(_WRITTEN.search(text) for text in texts_of(module))


def test_other_columns_are_no_concern_of_theirs() -> None:
    assert not _WRITTEN.search("UPDATE parts SET published_at = now() FROM free WHERE parts.state = 'queued'")
