"""`pecia status`, `wait`, `cancel`, `retry` and `list`: jobs by id, or all of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.cli.values import InBatch, Metadata, States, Timeout, Verdicts, which
from pecia.client import Client
from pecia.errors import JobNotFoundError, JobTimeoutError, RetryRefusedError
from pecia.job import Job, JobGroup
from pecia_schemas.results import Verdict
from pecia_schemas.states import is_whole

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Ids of jobs, or how they begin; - reads them from standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each job.")]


def status(ids: Ids, *, as_json: AsJson = False) -> None:
    """Show where jobs are.

    The id of a part, from Flower or a log, shows its job. Example: `pecia status 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        _show(client.group(_of_job_or_part(client, one) for one in values.ids(ids)), as_json=as_json)


def wait(
    ids: values.Ids = None,
    *,
    batch: InBatch = None,
    state: States = None,
    verdict: Verdicts = None,
    metadata: Metadata = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Wait until jobs are over. Exits with 0 only if every one of them succeeded whole.

    Example: `pecia wait 0190b3c8-7e1a-7c55 --timeout 60`, `pecia wait --batch ward-7`
    """
    from pecia.cli.watching import follow  # noqa: PLC0415  brings a bar of progress, which no other verb here has

    asked = which(batch, state, verdict, metadata)
    values.check(ids, asked)
    with endings.going_on(values.way_back(ids, asked)), Client() as client:
        group = values.chosen(client, ids, asked)
        try:
            follow(group, timeout)
        except JobTimeoutError:
            _show(group, as_json=as_json)
            raise
        _show(group, as_json=as_json)
    raise typer.Exit(endings.of_states(job.state for job in group))


def cancel(
    ids: values.Ids = None,
    *,
    batch: InBatch = None,
    state: States = None,
    verdict: Verdicts = None,
    metadata: Metadata = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the jobs' events.")] = None,
    as_json: AsJson = False,
) -> None:
    """End jobs now. Those that are over stay as they are.

    Example: `pecia cancel 0190b3c8-7e1a-7c55 --reason "wrong file"`, `pecia cancel --batch ward-7 --state queued`
    """
    asked = which(batch, state, verdict, metadata)
    values.check(ids, asked)
    with Client() as client:
        if asked:
            asked.setdefault("state", values.OPEN)
            group = values.chosen(client, None, asked)
            ended = group.cancel(reason=reason)
            if as_json:
                _show(group.refresh(), as_json=True)
            else:
                typer.echo(f"{ended:,} jobs cancelled.")
            return
        for job in values.chosen(client, ids, asked):
            ended = job.cancel(reason=reason)
            if as_json:
                output.json_line(output.job_json(job, None))
            else:
                typer.echo(f"{job.id} {job.state if ended else f'was {job.state} already'}")


def retry(
    ids: values.Ids = None,
    *,
    batch: InBatch = None,
    state: States = None,
    verdict: Verdicts = None,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Run again what failed or was cancelled in jobs that are over. What was read stays read.

    Example: `pecia retry 0190b3c8-7e1a-7c55`, `pecia retry --batch ward-7 --state failed`
    """
    asked = which(batch, state, verdict, metadata)
    values.check(ids, asked)
    if asked and "state" not in asked:
        asked["state"] = values.UNSUCCESSFUL
    with Client() as client:
        reopened, ending = [], Ending.DONE
        for job in values.chosen(client, ids, asked):
            try:
                reopened.append(job.retry())
            except RetryRefusedError as error:
                endings.complain(str(error))
                ending = max(ending, endings.of(error))
        if reopened:
            _show(client.group(reopened), as_json=as_json)
    raise typer.Exit(ending)


def list_jobs(
    *,
    batch: InBatch = None,
    state: States = None,
    verdict: Annotated[
        list[Verdict] | None,
        typer.Option(help="Show pages that were read with this verdict instead; may be repeated."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind of work, such as document.read.")] = None,
    metadata: Metadata = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Submitted since: 30m, 2h, 7d or a date.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show jobs, newest first, or pages that a person should look at.

    Example: `pecia list --batch ward-7 --state failed`, `pecia list --verdict incomplete --verdict review`
    """
    asked = which(batch, state, verdict, metadata)
    asked["since"], asked["kind"] = values.moment(since), kind
    with Client() as client:
        if verdict:
            output.pages(client.pages(limit=limit, **asked), as_json=as_json)
            return
        _show(client.group(client.jobs(limit=limit, **asked)), as_json=as_json)


def _of_job_or_part(client: Client, identifier: str) -> Job[Any]:
    try:
        return client.job(identifier)
    except JobNotFoundError:
        if is_whole(identifier) and (found := next(iter(client.jobs(part=identifier)), None)):
            return found
        raise


def _show(group: JobGroup[Any], *, as_json: bool) -> None:
    hints = group.hints()
    if as_json:
        for job in group:
            output.json_line(output.job_json(job, hints.get(job.id)))
        return
    typer.echo(output.table(group))
    for job_id, hint in hints.items():
        typer.echo(f"{job_id} waiting: {hint}")
