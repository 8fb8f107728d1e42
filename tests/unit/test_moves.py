"""Once a job is there, states, counters and events are written in one place: `pecia_schemas/moves.py`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


def test_nothing_but_creation_and_the_moves_writes_states_counters_or_events() -> None:
    writers = {
        module.name
        for package in PACKAGES
        for module in package.rglob("*.py")
        if any(_WRITTEN.search(text) for text in texts_of(module))
    }
    assert writers == {"submission.py", "moves.py"}
