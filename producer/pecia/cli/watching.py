"""`pecia watch`: shows jobs live, and estimates their remaining time."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from threading import Event, Thread
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from typer import Argument, Option

from pecia.arguments import Which
from pecia.cli import endings, output, values
from pecia.client import Client
from pecia.errors import DatabaseUnavailableError, JobTimeoutError, PeciaError
from pecia.job import AnyJob, JobGroup, retry_unavailable
from pecia.records import Counts
from pecia.waiting import Deadline
from pecia_schemas.states import JobState

_REDRAW_S = 0.25
_UNSERVED_S = 15.0
"""Time before the first check of what the fleet lacks, so that a starting fleet is not reported."""

T = TypeVar("T")


def follow(group: JobGroup[Any], timeout: float | None) -> None:
    """Wait until all jobs have ended, and report jobs that no running worker can process.

    Raises `JobTimeoutError`; the group's jobs then show their last known states.
    """
    with unserved_reported(lambda: (job for job in group if not job.done)):
        if sys.stderr.isatty():
            _watch(group, Deadline(timeout))
        else:
            try:
                group.wait(timeout)
            except JobTimeoutError:
                group.refresh()
                raise


@contextmanager
def unserved_reported(waiting: Callable[[], Iterable[AnyJob]]) -> Iterator[None]:
    """While the block waits for jobs, report on standard error what the first of them lacks, each reason once."""
    over = Event()

    def look() -> None:
        shown: set[str | None] = {None}
        while not over.wait(_UNSERVED_S):
            with suppress(PeciaError):  # the waiting caller gets the error, too
                hint = next((job.hint() for job in waiting()), None)
                if hint not in shown:
                    shown.add(hint)
                    endings.complain(f"still waiting: {hint}")

    looking = Thread(target=look, name="pecia-unserved", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()  # it uses the caller's connections


def _watch(group: JobGroup[Any], deadline: Deadline) -> None:
    with _bar() as progress:
        bar = progress.add_task("", total=None)
        while True:
            retry_unavailable(group.refresh, deadline)
            unfinished = [job for job in group if not job.done]
            totals = [job.progress.finished if job.done else job.progress.total for job in group]
            progress.update(
                bar,
                description=f"{len(group) - len(unfinished)}/{len(group)} jobs, parts",
                completed=sum(job.progress.finished for job in group),
                # unknown until every document has been cut
                total=None if None in totals else sum(total for total in totals if total is not None),
            )
            if not unfinished:
                return
            deadline.check(unfinished[0].id)
            with suppress(JobTimeoutError, DatabaseUnavailableError):  # the next refresh checks again
                group.wait(deadline.within(_REDRAW_S))


def counted(items: Iterable[T], total: int | None, doing: str) -> Iterator[T]:
    """Yield the items and show a progress bar. `total` is None if their number is unknown."""
    with bar(doing, total) as step:
        for item in items:
            yield item
            step()


@contextmanager
def bar(doing: str, total: int | None, *, prints: bool = False) -> Iterator[Callable[[], None]]:
    """Show on a terminal how many of a number are done: one more with each call of the yielded function.

    A block that `prints` them ends the bar with the first, if the same terminal shows what is printed.
    """
    with _bar() as progress:
        task = progress.add_task(doing, total=total)

        def step() -> None:
            if prints and sys.stdout.isatty():
                progress.stop()
            progress.advance(task)

        yield step


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


_ROWS: Final = 40
_SPAN_S: Final = 30.0
"""Time over which pages a second are measured."""
_EVERY_S: Final = 1.0
"""Interval between two queries that make Postgres count jobs."""


Look = tuple[Counts, list[AnyJob]]
"""Counts and jobs of one moment, in display order; all jobs if a program reads the output."""


@dataclass(slots=True)
class Pace:
    """Measures how many parts end in a second."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, ended: int, now: float) -> None:
        """Record the number of parts that have ended by `now`."""
        self._seen.append((now, ended))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _SPAN_S:  # noqa: PLR2004  both ends
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Parts a second over the last `_SPAN_S` seconds."""
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return max(0, last - first) / (now - began) if now > began else 0.0


@values.grouped
def watch(
    ids: Annotated[
        list[str] | None,
        Argument(metavar="ID", help="Ids of jobs, or how they begin. Default: all that have not ended."),
    ] = None,
    *,
    jobs: values.Filter,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object for each change.")] = False,
) -> None:
    """Show jobs live until all have ended, or Ctrl-C.

    Example: `pecia watch`, `pecia watch --batch ward-7`
    """
    which = jobs.which()
    if which:
        values.check(ids, which)
    with Client() as client:
        looks = _looks_at_many(client, which, every=as_json) if which else _looks(client, ids)
        try:
            if not as_json:
                _show(looks)
                return
            shown: dict[object, object] = {}
            for job in chain.from_iterable(found for _, found in looks):
                if shown.get(job.id) != (now := (job.state, job.progress)):
                    shown[job.id] = now
                    output.json_line(output.job_json(job, None))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _looks(client: Client, ids: list[str] | None) -> Iterator[Look]:
    """Yield the current states of these jobs, or of all open jobs, repeatedly until all have ended."""
    seen = {job.id: job for job in map(client.job, values.ids(ids or ()))}
    while True:
        if not ids:
            for state in values.OPEN:
                for job in client.jobs(state=state, limit=_ROWS):
                    seen.setdefault(job.id, job)
        client.group(job for job in seen.values() if not job.done).refresh()
        jobs = list(seen.values())
        counts = _counted(jobs)
        if not ids:  # there may be more of them than are shown
            counts = client.counts(state=values.OPEN) + _counted([job for job in jobs if job.done])
        first = {JobState.RUNNING: 0, JobState.QUEUED: 1}  # then what has ended, each the newest first
        newest = sorted(jobs, key=lambda job: job.id, reverse=True)
        yield counts, sorted(newest, key=lambda job: first.get(job.state, 2))
        if all(job.done for job in jobs) and not counts.open:
            return
        time.sleep(_REDRAW_S)


def _looks_at_many(client: Client, which: Which, *, every: bool) -> Iterator[Look]:
    """Yield the jobs that a filter selects until all have ended: running, then waiting, then ended jobs."""
    while True:
        counts = client.counts(**which)
        if every:
            jobs = list(client.jobs(**which, page_size=500))
        elif "state" in which:
            jobs = list(client.jobs(**which, limit=_ROWS))
        else:
            jobs = []
            over = [one for one in JobState if one.is_terminal]
            for states in ([JobState.RUNNING], [JobState.QUEUED], over):
                those: Which = {**which, "state": states}
                jobs += client.jobs(**those, limit=_ROWS - len(jobs))
        yield counts, jobs
        if not counts.open:
            return
        time.sleep(_EVERY_S)


def _show(looks: Iterator[Look]) -> None:
    console, pace = Console(highlight=False, width=None if sys.stdout.isatty() else 200), Pace()
    with Live(console=console, auto_refresh=False) as live:
        for counts, jobs in looks:
            pace.add(counts.done + counts.failed, time.monotonic())
            lines = [summary(counts, pace.rate)]
            if counts.failures:
                most = sorted(counts.failures.items(), key=lambda one: (-one[1], one[0]))
                lines.append("failed: " + ", ".join(f"{code} {number:,}" for code, number in most))
            rows = max(3, console.height - len(lines) - 6) if console.is_terminal else _ROWS
            lines.append(output.table(jobs[:rows], console.width))
            live.update(Text.from_ansi("\n".join(lines)), refresh=console.is_terminal)


def summary(counts: Counts, rate: float) -> str:
    """Return one line with the number of jobs by state, the pages read a second, and the remaining time."""
    states = counts.states
    named = {
        "queued": states.get(JobState.QUEUED, 0),
        "running": states.get(JobState.RUNNING, 0),
        "done": states.get(JobState.SUCCEEDED, 0) + states.get(JobState.PARTIAL, 0),
        "failed": states.get(JobState.FAILED, 0),
    }
    for rare in (JobState.CANCELLED, JobState.EXPIRED):
        if states.get(rare):
            named[rare.value] = states[rare]
    said = ", ".join(f"{number:,} {name}" for name, number in named.items())
    if not counts.open:
        return f"{said}; {counts.done:,} pages read"
    cut = counts.jobs - counts.uncut
    of_uncut = counts.uncut * (counts.parts / cut if cut else 1.0)  # assumes documents of average length
    parts_left = counts.parts - counts.done - counts.failed - counts.cancelled + of_uncut
    took = f", {timedelta(seconds=round(parts_left / rate))} left" if rate else ""
    return f"{said}; {rate:.1f} pages/s{took}"


def _counted(jobs: list[AnyJob]) -> Counts:
    return Counts(
        states=Counter(job.state for job in jobs),
        parts=sum(job.progress.total or 0 for job in jobs),
        done=sum(job.progress.done for job in jobs),
        failed=sum(job.progress.failed for job in jobs),
        cancelled=sum(job.progress.cancelled for job in jobs),
        uncut=sum(job.progress.total is None for job in jobs),
        failures=Counter(job.failure.code for job in jobs if job.failure),
    )
