"""`pecia dead`: parts that the fleet has given up, and another try for them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from pecia.cli import output, values
from pecia.cli.output import fitting
from pecia.client import Client
from pecia.records import DeadPart
from pecia_schemas.failures import FailureCode

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each part.")]
Code = Annotated[FailureCode | None, typer.Option(help="Only those that failed with it, such as poisoned.")]
OfJob = Annotated[UUID | None, typer.Option("--job", metavar="ID", help="Only parts of this job.")]
Since = Annotated[str | None, typer.Option(metavar="WHEN", help="Failed since: 30m, 2h, 7d or a date.")]

app = typer.Typer(
    no_args_is_help=True,
    help="Parts that the fleet has given up though their documents may be fine: see them, try them again.",
)


@app.command("list")
def list_dead(
    *,
    job: OfJob = None,
    code: Code = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show parts that took their workers down, or failed in their last attempt; the latest first.

    Example: `pecia dead list --code poisoned`
    """
    with Client() as client:
        parts = client.dead_parts(job=job, code=code, since=values.moment(since), limit=limit)
    if as_json:
        output.json_lines(parts, exclude={"events"})
    else:
        typer.echo(_table(parts))


@app.command("show")
def show(
    part_id: Annotated[UUID, typer.Argument(metavar="PART", help="Id of a part, in full.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show one of them: every attempt, the worker that made it, and how it ended.

    Example: `pecia dead show 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        part = client.dead_part(part_id)
    if as_json:
        output.json_line(part.model_dump(mode="json"))
        return
    typer.echo(f"{part.failure.code}: {part.failure.message}")
    typer.echo(_table([part]))
    history = [
        (
            event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f"),
            "" if event.attempt is None else str(event.attempt),
            event.state,
            event.reason or "",
            event.actor,
        )
        for event in part.events
    ]
    output.console().print(output.grid(("at", "attempt", "state", "why", "who"), history))


@app.command("retry")
def retry(
    part_ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="[PART]...", help="Ids of parts, in full.")
    ] = None,
    *,
    everything: Annotated[
        bool,
        typer.Option("--all", help="All that `list` shows with the same options, of jobs that are over."),
    ] = False,
    job: OfJob = None,
    code: Code = None,
    since: Since = None,
) -> None:
    """Run parts again, with all their attempts before them. Their jobs are reopened; what was read stays.

    A job that is still at work is refused: wait until it is over.

    Example: `pecia dead retry --all --code engine_error --since 2h`
    """
    if bool(part_ids) is everything:
        raise typer.BadParameter("name parts, or say --all", param_hint="PART")
    with Client() as client:
        found = client.dead_parts(job=job, code=code, since=values.moment(since)) if everything else ()
        chosen = part_ids or [part.id for part in found if part.job_state.is_terminal]
        for reopened in client.retry_dead(chosen):
            typer.echo(f"{reopened.id} {reopened.state} {output.progress_text(reopened.progress)}")


def _table(parts: list[DeadPart]) -> str:
    return fitting(
        ("part", "job", "kind", "number", "failed", "attempts", "deaths", "worker", "why"),
        [
            (
                str(part.id),
                str(part.job_id),
                part.kind,
                f"{part.stage} {part.number}",
                output.when(part.failed_at),
                str(part.attempts),
                str(part.deaths),
                part.worker or "",
                part.failure.code,
            )
            for part in parts
        ],
        spare=("kind", "worker", "failed", "deaths", "attempts", "job"),
    )
