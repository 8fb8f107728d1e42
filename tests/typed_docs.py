"""Runs mypy and pyright on the Python of README and docs: what a reader copies passes in a project that is strict.

`python tests/typed_docs.py`, or `make types`. The blocks of a page are one program, as they build on each other; one
that opens a client of its own is a program by itself. Each stands on the lines that it has in its page.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PAGES = (
    _ROOT / "README.md",
    *(page for page in sorted((_ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"),
)
"""Without the reference, whose blocks are signatures."""
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_OPENS_A_CLIENT = re.compile(r"\bwith (Async)?Client\(")
_GIVEN = """\
from datetime import timedelta as timedelta
from pathlib import Path

from pecia import Client, ReadDocument as ReadDocument

client = Client()
scans = [Path("scan.png")]
body, headers, secret = b"", {"webhook-id": ""}, ""
"""
"""What pages take as given, in their words."""


def main() -> int:
    """Return 1 if anything of it does not pass."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "given.py").write_text(_GIVEN)
        for page in _PAGES:
            name = "_".join(page.relative_to(_ROOT).with_suffix("").parts)
            for number, program in enumerate(_programs(page.read_text())):
                (folder / f"{name}_{number}.py").write_text(program)
        return max(_mypy(folder), _pyright(folder))


def _programs(page: str) -> Iterator[str]:
    """Yield the programs of a page."""
    joined = ""
    for block in _BLOCK.finditer(page):
        above = page.count("\n", 0, block.start(1))
        if _OPENS_A_CLIENT.search(block[1]):
            yield _at(above, block[1])
        else:
            joined = _at(above, block[1], joined or "from given import *\n")
    if joined:
        yield joined


def _at(above: int, block: str, before: str = "") -> str:
    """Return a program with the block below so many lines."""
    return before + "\n" * (above - before.count("\n")) + block


def _mypy(folder: Path) -> int:
    settings = str(_ROOT / "pyproject.toml")
    command = [sys.executable, "-m", "mypy", "--config-file", settings, str(folder)]
    return subprocess.run(command, cwd=folder, check=False).returncode


def _pyright(folder: Path) -> int:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(folder)]
    return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
