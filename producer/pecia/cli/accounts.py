"""`pecia usage`, `audit` and `purge`: what was worked on, who read it, and what is erased for good."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pecia.cli import output, values
from pecia.cli.endings import Ending
from pecia.client import Client
from pecia.records import AuditEntry, DocumentFate, Erasure, Usage, UsageFigures

_FATES = {
    DocumentFate.SHARED: "hold documents that other jobs were given too: those stay until these are purged",
    DocumentFate.PENDING: "have documents that the payload store did not let go of yet: upkeep removes them",
}

_Jobs = Annotated[list[UUID] | None, typer.Option(metavar="ID", help="This job; may be repeated.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each line.")]


def purge(
    *,
    job: _Jobs = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only jobs submitted before: a date, or 7d for so long ago."),
    ] = None,
    metadata: values.OnlyWith = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the record: nothing of a document.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be erased.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Erase documents, results, metadata and callbacks of jobs at once and for good; running ones are cancelled.

    Example: `pecia purge --metadata patient=4711 --dry-run`
    """
    with Client() as client:
        found = client.purge(
            job, before=values.moment(before, "--before"), metadata=values.metadata(metadata), dry_run=True
        )
        if found and not dry_run:
            _confirm(found, yes=yes)
            found = client.purge([one.job_id for one in found], reason=reason)
    if as_json:
        output.json_lines(found)
        return
    typer.echo(f"{'Would erase' if dry_run else 'Erased'} {_sum(found)}.")
    for fate, sentence in _FATES.items():
        if number := sum(one.document is fate for one in found):
            typer.echo(f"{number:,} of them {sentence}.")


def _confirm(found: Sequence[Erasure], *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to confirm on: add --yes", param_hint="--yes")
    try:
        sure = typer.confirm(f"Erase {_sum(found)} for good?", err=True)
    except typer.Abort:
        sure = False
    if not sure:
        raise typer.Exit(Ending.FAILED)


def _sum(found: Sequence[Erasure]) -> str:
    results, deliveries = (sum(getattr(one, name) for one in found) for name in ("results", "deliveries"))
    return f"{len(found):,} jobs with {results:,} results and {deliveries:,} callbacks"


def audit(
    *,
    job: Annotated[UUID | None, typer.Option(metavar="ID", help="Only about this job.")] = None,
    client: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this client did.")] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Since: 30m, 2h, 7d or a date.")] = None,
    as_json: _AsJson = False,
) -> None:
    """Show who read which result, and what was erased, newest first.

    Example: `pecia audit --since 7d --json`
    """
    with Client() as reader:
        entries = reader.audit(job=job, client=client, since=values.moment(since))
        output.listed(entries, ("when", "who", "what", "job", "details"), _trail, as_json=as_json)


def _trail(entry: AuditEntry) -> Sequence[object]:
    counts = ", ".join(f"{number} {name}" for name, number in entry.counts.items() if number)
    details = "; ".join(filter(None, [counts, entry.reason]))
    return entry.at, entry.actor, entry.action, entry.job_id, details


_COLUMNS = (
    *("jobs", "parts", "pages", "segments", "reused"),
    *("prompt", "image", "cached", "output", "wasted", "saved"),
    *("engine s", "queue s p50/p95", "first token s p50/p95"),
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
        found = client.usage(since=values.moment(since), by=by)
    if as_json:
        output.json_line(found)
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
    waits = (
        f"{one.p50:.2f} / {one.p95:.2f}" if one else "-" for one in (figures.queued_s, figures.first_token_s)
    )
    return [*(f"{count:,}" for count in (*counts, *spent)), f"{figures.engine_s:,.1f}", *waits]
