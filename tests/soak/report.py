"""What a soak tells in the end: a table of the faults, the promises, the figures."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.soak.auditor import Finding
from tests.soak.director import Injection


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    fault: str
    injected: int
    skipped: str
    recovered_s: tuple[float, ...]
    limit_s: float
    late: int
    redone: int
    """Parts that ran when it struck and were begun again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    seed: int
    seconds: float
    figures: dict[str, int]
    """How much was done; `redone` are attempts beyond the first."""
    rows: Sequence[Row]
    findings: Sequence[Finding]

    @property
    def kept(self) -> bool:
        """Whether all promises held."""
        return all(finding.kept for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return it as one object, the seed first."""
        return {
            "seed": self.seed,
            "kept": self.kept,
            "seconds": round(self.seconds, 1),
            "figures": self.figures,
            "faults": [asdict(row) for row in self.rows],
            "promises": [
                {"promise": one.promise, "kept": one.kept, "detail": one.detail} for one in self.findings
            ],
        }

    def print(self, console: Console) -> None:
        console.print(self._faults(), "", self._promises(), "", self._summary())

    def _faults(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("fault", no_wrap=True)
        for title in ("times", "recovered in", "at most", "limit", "redone"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def _promises(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("promise", overflow="fold")
        table.add_column("")
        for one in self.findings:
            table.add_row(one.promise, "[green]kept[/]" if one.kept else "[red]BROKEN[/]")
            if one.detail:
                table.add_row(f"  {one.detail}")
        return table

    def _summary(self) -> str:
        return (
            "{jobs:,} jobs, {pages:,} pages in {seconds:,.0f} s; {redone:,} attempts beyond the first;"
            " {refused_submits:,} submits refused and repeated; {callbacks:,} callbacks,"
            " {repeated_callbacks:,} of them twice, {refused_callbacks:,} refused at first."
        ).format(seconds=self.seconds, **self.figures)


def _cells(row: Row) -> tuple[str, ...]:
    if row.skipped:
        return f"{row.fault}: skipped, {row.skipped}", "", "", "", "", ""
    if not row.recovered_s:
        return row.fault, str(row.injected), "[red]never[/]", "", f"{row.limit_s:.0f} s", str(row.redone)
    late = "[red]late[/] " if row.late else ""
    median, most = statistics.median(row.recovered_s), max(row.recovered_s)
    return (
        row.fault,
        str(row.injected),
        f"{median:.1f} s",
        f"{late}{most:.1f} s",
        f"{row.limit_s:.0f} s",
        str(row.redone),
    )


def rows_of(injections: Sequence[Injection], redone: Sequence[int], slack: timedelta) -> list[Row]:
    """Return a row for each kind of fault, in the order of their names; `redone` belongs to the injections in order."""
    kinds: defaultdict[str, list[tuple[Injection, int]]] = defaultdict(list)
    for injection, again in zip(injections, redone, strict=True):
        kinds[injection.name].append((injection, again))
    return [_row(name, kinds[name], slack) for name in sorted(kinds)]


def _row(name: str, struck: Sequence[tuple[Injection, int]], slack: timedelta) -> Row:
    injections = [injection for injection, _ in struck]
    blows = [injection.blow for injection in injections if injection.blow]
    return Row(
        fault=name,
        injected=len(blows),
        skipped=next((one.skipped for one in injections if one.skipped), ""),
        recovered_s=tuple(round(one.recovered_s, 2) for one in injections if one.recovered_s is not None),
        limit_s=blows[0].limit.total_seconds() if blows else 0.0,
        late=sum(one.is_late(slack) for one in injections),
        redone=sum(again for _, again in struck),
    )
