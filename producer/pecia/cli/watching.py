"""`pecia watch`: jobs as they move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated
from uuid import UUID

import typer
from rich.live import Live
from rich.text import Text

from pecia.cli import output
from pecia.cli.following import pause
from pecia.client import Client
from pecia.job import AnyJob
from pecia_schemas.states import JobState

_ROWS = 40
_OPEN = (JobState.QUEUED, JobState.RUNNING)


def watch(
    ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID", help="Ids of jobs. Default: all that are open.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each change.")] = False,
) -> None:
    """Show jobs live until they are over, or Ctrl-C.

    Example: `pecia watch`
    """
    with Client() as client:
        seen = {job_id: client.job(job_id) for job_id in ids or ()}
        looks = _looks(client, seen, add_new=not ids)
        try:
            if as_json:
                _print_changes(looks)
            else:
                _show(looks)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _looks(client: Client, seen: dict[UUID, AnyJob], *, add_new: bool) -> Iterator[dict[UUID, AnyJob]]:
    """Yield the jobs as they are, again and again, until all are over."""
    while True:
        if add_new:
            for job in client.jobs(state=_OPEN, limit=_ROWS):
                seen.setdefault(job.id, job)
        client.group(job for job in seen.values() if not job.done).refresh()
        yield seen
        if all(job.done for job in seen.values()):
            return
        pause()


def _show(looks: Iterator[dict[UUID, AnyJob]]) -> None:
    console = output.console()
    with Live(console=console, auto_refresh=False) as live:
        for seen in looks:
            table = output.table(_newest(seen), console.width)
            live.update(Text.from_ansi(table), refresh=console.is_terminal)


def _print_changes(looks: Iterator[dict[UUID, AnyJob]]) -> None:
    told: dict[UUID, object] = {}
    for seen in looks:
        for job in seen.values():
            if told.get(job.id) != (now := (job.state, job.progress)):
                told[job.id] = now
                output.json_line(output.job_json(job, None))


def _newest(seen: dict[UUID, AnyJob]) -> list[AnyJob]:
    """Return what fits a screen: open jobs first, then those that ended, newest first."""
    newest = sorted(seen.values(), key=lambda job: job.id, reverse=True)
    return list(chain((job for job in newest if not job.done), (job for job in newest if job.done)))[:_ROWS]
