"""Exit codes of `pecia`, and the one-line error messages that name the next step."""

import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import typer
from typer.exceptions import TyperException

from pecia import errors
from pecia.errors import PeciaError
from pecia.job import AnyJob
from pecia_schemas.states import JobState


class Ending(IntEnum):
    """Exit codes of `pecia`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TIMEOUT = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130


_OF_ERRORS: tuple[tuple[Ending, tuple[type[PeciaError], ...]], ...] = (
    (Ending.TIMEOUT, (errors.JobTimeoutError,)),
    (Ending.UNAVAILABLE, (errors.UnavailableError,)),
    (Ending.USAGE, (errors.InvalidSettingError, errors.InvalidFormatError)),
    (Ending.UNAVAILABLE, (errors.ConfigurationError, errors.AccessError, errors.QueueFullError)),
    (Ending.USAGE, (errors.SubmitError, errors.DatabaseRefusedError, errors.RetryRefusedError)),
    (Ending.USAGE, (errors.JobNotFoundError, errors.BatchNotFoundError, errors.EndpointLimitError)),
)
"""Exit codes by error classes. The first matching row counts."""


def of(error: PeciaError) -> Ending:
    """Return the exit code for an error."""
    return next((ending for ending, kinds in _OF_ERRORS if isinstance(error, kinds)), Ending.FAILED)


def of_states(states: Iterable[JobState]) -> Ending:
    """Return the exit code for ended jobs: 0 only if all succeeded completely."""
    return Ending.DONE if all(state is JobState.SUCCEEDED for state in states) else Ending.FAILED


def of_results(jobs: Iterable[AnyJob]) -> Ending:
    """Return the exit code for requested results: 0 if all exist and are complete."""
    there = [job.state is JobState.SUCCEEDED and job.erased_at is None for job in jobs]
    return Ending.DONE if all(there) else Ending.FAILED


@contextmanager
def going_on(which: str = "", name: str = "what was submitted") -> Iterator[None]:
    """On Ctrl-C, print that the jobs continue and the commands for them; `which` names the jobs, empty if unknown."""
    try:
        yield
    except KeyboardInterrupt:
        more = (
            f", `pecia result {which}` prints what is read, `pecia cancel {which}` ends it" if which else ""
        )
        complain(f"{name} goes on: `{f'pecia watch {which}'.strip()}` follows it{more}.")
        raise typer.Exit(Ending.INTERRUPTED) from None


def after(error: Exception) -> int:
    """Print an error as one line, and return its exit code."""
    if isinstance(error, TyperException):
        context: Any = getattr(error, "ctx", None)
        command, said = context.command_path if context else "pecia", error.format_message()
        said = said.replace("Value error, ", "", 1)  # typer's, of a word that is no choice
        complain(f"{said.rstrip('.?')}{'?' if said.endswith('?') else '.'} See `{command} --help`.")
        return error.exit_code
    if isinstance(error, PeciaError):
        complain(str(error))
        return of(error)
    if isinstance(error, OSError) and error.errno and error.filename:  # a path of the caller's
        complain(f"{os.fsdecode(error.filename)}: {os.strerror(error.errno)}.")
        return Ending.USAGE
    # The error's class and place, not its text, which may quote a document.
    kind, place = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
    complain(f"a fault in Pecia itself ({kind} in {place.name}, line {place.lineno}): please report it.")
    return Ending.FAILED


def complain(sentence: str) -> None:
    """Print an error on standard error as one line."""
    typer.echo(f"pecia: {' '.join(sentence.split())}", err=True)
