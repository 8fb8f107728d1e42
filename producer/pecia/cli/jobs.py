"""`pecia status`, `wait`, `cancel`, `retry` and `list` for jobs; `dead` for parts that the fleet gave up."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Self
from uuid import UUID

import typer
from typer import Argument, BadParameter, Option

from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.cli.values import Filter, InBatch, Jobs, Metadata, States, Timeout, grouped
from pecia.client import Client
from pecia.errors import JobNotFoundError, JobTimeoutError, RetryRefusedError
from pecia.job import AnyJob, Job, JobGroup
from pecia.records import DeadPart, Percentiles
from pecia_schemas.bundles import BundleDoubtReason
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.states import PartState, is_complete_id

AsJson = Annotated[bool, Option("--json", help="Print one JSON object for each job.")]


def status(
    ids: Annotated[
        list[str],
        Argument(metavar="ID", help="Job ids or their beginnings; - reads them from standard input."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show the state of jobs; of one job also its parts, and where their time went.

    The id of a part, from Flower or a log, shows its job. Example: `pecia status 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        found: list[Job[Any]] = []
        for one in values.ids(ids):
            try:
                found.append(client.job(one))
            except JobNotFoundError:
                of_part = next(iter(client.jobs(part=one)), None) if is_complete_id(one) else None
                if of_part is None:
                    raise
                found.append(of_part)
        group = client.group(found)
        course = Course.of(group[0]) if len(group) == 1 else None
        _show(group, as_json=as_json, more=vars(course) if course else {})
        for job in () if as_json else group:
            if job.failure is not None:
                typer.echo(f"{output.name_of(job)}: {job.failure.code}: {job.failure.message}")
        if course and not as_json:
            typer.echo(course.text)


@dataclass
class Course:
    """Numbers of a job's parts by state, and the seconds they spent in each step."""

    parts: dict[str, int]
    """Number of parts in each state, without the ingest part that cuts the document."""
    queued_s: Percentiles | None
    seconds: dict[str, float]
    """Sums over all ended attempts of all parts. Parts run in parallel, so sums may exceed the job's duration."""

    @classmethod
    def of(cls, job: AnyJob) -> Self:
        """Compute the course from the job's events."""
        states, began, worked = dict[UUID, str](), dict[UUID, datetime](), defaultdict[UUID, float](float)
        with suppress(JobTimeoutError):
            for event in job.events(timeout=0):
                if event.part_id is None or event.reason == "revised":
                    continue
                if start := began.pop(event.part_id, None):
                    worked[event.part_id] += (event.at - start).total_seconds()
                if event.state == PartState.RUNNING:
                    began[event.part_id] = event.at
                states[event.part_id] = event.state
        used, progress = job.usage(), job.progress
        seconds = {"decoded": used.decode_s, "engine": used.engine_s}
        if sum(state == PartState.DONE for state in states.values()) > progress.done:
            cut = next(iter(states))  # the first part of a document cuts it into the others
            del states[cut]
            seconds = {"cut": worked.pop(cut, 0.0)} | seconds
        rest = sum(worked.values()) - used.decode_s - used.engine_s
        seconds["witness and commit"] = max(0.0, rest) if used.parts else 0.0
        parts = {"running": sum(state == PartState.RUNNING for state in states.values())}
        parts |= {name: getattr(progress, name) for name in ("done", "failed", "cancelled")}
        if progress.total is not None:
            parts = {"queued": max(0, progress.total - sum(parts.values()))} | parts
        return cls(parts=parts, queued_s=used.queued_s, seconds=seconds)

    @property
    def text(self) -> str:
        """The course as two lines of text."""
        states = ", ".join(f"{count:,} {state}" for state, count in self.parts.items() if count)
        queued = self.queued_s
        waits = f"waited {queued.p50:.1f} s each (95 of 100 less than {queued.p95:.1f} s), " if queued else ""
        spent = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in self.seconds.items())
        parts = f" parts: {states or 'none'}"
        return (
            f"{parts}\n time of all parts: {waits}{spent}" if waits or any(self.seconds.values()) else parts
        )


