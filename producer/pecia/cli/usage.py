"""`pecia usage`: what the fleet has worked on, and what it took."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pecia.cli import output, values
from pecia.client import Client
from pecia.records import Percentiles, Usage, UsageFigures

_COLUMNS = (
    "jobs",
    "parts",
    "pages",
    "segments",
    "reused",
    "prompt",
    "image",
    "cached",
    "output",
    "wasted",
    "saved",
    "engine s",
    "queue s p50/p95",
    "first token s p50/p95",
)


def usage(
    *,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Parts that ended since: 30m, 2h, 7d or a date.")
    ] = "7d",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="One row each: document_type, kind, lane, engine, tenant or metadata:KEY."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what was worked on, in tokens and seconds, attempts that were thrown away included.

    Example: `pecia usage --since 7d --by document_type`
    """
    with Client() as client:
        found = client.usage(since=values.since(since), by=by)
    if as_json:
        output.json_line(found.model_dump(mode="json"))
    else:
        output.console().print(_table(found))


def _table(usage: Usage) -> Table:
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column(usage.by or "", overflow="fold")
    for heading in _COLUMNS:
        made.add_column(heading, justify="right")
    for group in usage.groups:
        made.add_row("-" if group.name is None else group.name, *_cells(group))
    if usage.groups:
        made.add_section()
    made.add_row("all", *_cells(usage.total))
    return made


def _cells(figures: UsageFigures) -> list[str]:
    tokens = figures.tokens
    counts = (figures.jobs, figures.parts, figures.pages, figures.segments, figures.reused)
    spent = (tokens.prompt, tokens.image, tokens.cached, tokens.output, tokens.wasted, figures.saved)
    return [
        *(f"{count:,}" for count in (*counts, *spent)),
        f"{figures.engine_s:,.1f}",
        _seconds(figures.queued_s),
        _seconds(figures.first_token_s),
    ]


def _seconds(percentiles: Percentiles | None) -> str:
    return f"{percentiles.p50:.2f} / {percentiles.p95:.2f}" if percentiles else "-"
