"""Waiting in sight of a person: progress on standard error if that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pecia.cli import endings
from pecia.completion import outlast
from pecia.errors import DatabaseUnavailableError, JobTimeoutError, PeciaError
from pecia.job import AnyJob, JobGroup
from pecia.waiting import Deadline

_LOOK_S = 0.25
_UNSERVED_S = 15.0
"""After which it is worth asking what the fleet lacks: it may have been about to start."""

T = TypeVar("T")


def follow(group: JobGroup[Any], timeout: float | None) -> None:
    """Wait until all jobs are over, and name what no running worker can do.

    Raises `JobTimeoutError`; the group's jobs then show what was seen last.
    """
    with unserved_told(lambda: (job for job in group if not job.done)):
        if sys.stderr.isatty():
            _watch(group, Deadline(timeout))
        else:
            _wait(group, timeout)


@contextmanager
def unserved_told(waiting: Callable[[], Iterable[AnyJob]]) -> Iterator[None]:
    """While the block waits for jobs, say on standard error what the first of them lacks, if it is something new."""
    over = Event()
    looking = Thread(target=_tell_unserved, args=(waiting, over), name="pecia-unserved", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()  # it uses the caller's connections


def _tell_unserved(waiting: Callable[[], Iterable[AnyJob]], over: Event) -> None:
    told: set[str | None] = {None}
    while not over.wait(_UNSERVED_S):
        with suppress(PeciaError):  # the one who waits finds out, too
            hint = next((job.hint() for job in waiting()), None)
            if hint not in told:
                told.add(hint)
                endings.complain(f"still waiting: {hint}")


def _watch(group: JobGroup[Any], deadline: Deadline) -> None:
    with _bar() as progress:
        bar = progress.add_task("", total=None)
        while True:
            outlast(group.refresh, deadline)
            progress.update(bar, **_figures(group))
            unfinished = [job for job in group if not job.done]
            if not unfinished:
                return
            deadline.check(unfinished[0].id)
            with suppress(JobTimeoutError, DatabaseUnavailableError):  # whether it lasts says the next look
                group.wait(deadline.within(_LOOK_S))


def counted(items: Iterable[T], total: int | None, doing: str) -> Iterator[T]:
    """Yield the items, and show how many have been taken; `total` is None if their number is unknown."""
    if not sys.stderr.isatty():
        yield from items
        return
    with _bar() as progress:
        yield from progress.track(items, total=total, description=doing)


@contextmanager
def bar(total: int, doing: str) -> Iterator[Callable[[int], None]]:
    """Show how many of a number are done, which the block says by what is yielded."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with _bar() as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.update(task, completed=done)


def _wait(group: JobGroup[Any], timeout: float | None) -> None:
    try:
        group.wait(timeout)
    except JobTimeoutError:
        group.refresh()
        raise


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _figures(group: JobGroup[Any]) -> dict[str, Any]:
    """Return the state of the bar: parts, their number unknown until every document has been cut."""
    totals = [_total(job) for job in group]
    done = sum(job.done for job in group)
    return {
        "description": f"{done}/{len(group)} jobs, parts",
        "completed": sum(job.progress.finished for job in group),
        "total": None if None in totals else sum(total for total in totals if total is not None),
    }


def _total(job: AnyJob) -> int | None:
    return job.progress.finished if job.done else job.progress.total


def pause() -> None:
    """Let a moment pass between two looks at a live table."""
    time.sleep(_LOOK_S)
