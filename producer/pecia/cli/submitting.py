"""Files of a command to jobs, and what it prints of them: ids at once, or results at the end."""

from __future__ import annotations

import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict

import typer

from pecia import asking
from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.cli.results import Delivery, deliver
from pecia.cli.values import Input
from pecia.cli.watching import counted, follow
from pecia.client import Client
from pecia.configuration import from_environment
from pecia.errors import JobTimeoutError, QueueFullError, SubmitError, SubmitManyError, UnavailableError
from pecia.job import AnyJob, JobGroup
from pecia.submission import Submission
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Task
from pecia_schemas.tracing import exported

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
InBatch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="NAME",
        help="Name of the batch that the jobs are put into; one that is there is added to. Default for several files: "
        "a new one.",
    ),
]
Block = Annotated[bool, typer.Option("--block", help="Wait while the lane is full, instead of giving up.")]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Use no earlier result, and leave none for later jobs.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait, then print what was made of it, piece by piece.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each file.")]


class Asked(TypedDict):
    """What a client is asked beside the tasks, by its own keywords."""

    priority: Lane
    metadata: dict[str, str]
    webhook: str | None
    not_before: datetime | timedelta | None
    expires: datetime | timedelta | None
    block: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller says about all jobs of a command."""

    key: str | None
    batch: str | None
    asked: Asked


def told(
    *,
    batch: str | None,
    priority: Lane,
    key: str | None,
    metadata: list[str] | None,
    webhook: str | None,
    not_before: str | None,
    expires: str | None,
    block: bool,
) -> Told:
    """Return what the options of a command say. Raises `typer.BadParameter`."""
    asked = Asked(
        priority=priority,
        metadata=values.metadata(metadata),
        webhook=webhook,
        not_before=values.moment(not_before, "--not-before"),
        expires=values.moment(expires, "--expires"),
        block=block,
    )
    return Told(key, asking.checked_batch(batch), asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a command is to print or to write once the jobs are submitted."""

    wait: bool
    timeout: float | None
    as_json: bool
    delivery: Delivery

    def check(self, kind: str, count: int) -> None:
        """Raise `typer.BadParameter` or `InvalidFormatError` if so many jobs of a kind cannot end like this."""
        if self.delivery.is_plain:
            return
        if not self.wait:
            raise typer.BadParameter(
                "results are there after --wait: add it", param_hint="--format, --output"
            )
        if self.as_json:
            raise typer.BadParameter("say --format json instead, or leave out --output", param_hint="--json")
        self.delivery.check({kind}, count)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The jobs there are now, and what their files are called; files that were refused are none of them."""

    group: JobGroup[Any]
    names: Sequence[str]
    ending: Ending


def run(tasks: Iterable[Task[Any]], found: Sequence[Input], told: Told, wanted: Wanted) -> None:
    """Submit a task for each input; print the jobs' ids, or wait and print or write their results."""
    settings = from_environment()
    names = [one.name for one in found]
    if told.batch is None and len(found) > 1:
        told = replace(told, batch=new_name("batch"))
    labelled = (Submission(task, label=one.label) for task, one in zip(tasks, found, strict=True))
    with (
        endings.going_on(f"pecia watch --batch {told.batch}" if told.batch else "pecia watch"),
        warnings.catch_warnings(),
        Client(settings=settings) as client,
        exported(settings, "pecia-client"),
    ):
        warnings.showwarning = lambda message, *_, **__: endings.complain(str(message))
        submitted = _submitted(client, counted(labelled, len(names), "submitted"), names, told, wanted)
        if told.batch and sys.stderr.isatty():
            endings.complain(f"batch {told.batch}, {len(submitted.group):,} jobs")
        if wanted.wait:
            ending = _wait(submitted, wanted)
        else:
            _print(submitted, wanted, lambda job, _: typer.echo(job.id))
            ending = Ending.DONE
    raise typer.Exit(max(submitted.ending, ending))


def _submitted(
    client: Client, tasks: Iterable[Submission[Any]], names: Sequence[str], told: Told, wanted: Wanted
) -> Submitted:
    """Submit what can be submitted, and say what is wrong with the others; if it breaks off, what was accepted."""
    try:
        return Submitted(_submit(client, tasks, len(names), told), names, Ending.DONE)
    except SubmitManyError as error:
        _complain(error.failures, names)
        accepted = [name for number, name in enumerate(names) if number not in error.failures]
        return Submitted(client.group(error.accepted), accepted, Ending.USAGE)
    except (UnavailableError, QueueFullError) as error:
        _complain(error.failures, names)
        for job in error.accepted or ():
            if wanted.as_json:
                output.json_line(output.job_json(job, None))
            else:
                typer.echo(job.id)
        raise


def _complain(failures: Mapping[int, SubmitError], names: Sequence[str]) -> None:
    for number, why in failures.items():
        endings.complain(f"{names[number]}: {why}")


def _submit(client: Client, tasks: Iterable[Submission[Any]], count: int, told: Told) -> JobGroup[Any]:
    if told.batch is None and count == 1:
        (one,) = tasks
        return client.group(
            [client.submit(one.task, label=one.label, idempotency_key=told.key, **told.asked)]
        )
    return client.submit_many(tasks, batch=told.batch, idempotency_prefix=told.key, **told.asked)


def new_name(verb: str) -> str:
    """Return a name for a batch that its caller gave none: known before anything is submitted."""
    return f"{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _print(submitted: Submitted, wanted: Wanted, as_text: Callable[[AnyJob, str], None]) -> None:
    for job, name in zip(submitted.group, submitted.names, strict=True):
        if wanted.as_json:
            output.json_line(output.result_json(job, name))
        else:
            as_text(job, name)


def _wait(submitted: Submitted, wanted: Wanted) -> Ending:
    """Hand over every result, finished or not, before a timeout ends the command."""
    late: JobTimeoutError | None = None
    try:
        follow(submitted.group, wanted.timeout)
    except JobTimeoutError as error:
        late = error
    if wanted.delivery.is_plain:
        _print(submitted, wanted, output.result_text)
        ending = endings.of_results(submitted.group)
    else:
        ending = deliver(submitted.group, wanted.delivery, submitted.names)
    if late is not None:
        raise late
    return ending
