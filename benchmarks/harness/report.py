"""What a benchmark has found, told in one form: tables for people, one JSON object for `make bench`."""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.table import Table as Drawn

REPORT = "report"
"""Under which name the tables stand in the JSON; beside it stand the figures as numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures as they are shown; the first column says whose they are."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def drawn(self) -> Drawn:
        """Return it for a terminal."""
        drawn = Drawn(title=self.title or None, title_justify="left")
        for number, heading in enumerate(self.headings):
            drawn.add_column(heading, justify="right" if number else "left")
        for row in self.rows:
            drawn.add_row(*row)
        return drawn

    def markdown(self) -> str:
        """Return it for a page."""
        lines = [self.headings, ["---", *["---:"] * (len(self.headings) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one benchmark found."""

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the tables show, as numbers."""

    def tell(self, *, as_json: bool) -> None:
        """Print it."""
        if as_json:
            shown = {"tables": [asdict(table) for table in self.tables], "notes": list(self.notes)}
            print(json.dumps({**self.figures, REPORT: shown}))
            return
        console = Console()
        for table in self.tables:
            console.print(table.drawn())
        console.print(f"{platform.machine()}, {os.cpu_count()} cores", *self.notes, sep="\n", highlight=False)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return what was printed as JSON."""
        shown = told[REPORT]
        return cls(
            tables=[Table(**table) for table in shown["tables"]],
            notes=shown["notes"],
            figures={name: figure for name, figure in told.items() if name != REPORT},
        )


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return what every benchmark understands."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return made


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Return the median of the rounds and, of several, the least and the most."""
    median, least, most = (format(one, form) for one in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least} to {most})"
