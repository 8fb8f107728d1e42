"""`pecia result` and `pecia export`: results of jobs on standard output or in files."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from typer import BadParameter, Option

from pecia import bundles, saving
from pecia.cli import endings, output, printing
from pecia.cli.endings import Ending
from pecia.cli.jobs import AsJson
from pecia.cli.values import Filter, Jobs, grouped
from pecia.cli.watching import bar, counted
from pecia.client import Client
from pecia.configuration import from_environment
from pecia.errors import JobError
from pecia.exporting import ExportFormat
from pecia.formats import Format, render, text
from pecia.handles import PDF_QUALITY
from pecia.job import AnyJob
from pecia_schemas.bundled import Bundle
from pecia_schemas.results import BundledDocument, Document

By = Annotated[
    bundles.By | None,
    Option("--by", help="Write each document of a bundle to its own file; patient: a folder for each."),
]
Pattern = Annotated[
    str,
    Option("--name", metavar="PATTERN", help="With --by: pattern of file names; also {patient}, {title}."),
]
WithConflicts = Annotated[
    bool, Option("--with-conflicts", help="With --by: write documents whose patient is in conflict, too.")
]


@grouped
def export(
    *,
    to: Annotated[str, Option("--to", metavar="DIR", help="A folder, or s3://bucket/prefix.")],
    form: Annotated[
        ExportFormat | None, Option("--format", help="Format of the files. Default: jsonl; with --by, pdf.")
    ] = None,
    by: By = None,
    pattern: Pattern = bundles.PATTERN,
    with_conflicts: WithConflicts = False,
    tables: Annotated[
        bool,
        Option("--tables", help="One file of the cells of all tables: tables.csv; or as --format parquet."),
    ] = False,
    jobs: Filter,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the results of a batch, or of all jobs that a filter finds, to files with a manifest.

    Results that an earlier run wrote to the same place are skipped: repeat the command after an interruption, or for
    jobs that had not ended. Example: `pecia export --batch ward-7 --format parquet --to results/`
    """
    which = jobs.which()
    if not which:
        raise BadParameter("choose jobs by --batch, --state, --verdict or --metadata", param_hint="--batch")
    layout = _layout(by, pattern, with_conflicts=with_conflicts)
    if tables:
        is_parquet = form in (ExportFormat.PARQUET, ExportFormat.TABLES_PARQUET)
        form = ExportFormat.TABLES_PARQUET if is_parquet else ExportFormat.TABLES
    try:
        with Client() as client, bar("jobs", client.counts(**which).jobs) as step:
            done = client.export(to, format=form, layout=layout, progress=lambda _: step(), **which)
    except KeyboardInterrupt:
        endings.complain("interrupted: repeat the command to continue where it stopped.")
        raise typer.Exit(Ending.INTERRUPTED) from None
    if as_json:
        output.json_line(done.model_dump())
    else:
        typer.echo(
            f"{output.counted(done.written, 'result')} written, {done.before:,} written before, "
            f"{output.counted(done.empty, 'job')} without a result."
        )
    if done.empty:
        endings.complain("`pecia list` shows why jobs have no result.")
    if done.open:
        endings.complain(f"{output.counted(done.open, 'job')} not ended yet: repeat the command later.")
    if done.held_back:
        endings.complain(
            f"{output.counted(done.held_back, 'document')} held back, with a patient in conflict: manifest.json of the "
            "bundle names them. Review them and repeat the command, or add --with-conflicts."
        )
    raise typer.Exit(Ending.FAILED if done.open or done.empty or done.held_back else Ending.DONE)


Form = Annotated[
    Format | None, Option("--format", help="Format to write. Default: by the suffix of FILE, else text.")
]
Target = Annotated[
    str | None,
    Option(
        "--output",
        "-o",
        metavar="FILE|DIR",
        help="Where to write. In a folder, files have the names of their documents.",
    ),
]
Force = Annotated[bool, Option("--force", help="Replace existing files.")]
Quality = Annotated[
    int, Option(min=1, max=95, metavar="1-95", help="Quality of JPEG pictures in a PDF; lower is smaller.")
]

Stream = Annotated[
    bool, Option("--stream", help="With --json: one object for each page, as soon as it is read.")
]
Original = Annotated[bool, Option("--original", help="The result as it was read, without later corrections.")]
OfTable = Annotated[
    int | None, Option("--table", min=1, metavar="N", help="Print only the N-th table, as CSV.")
]

