"""What users name, of 22 November 2026 (398eae3), is still there, or CHANGELOG.md says that it is not.

`surface.json` is what `surface` returned of that commit. The pages that it reads are generated, or compared with the
code by tests of their own.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THEN = json.loads(Path(__file__).with_name("surface.json").read_text())


def found(path: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (ROOT / path).read_text(), flags=re.MULTILINE))


def options() -> set[str]:
    """Return the options of every verb, as `read --wait`."""
    _, *sections = re.split(r"^#+ `pecia ([^`]+)`", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)
    return {
        f"{verb} {option}"
        for verb, text in zip(sections[::2], sections[1::2], strict=True)
        for option in re.findall(r"^\* `(?:-\w, )?(--[\w-]+)", text, flags=re.MULTILINE)
    }


def surface() -> dict[str, set[str]]:
    """Return what users name, by its kind."""
    schemas = json.loads((ROOT / "docs/pecia.schema.json").read_text())["$defs"]
    return {
        "names": found("producer/pecia/__init__.pyi", r"(\w+) as \1\b"),
        "verbs": found("docs/cli.md", r"^#+ `pecia ([^`]+)`"),
        "options": options(),
        "settings": found("docs/settings.md", r"^\| `(PECIA_\w+)`"),
        "metrics": found("docs/metrics.md", r"`(pecia_\w+)[`{]"),
        "failure codes": found("docs/failure-codes.md", r"^\| `(\w+)`"),
        "schema": {
            f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", ())
        },
        "tables": found("schemas/pecia_schemas/tables.py", r'__tablename__ = "(\w+)"'),
    }


@pytest.mark.parametrize("kind", THEN)
def test_what_is_gone_stands_in_the_changelog(kind: str) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    now = surface()[kind]
    assert len(now) >= len(THEN[kind]) // 2, "the pattern finds nothing any more"
    assert [name for name in THEN[kind] if name not in now and f"`{name.split()[-1]}`" not in changes] == []
