"""What a page of the documentation says can be run, and what it says comes out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAP = "[…]"
"""In what a command prints: whatever comes here."""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page's terminals, and what each is shown to print."""
    for block in blocks(page, "console"):
        yield from re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |\Z)", block, re.DOTALL | re.MULTILINE)


def agrees(printed: str, shown: str) -> bool:
    """Return whether a command printed what the page shows of it."""
    pattern = ".*".join(re.escape(piece.strip("\n")) for piece in shown.split(GAP))
    return re.match(pattern, printed, re.DOTALL) is not None
