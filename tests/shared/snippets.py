"""What a page of the documentation says can be run, and what it says comes out."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAP = "[…]"
"""In what a command prints: whatever comes here."""


def fenced(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    return [block for named, block in fenced(page) if named == language]


def commands(terminal: str) -> list[tuple[str, str]]:
    """Return the commands of a `console` block, and what each is shown to print."""
    return re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |\Z)", terminal, re.DOTALL | re.MULTILINE)


def agrees(printed: str, shown: str) -> bool:
    """Return whether a command printed what the page shows of it."""
    pattern = ".*".join(re.escape(piece.strip("\n")) for piece in shown.split(GAP))
    return re.match(pattern, printed, re.DOTALL) is not None