@grouped
def wait(*, jobs: Jobs, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Wait until jobs have ended. Exits with 0 only if all of them succeeded completely.

    Example: `pecia wait 0190b3c8-7e1a-7c55 --timeout 60`, `pecia wait --batch ward-7`
    """
    from pecia.cli.watching import follow  # noqa: PLC0415  loads the progress bar, which only this verb needs

    with endings.going_on(jobs.words), Client() as client:
        group = jobs.chosen(client)
        try:
            follow(group, timeout)
        except JobTimeoutError as error:
            _show(group, as_json=as_json)
            late = next(job for job in group if job.id == error.job_id)
            endings.complain(output.complaint(late, error))
            raise typer.Exit(Ending.TIMEOUT) from None
        _show(group, as_json=as_json)
    raise typer.Exit(endings.of_states(job.state for job in group))


@grouped
def cancel(
    *,
    jobs: Jobs,
    reason: Annotated[str | None, Option(help="Reason to record with the jobs' events.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs now. Jobs that have ended stay as they are.

    Example: `pecia cancel 0190b3c8-7e1a-7c55 --reason "wrong file"`, `pecia cancel --batch ward-7 --state queued`
    """
    with Client() as client:
        group = jobs.chosen(client, values.OPEN)
        if not jobs.ids:
            ended = group.cancel(reason=reason)
            if as_json:
                _show(group.refresh(), as_json=True)
            else:
                typer.echo(f"{output.counted(ended, 'job')} cancelled.")
            return
        for job in group:
            ended = job.cancel(reason=reason)
            if as_json:
                output.json_line(output.job_json(job, None))
            else:
                read = f"; `pecia result {job.id}` prints what is read" if job.progress.done else ""
                became = (
                    f"{job.state}, {output.progress_text(job.progress)} read"
                    if ended
                    else f"was {job.state} already"
                )
                typer.echo(f"{output.name_of(job)}: {became}{read if ended else ''}")


@grouped
def retry(*, jobs: Jobs, as_json: AsJson = False) -> None:
    """Run the failed and cancelled parts of ended jobs again. Pages that were read stay.

    Example: `pecia retry 0190b3c8-7e1a-7c55`, `pecia retry --batch ward-7 --state failed`
    """
    with Client() as client:
        reopened, ending = [], Ending.DONE
        for job in jobs.chosen(client, values.UNSUCCESSFUL):
            try:
                reopened.append(job.retry())
            except RetryRefusedError as error:
                endings.complain(output.complaint(job, error))
                ending = max(ending, endings.of(error))
        if reopened:
            _show(client.group(reopened), as_json=as_json)
    raise typer.Exit(ending)


def list_jobs(
    *,
    batch: InBatch = None,
    state: States = None,
    verdict: Annotated[
        list[Verdict] | None, Option(help="Show pages with this verdict instead of jobs; may be repeated.")
    ] = None,
    kind: Annotated[str | None, Option(help="Only this kind of work, such as document.read.")] = None,
    metadata: Metadata = None,
    since: Annotated[
        str | None, Option(metavar="WHEN", help="Only jobs submitted since: 30m, 2h, 7d or a date.")
    ] = None,
    limit: Annotated[int, Option(min=1, help="Most to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show jobs, newest first, or pages that need review.

    With --verdict review, bundles with a patient conflict come first.

    Example: `pecia list --batch ward-7 --state failed`, `pecia list --verdict incomplete --verdict review`
    """
    which = Filter(batch=batch, state=state, verdict=verdict, metadata=metadata).which()
    which["since"], which["kind"] = values.moment(since), kind
    with Client() as client:
        if not verdict:
            _show(client.group(client.jobs(limit=limit, **which)), as_json=as_json)
            return
        pages = client.pages(limit=limit, **which)
        rows = [
            (one.label, one.job_id, None, BundleDoubtReason.IDENTITY_CONFLICT, one.read_at)
            if one.is_conflict
            else (one.label, one.job_id, one.number, one.verdict, one.read_at)
            for one in pages
        ]
    if as_json:
        for row in rows:
            output.json_line(dict(zip(("label", "job", "page", "verdict", "read_at"), row, strict=True)))
        return
    shown = [(output.shortened(label), *others) for label, *others in rows]
    typer.echo(output.fitting(("document", "job", "page", "verdict", "read"), shown, spare=("read",)))


def _show(group: JobGroup[Any], *, as_json: bool, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    hints = group.hints()
    if as_json:
        for job in group:
            output.json_line({**output.job_json(job, hints.get(job.id)), **more})
        return
    typer.echo(output.table(group))
    for job in group:
        if job.id in hints:
            typer.echo(f"{output.name_of(job)} waiting: {hints.pop(job.id)}")


Code = Annotated[FailureCode | None, Option(help="Only parts that failed with this code, such as poisoned.")]
OfJob = Annotated[UUID | None, Option("--job", metavar="ID", help="Only parts of this job.")]
Since = Annotated[str | None, Option(metavar="WHEN", help="Only parts failed since: 30m, 2h, 7d or a date.")]

dead = typer.Typer(no_args_is_help=True)


@dead.command("list")
def list_dead(
    *,
    job: OfJob = None,
    code: Code = None,
    since: Since = None,
    limit: Annotated[int, Option(min=1, help="Most to show.")] = 50,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object for each part.")] = False,
) -> None:
    """Show parts on which workers died, or whose last attempt failed, the latest first.

    Example: `pecia dead list --code poisoned`
    """
    with Client() as client:
        parts = client.dead_parts(job=job, code=code, since=values.moment(since), limit=limit)
    if as_json:
        output.json_lines(parts, exclude={"events"})
    else:
        typer.echo(_dead_table(parts))


@dead.command("show")
def show_dead(
    part_id: Annotated[UUID, Argument(metavar="PART", help="Full id of a part.")],
    *,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show one dead part: every attempt, the worker that made it, and how it ended.

    Example: `pecia dead show 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        part = client.dead_part(part_id)
    if as_json:
        output.json_line(part)
        return
    typer.echo(f"{part.failure.code}: {part.failure.message}")
    typer.echo(_dead_table([part]))
    history = [
        (f"{one.at.astimezone():%Y-%m-%d %H:%M:%S.%f}", one.attempt, one.state, one.reason, one.actor)
        for one in part.events
    ]
    typer.echo(output.fitting(("at", "attempt", "state", "why", "who"), history))


@dead.command("retry")
def retry_dead(
    part_ids: Annotated[list[UUID] | None, Argument(metavar="[PART]...", help="Full ids of parts.")] = None,
    *,
    everything: Annotated[
        bool, Option("--all", help="All that `list` shows with the same options, of jobs that have ended.")
    ] = False,
    job: OfJob = None,
    code: Code = None,
    since: Since = None,
) -> None:
    """Run dead parts again, with their full number of attempts. Their jobs are reopened; pages that were read stay.

    Parts of a job that has not ended are refused: wait for it.

    Example: `pecia dead retry --all --code engine_error --since 2h`
    """
    if bool(part_ids) is everything:
        raise BadParameter("name parts, or add --all", param_hint="PART")
    with Client() as client:
        found = client.dead_parts(job=job, code=code, since=values.moment(since)) if everything else ()
        chosen = part_ids or [part.id for part in found if part.job_state.is_terminal]
        for reopened in client.retry_dead(chosen):
            typer.echo(f"{reopened.id} {reopened.state} {output.progress_text(reopened.progress)}")


def _dead_table(parts: list[DeadPart]) -> str:
    headings = ("part", "job", "kind", "number", "failed", "attempts", "deaths", "worker", "why")
    rows = [
        (
            *(one.id, one.job_id, one.kind, f"{one.stage} {one.number}", one.failed_at),
            *(one.attempts, one.deaths, one.worker, one.failure.code),
        )
        for one in parts
    ]
    return output.fitting(headings, rows, spare=("kind", "worker", "failed", "deaths", "attempts", "job"))
