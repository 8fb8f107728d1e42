"""The runbook of `compose/`, and its entries for alerts: what they have people type."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.shared.snippets import blocks

RUNBOOK = Path(__file__).parents[2] / "compose" / "README.md"
ALERTS = RUNBOOK.parents[1] / "docs" / "alerts.md"

_COMPOSE = ["docker", "compose"]


@dataclass(frozen=True)
class Typed:
    """One command, and what it reads from and writes to."""

    words: tuple[str, ...]
    line: str

    @property
    def compose(self) -> tuple[str, ...]:
        """What Docker Compose is told; empty if it is not asked."""
        return self.words[2:] if list(self.words[:2]) == _COMPOSE else ()

    @property
    def service(self) -> str | None:
        """In which service a command runs."""
        if self.compose[:1] not in (("exec",), ("run",)):
            return None
        return next(word for word in self._after_options())

    @property
    def inside(self) -> tuple[str, ...]:
        """What runs in that service, with its program."""
        rest = tuple(self._after_options())[1:]
        if "--entrypoint" in self.compose:
            return (self.compose[self.compose.index("--entrypoint") + 1], *rest)
        return rest if self.compose[0] == "exec" else ("pecia", *rest)

    @property
    def pecia(self) -> tuple[str, ...]:
        """The arguments of `pecia`; empty if it is not asked."""
        words = self.inside if self.service else self.words
        return words[1:] if words[:1] == ("pecia",) else ()

    def _after_options(self) -> Iterator[str]:
        words = iter(self.compose[1:])
        for word in words:
            if word == "--entrypoint":
                next(words)
            elif not word.startswith("-"):
                yield word
                break
        yield from words


def typed(file: Path = RUNBOOK) -> list[Typed]:
    """Return every command of a page: lines of its blocks, and what stands in its text."""
    page = file.read_text()
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`((?:pecia|docker compose) [^`]+)`", prose)
    return [_typed(line) for line in lines if line.strip() and not re.match(r"\s*(#|[A-Z_]+=)", line)]


def _typed(line: str) -> Typed:
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in ("<", ">")]
    return Typed(tuple(words[: min(ends, default=len(words))]), line)
