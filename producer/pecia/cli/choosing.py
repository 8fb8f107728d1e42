"""Which jobs a verb is for: those of some ids, or all of a batch, in a state, with a verdict or metadata."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pecia.asking import Which
from pecia.cli import values
from pecia.client import Client
from pecia.job import JobGroup
from pecia_schemas.results import Verdict
from pecia_schemas.states import JobState

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of jobs, or how they begin; - reads them from standard input."),
]
InBatch = Annotated[str | None, typer.Option("--batch", metavar="NAME|ID", help="Only jobs of this batch.")]
States = Annotated[
    list[JobState] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")
]
Verdicts = Annotated[
    list[Verdict] | None,
    typer.Option("--verdict", help="Only jobs with a page of this verdict; may be repeated."),
]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Only jobs with it.")
]

OPEN = [state for state in JobState if not state.is_terminal]
UNSUCCESSFUL = [state for state in JobState if state.is_terminal and state is not JobState.SUCCEEDED]


def which(
    batch: str | None, state: list[JobState] | None, verdict: list[Verdict] | None, metadata: list[str] | None
) -> Which:
    """Return what the options say, empty if they say nothing."""
    asked: Which = {}
    if batch is not None:
        asked["batch"] = batch
    if state:
        asked["state"] = state
    if verdict:
        asked["verdict"] = verdict
    if metadata:
        asked["metadata"] = values.metadata(metadata)
    return asked


def check(ids: list[str] | None, asked: Which) -> None:
    """Raise `typer.BadParameter` if jobs are named in both ways, or in none."""
    if bool(ids) == bool(asked):
        raise typer.BadParameter(
            "name jobs by their ids, or by --batch, --state, --verdict and --metadata", param_hint="ID"
        )


def chosen(client: Client, ids: list[str] | None, asked: Which) -> JobGroup[Any]:
    """Return the jobs that are meant, in the order in which they were named or submitted."""
    if ids:
        return client.group(client.job(job_id) for job_id in values.ids(ids))
    return client.group(list(client.jobs(**asked, page_size=500))[::-1])


def way_back(ids: list[str] | None, asked: Which) -> str:
    """Return the command that goes on following the jobs."""
    if (batch := asked.get("batch")) is not None:
        return f"pecia watch --batch {batch}"
    return f"pecia watch {' '.join(ids)}" if ids and "-" not in ids else "pecia watch"