_STREAMS: Final = (Format.JSON, Format.FIELDS)
"""Formats in which several results after one another can be separated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Options of how results are written."""

    form: Format | None = None
    target: str | None = None
    force: bool = False
    quality: int = PDF_QUALITY
    revision: int | None = None
    """0 for the result as the fleet read it, None for the latest revision."""

    @property
    def is_plain(self) -> bool:
        """Whether results are only printed."""
        return self.form is None and self.target is None

    def place(self, name: str, count: int) -> Path | None:
        """Return the file for one of `count` results, or None for standard output. A folder has a file for each."""
        if self.target is None:
            return None
        if count > 1 or self.target.endswith(os.sep) or Path(self.target).is_dir():
            return Path(self.target) / f"{name}{(self.form or Format.TEXT).suffix}"
        return Path(self.target)

    def save(self, job: AnyJob, path: Path, result: Any) -> None:
        """Write the result of a job to a file."""
        job.save(path, self.form, quality=self.quality, result=result)

    def check(self, kinds: Collection[str], count: int) -> None:
        """Raise an error, before anything is waited for, if so many results cannot be written like this."""
        form = self.form
        if self.target is None and form and form.is_binary and sys.stdout.isatty():
            raise BadParameter(f"a {form} cannot be shown on a terminal: add -o FILE", param_hint="--format")
        if self.target is None and form and form not in _STREAMS and count > 1:
            raise BadParameter(f"several results as {form} need files: add -o DIR", param_hint="--format")
        if self.target and count > 1 and Path(self.target).is_file():
            raise BadParameter("name a folder for several results, not a file", param_hint="--output")
        for kind in () if self.is_plain else kinds:
            form = saving.form_of(kind, self.place("name", count) or Path(), self.form)
            if form.is_binary and not from_environment().gateway_url:
                saving.page_pictures(form)


@grouped
def result(
    *,
    jobs: Jobs,
    form: Form = None,
    target: Target = None,
    force: Force = False,
    quality: Quality = PDF_QUALITY,
    table: OfTable = None,
    by: By = None,
    pattern: Pattern = bundles.PATTERN,
    with_conflicts: WithConflicts = False,
    original: Original = False,
    as_json: AsJson = False,
    stream: Stream = False,
) -> None:
    """Print what jobs read or captioned, or write it to files: text, Markdown, HTML, CSV, hOCR, PDF, subtitles.

    Example: `pecia result 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11 -o report.pdf`
    """
    layout = _layout(by, pattern, with_conflicts=with_conflicts)
    if layout and (target is None or table or as_json):
        raise BadParameter("it writes files: add -o DIR, omit --json and --table", param_hint="--by")
    revision = 0 if original else None
    delivery = Delivery(form=form, target=target, force=force, quality=quality, revision=revision)
    if as_json and not delivery.is_plain:
        raise BadParameter("omit --format and --output, or use --format json", param_hint="--json")
    check_stream(stream=stream, as_json=as_json)
    if table and (as_json or not delivery.is_plain):
        raise BadParameter("it is printed as CSV: omit the other options", param_hint="--table")
    printer = printing.Printer(as_json=as_json, by_page=stream, revision=revision)
    with Client() as client:
        found = jobs.chosen(client)
        if table:
            ending = _each(found, lambda job, result: _print_table(job, result, table), revision)
        elif layout:
            ending = _deliver_documents(found, delivery, layout)
        elif not delivery.is_plain:
            ending = deliver(found, delivery)
        else:
            ending = printing.print_each(found, printer)
    raise typer.Exit(ending)


def check_stream(*, stream: bool, as_json: bool) -> None:
    """Raise `typer.BadParameter` if a stream is requested without JSON."""
    if stream and not as_json:
        raise BadParameter("a stream is JSON: add --json", param_hint="--stream")


