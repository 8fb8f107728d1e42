"""Output of commands: JSON lines and text on standard output, tables for people."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, zip_longest
from typing import Annotated, Any, Final, TypeVar

import typer
from pydantic import BaseModel
from typer import Option

from pecia.errors import JobError
from pecia.job import AnyJob
from pecia_schemas.events import Progress
from pecia_schemas.failures import Failure
from pecia_schemas.states import JobState

M = TypeVar("M", bound=BaseModel)

_COLOUR: Final = re.compile(r"\x1b\[\d+m")
_ENDS: Final = re.compile(r"\r\n|[\n\f]")
_PIPED: Final = 200
"""Table width in columns if standard output is no terminal."""
_LEAST: Final = 8
"""Minimum width of the last column, however narrow the terminal."""

AsJson = Annotated[bool, Option("--json", help="Print JSON, one object on a line.")]


def fitting(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    spare: Sequence[str] = (),
    width: int | None = None,
    right: Collection[str] = (),
) -> str:
    """Return a table, leaving out spare columns, the first one first, until it fits the terminal.

    What the last column has no room for goes on below. Columns of numbers are aligned at the `right`.
    """
    width = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED)
    columns = {
        heading: [heading, *map(_cell, cells)] for heading, *cells in zip(headings, *rows, strict=True)
    }
    for heading in right:
        column = columns[heading]
        columns[heading] = [cell.rjust(max(map(len, column))) for cell in column]
    for heading in spare:
        if sum(_widths(columns)) + 2 * len(columns) - 1 <= width:
            break
        del columns[heading]
    *widths, last = _widths(columns)
    last = max(_LEAST, min(last, width - sum(widths) - 2 * len(widths) - 1))
    indent = " " * (sum(widths) + 2 * len(widths) + 1)
    lines: list[str] = []
    for *cells, end in zip(*columns.values(), strict=True):
        filled = [cell + " " * (room - _width(cell)) for cell, room in zip(cells, widths, strict=True)]
        folded = [end] if _width(end) <= last else [end[at : at + last] for at in range(0, len(end), last)]
        first = " " + "  ".join([*filled, folded[0]]).rstrip()
        lines.append("\n".join([first, *(indent + part for part in folded[1:])]))
    rule = " " + "─" * (sum(widths) + 2 * len(widths) + last)
    return "\n".join(["", lines[0], rule, *lines[1:], ""])


def _cell(value: object) -> str:
    return "" if value is None else when(value) if isinstance(value, datetime) else str(value)


def _widths(columns: dict[str, list[str]]) -> list[int]:
    return [max(map(_width, cells)) for cells in columns.values()]


def _width(cell: str) -> int:
    """Return the display width of a cell: two columns for each wide East Asian character, none for colour codes."""
    plain = _COLOUR.sub("", cell)
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in plain)


_COLOURS: dict[JobState, dict[str, Any]] = {
    JobState.SUCCEEDED: {"fg": "green"},
    JobState.PARTIAL: {"fg": "yellow"},
    JobState.FAILED: {"fg": "red"},
    JobState.CANCELLED: {"dim": True},
    JobState.EXPIRED: {"dim": True},
    JobState.RUNNING: {"fg": "cyan"},
}
_LABEL = 32
"""Longest label in a table. Of longer ones the end is shown, which distinguishes files of a folder."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def when(moment: datetime) -> str:
    """Return a time as local date and time."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def json_line(value: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(for_terminal(json.dumps(value, ensure_ascii=False, default=_plain)))


def _plain(value: object) -> object:
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return str(value)


def json_lines(found: Iterable[BaseModel], exclude: set[str] | None = None) -> None:
    """Print each model as one line of JSON."""
    for one in found:
        json_line(one.model_dump(mode="json", exclude=exclude))


def failure_json(failure: Failure | None) -> dict[str, str] | None:
    """Return the code and message of a failure, or None without one."""
    return {"code": failure.code, "message": failure.message} if failure else None


def job_json(job: AnyJob, hint: str | None) -> dict[str, Any]:
    """Return a job's state without its result; `hint` says why it cannot continue."""
    known = ("kind", "label", "batch", "lane", "state", "progress")
    about = {"failure": failure_json(job.failure), "hint": hint, "metadata": dict(job.metadata)}
    moments = ("submitted_at", "finished_at", "erased_at")
    return {"job": job.id} | _named(job, known) | about | _named(job, moments)


def _named(job: AnyJob, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def for_terminal(text: str) -> str:
    """Return the text unchanged for a pipe. For a terminal, align tables and replace control characters."""
    if not sys.stdout.isatty():
        return text
    lines: list[str] = []
    for is_table, run in groupby(_ENDS.split(text), key=lambda line: "\t" in line):
        rows = [[printable(cell) for cell in line.split("\t")] for line in run]
        widths = (
            [max(map(_width, column)) for column in zip_longest(*rows, fillvalue="")] if is_table else [0]
        )
        lines += [
            "  ".join(
                cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False)
            ).rstrip()
            for row in rows
        ]
    return "\n".join(lines)


def table(jobs: Iterable[AnyJob], width: int | None = None) -> str:
    """Return the jobs as a table with complete ids. A narrow terminal shows fewer columns."""
    rows: list[dict[str, object]] = []
    for job in jobs:
        style = None if "NO_COLOR" in os.environ else _COLOURS.get(job.state)
        row = {
            "job": job.id,
            "kind": job.kind,
            "lane": job.lane,
            "state": typer.style(job.state, **style) if style else job.state,
            "parts": progress_text(job.progress),
            "label": shortened(job.label),
            "submitted": job.submitted_at,
            "took": _took(job),
            "why": "erased" if job.erased_at else job.failure and job.failure.code,
        }
        rows.append(row)
    headings = ["job", "kind", "lane", "state", "parts", "label", "submitted", "took", "why"]
    if not any(row["label"] for row in rows):
        headings.remove("label")
    shown = [[row[name] for name in headings] for row in rows]
    return fitting(headings, shown, spare=("kind", "submitted", "lane", "took", "label"), width=width)


def _took(job: AnyJob) -> str:
    """Return how long the job has run since its last retry."""
    if job.started_at is None:
        return "-"
    return f"{((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds():.1f} s"


def shortened(label: str | None) -> str:
    """Return a label shortened for a table."""
    shown = printable(label)
    return shown if len(shown) <= _LABEL else f"…{shown[1 - _LABEL :]}"


def printable(text: str | None) -> str:
    """Return text with control characters, which could steer a terminal, replaced."""
    return "".join(
        letter
        if letter.isprintable() or unicodedata.category(letter) == "Zs"
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text or ""
    )


def name_of(job: AnyJob, name: str | None = None) -> str:
    """Return the name of a job: its file or its label, or else its id."""
    return printable(name or job.label) or str(job.id)


def complaint(job: AnyJob, error: JobError, name: str | None = None) -> str:
    """Return an error's message with the job's name in place of its id. Errors themselves contain no names."""
    said = str(error)
    if not (name or job.label):
        return said
    said = said.replace(f"Job {job.id}", f"'{name_of(job, name)}'")
    return said.replace(f"job {job.id}", f"'{name_of(job, name)}'")


def progress_text(progress: Progress) -> str:
    """Return the numbers of read and of all parts, as in `3/12`."""
    return f"{progress.done}/{'?' if progress.total is None else progress.total}"
