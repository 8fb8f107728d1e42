"""What a look at the fleet has found, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    ok: bool
    detail: str


def show(findings: Iterable[Finding], *, as_json: bool) -> None:
    """Print them: a table for people, a line of JSON each for programs."""
    if as_json:
        for finding in findings:
            typer.echo(json.dumps(asdict(finding)))
    else:
        Console().print(_table(findings))


def _table(findings: Iterable[Finding]) -> Table:
    table = Table(box=None, show_header=False)
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[red]no[/]"
        table.add_row(mark, escape(finding.subject), escape(finding.detail))
    return table
