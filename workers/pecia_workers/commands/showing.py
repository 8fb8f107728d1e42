"""What commands show: findings, tables as narrow as they can be read, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

FAILED, USAGE, UNAVAILABLE = 1, 2, 4
"""Exit codes."""


def refused(why: str | Exception, code: int) -> typer.Exit:
    """Say why a command ends; return what ends it."""
    typer.echo(str(why), err=True)
    return typer.Exit(code)


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
        table = Table(box=None, show_header=False)
        for finding in findings:
            mark = "[green]ok[/]" if finding.ok else "[red]no[/]"
            table.add_row(mark, escape(finding.subject), escape(finding.detail))
        Console().print(table)


def described(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names and what is to say of each, one below the other."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"[bold]{name}[/]", value)
    return table


def aligned(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows that have the same columns; those that are empty throughout are left out.

    No figure is cut, however narrow the screen; words of the head go below each other.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in columns:
        widest = max(len(row[name]) for row in rows)
        left = rows[0][name].isalpha()
        table.add_column(name.strip(), justify="left" if left else "right", min_width=widest)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def drawing_or_exit() -> None:
    """Exit 4 with what to install if nothing here draws."""
    if find_spec("matplotlib") is None:
        raise refused("Nothing here draws: pip install 'pecia[plot]'.", UNAVAILABLE)