def deliver(jobs: Sequence[AnyJob], delivery: Delivery, tally: printing.Tally | None = None) -> Ending:
    """Write the results of the jobs, also partial ones; print on standard error why a result is missing or partial.

    In a folder, files are named by the jobs' labels. Later ones of equal names get a number, and a job without a label
    uses its id.

    Raises `typer.BadParameter` or `PeciaError` before anything is written if the options do not fit the jobs.
    """
    delivery.check({job.kind for job in jobs}, len(jobs))
    stems, called = saving.Stems(), dict[UUID, str]()
    for job in jobs:
        if job.id not in called:
            called[job.id] = stems.add(saving.stem_of(job.label) or str(job.id))
    places = {job.id: delivery.place(called[job.id], len(jobs)) for job in jobs}
    taken = [str(place) for place in places.values() if place and place.exists()]
    if taken and not delivery.force:
        raise BadParameter(f"{taken[0]} exists already: --force replaces it", param_hint="--output")
    tally, held_back = tally or printing.Tally(), 0

    def write(job: AnyJob, result: Any) -> None:
        nonlocal held_back
        place = places[job.id]
        _write(job, result, place, delivery)
        tally.add(job, printing.pieces_of(result))
        if saving.form_of(job.kind, place or Path(), delivery.form) is Format.FHIR:
            held_back += _complain(job, [one for one in result.documents if one.part.has_conflict])

    ending = _each(jobs, write, delivery.revision, tally)
    return max(ending, Ending.FAILED) if held_back else ending


def _complain(job: AnyJob, held: Sequence[BundledDocument]) -> int:
    """Report the documents that are held back, and return their number."""
    for document in held:
        pages = ", ".join(map(str, document.part.pages))
        endings.complain(
            f"document {document.part.number} of job {job.id} (pages {pages}) is held back: its patient is in "
            "conflict. Review it, or use --by document --with-conflicts."
        )
    return len(held)


def _layout(by: bundles.By | None, pattern: str, *, with_conflicts: bool) -> bundles.Layout | None:
    """Return how documents of bundles become files, or None if they do not. Raises `InvalidOptionError`."""
    return bundles.Layout(by=by, pattern=pattern, with_conflicts=with_conflicts) if by else None


def _deliver_documents(jobs: Sequence[AnyJob], delivery: Delivery, layout: bundles.Layout) -> Ending:
    """Write the documents of bundles, in one folder for each of several jobs. Report documents that are held back."""
    held_back = 0

    def write(job: AnyJob, result: Any) -> None:
        nonlocal held_back
        if not isinstance(result, Bundle):
            raise BadParameter(f"job {job.id} is not a bundle", param_hint="--by")
        folder = Path(delivery.target or "") / (str(job.id) if len(jobs) > 1 else "")
        if folder.exists() and any(folder.iterdir()) and not delivery.force:
            raise BadParameter(f"{folder} is not empty: --force replaces its files", param_hint="--output")
        _, held = bundles.save_documents(job, result, folder, delivery.form or Format.PDF, layout)
        held_back += _complain(job, held)

    ending = _each(jobs, write, delivery.revision)
    return max(ending, Ending.FAILED) if held_back else ending


def _each(
    jobs: Sequence[AnyJob],
    hand_over: Callable[[AnyJob, Any], None],
    revision: int | None,
    tally: printing.Tally | None = None,
) -> Ending:
    """Call `hand_over` with the result of each job, also a partial one, and return the worst ending."""
    worst = Ending.DONE
    for job in counted(jobs, len(jobs), "results"):
        try:
            if not job.refresh().done:
                worst = max(worst, Ending.TIMEOUT)
            if job.progress.done and not job.erased_at:
                hand_over(job, job.result(timeout=0, revision=revision, partial=True))
            worst = max(worst, endings.of_results([job]))
            if why := printing.missing(job):
                endings.complain(f"{output.name_of(job)}: {why}")
        except JobError as error:
            endings.complain(output.complaint(job, error))
            worst = max(worst, endings.of(error))
        if tally:
            tally.end(job)
    return worst


def _write(job: AnyJob, result: Any, place: Path | None, delivery: Delivery) -> None:
    """Write the result of a job to its place, or to standard output for None."""
    try:
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            delivery.save(job, place, result)
        elif delivery.form and delivery.form.is_binary:
            with tempfile.TemporaryDirectory(prefix="pecia-result-") as scratch:
                path = Path(scratch) / "result"
                delivery.save(job, path, result)
                with path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                    sys.stdout.buffer.flush()
        elif delivery.form is not Format.FIELDS:
            typer.echo(output.for_terminal(render(result, delivery.form or Format.TEXT)), nl=False)
        else:
            for line in text.lines(result):
                output.json_line({"job": str(job.id), **line})
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BadParameter(f"the file cannot be written ({reason})", param_hint="--output") from None


def _print_table(job: AnyJob, result: Any, number: int) -> None:
    tables = result.tables if isinstance(result, Document) else ()
    if number > len(tables):
        raise BadParameter(f"'{output.name_of(job)}' has {len(tables)} tables", param_hint="--table")
    typer.echo(output.for_terminal(tables[number - 1].to_csv()), nl=False)
