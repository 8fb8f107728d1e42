"""Files of a command to jobs, and what it prints of them: ids at once, or results at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from pecia.cli import endings, output
from pecia.cli.following import counted, follow
from pecia.client import Client
from pecia.errors import JobTimeoutError
from pecia.job import JobGroup
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Task

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE", help="Files, folders, quoted patterns, http, https or s3 URLs; - is standard input."
    ),
]
Priority = Annotated[Lane, typer.Option(help="Lane to wait in.")]
Key = Annotated[
    str | None, typer.Option(help="Idempotency key; with several files the n-th gets KEY/n, from 0.")
]
Metadata = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept with the job.")]
NoticeUrl = Annotated[str | None, typer.Option("--webhook", help="URL that is told when a job is over.")]
NotBefore = Annotated[
    str | None,
    typer.Option("--not-before", metavar="WHEN", help="Start then: 30m, 2h, 7d from now, or a date."),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="WHEN", help="Give up what is not finished then: 30m, 2h, or a date."),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Use no earlier result, and leave none for later jobs.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait, then print what was made of it, piece by piece.")]
Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds to wait; the jobs go on.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each file.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a caller says about all jobs of a command."""

    priority: Lane
    metadata: dict[str, str]
    webhook: str | None
    key: str | None
    not_before: datetime | timedelta | None
    expires: datetime | timedelta | None


def run(
    tasks: Iterable[Task[Any]],
    names: Sequence[str],
    told: Told,
    *,
    wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Submit a task for each name; print the jobs' ids, or wait and print their results."""
    with Client() as client:
        group = _submit(client, counted(tasks, len(names), "submitted"), len(names), told)
        if wait:
            _wait(group, names, timeout, as_json=as_json)
        else:
            _receipts(group, names, as_json=as_json)


def _submit(client: Client, tasks: Iterable[Task[Any]], count: int, told: Told) -> JobGroup[Any]:
    if told.key is not None and count == 1:
        (task,) = tasks
        job = client.submit(
            task,
            priority=told.priority,
            idempotency_key=told.key,
            metadata=told.metadata,
            webhook=told.webhook,
            not_before=told.not_before,
            expires=told.expires,
        )
        return client.group([job])
    return client.submit_many(
        tasks,
        priority=told.priority,
        idempotency_prefix=told.key,
        metadata=told.metadata,
        webhook=told.webhook,
        not_before=told.not_before,
        expires=told.expires,
    )


def _receipts(group: JobGroup[Any], names: Sequence[str], *, as_json: bool) -> None:
    for job, name in zip(group, names, strict=True):
        if as_json:
            output.json_line(output.result_json(job, name))
        else:
            typer.echo(job.id)


def _wait(group: JobGroup[Any], names: Sequence[str], timeout: float | None, *, as_json: bool) -> None:
    """Print every result, finished or not, before a timeout ends the command."""
    late: JobTimeoutError | None = None
    try:
        follow(group, timeout)
    except JobTimeoutError as error:
        late = error
    for job, name in zip(group, names, strict=True):
        if as_json:
            output.json_line(output.result_json(job, name))
        else:
            output.result_text(job, name)
    if late is not None:
        raise late
    raise typer.Exit(endings.of_results(group))
