"""`pecia read` and `pecia caption`: submit files, and print job ids at once or the results at the end."""

import secrets
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import typer
from pydantic import ValidationError
from typer import Argument, BadParameter, Option

from pecia import arguments
from pecia.cli import endings, output, printing, results, values
from pecia.cli.endings import Ending
from pecia.cli.results import Delivery, deliver
from pecia.cli.values import Input, bundle_inputs, existing_file, grouped, inputs
from pecia.cli.watching import bar, counted, follow, unserved_reported
from pecia.client import Client
from pecia.configuration import from_environment
from pecia.errors import JobTimeoutError, QueueFullError, SubmitError, SubmitManyError, UnavailableError
from pecia.job import JobGroup
from pecia.request import Submission
from pecia_schemas import tasks
from pecia_schemas.bundles import Subject
from pecia_schemas.media import UrlRef
from pecia_schemas.states import Lane
from pecia_schemas.tracing import exported

ANY_SOURCE: Final = UrlRef(url="s3://any/document")
"""Placeholder source of a task that only holds options."""
_writing = partial(Option, rich_help_panel="How a language model writes")

Files = Annotated[
    list[str],
    Argument(
        metavar="FILE", help="Files, folders, quoted patterns, http, https or s3 URLs; - is standard input."
    ),
]
Priority = Annotated[Lane, Option(help="Lane to wait in.")]
Kind = Annotated[tasks.DocumentType, Option("--type", help="Type of the documents.")]
Language = Annotated[
    str | None,
    Option(help="Languages as in en, or en,ko,zh (ISO 639-1). Default: auto, all that the engine reads."),
]
Fields = Annotated[Path | None, existing_file(help="JSON schema of the fields to extract from each page.")]
NoCache = Annotated[bool, Option("--no-cache", help="Reuse no earlier result, and keep none for later jobs.")]
Metadata = Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="Metadata to store with the job.")]
Block = Annotated[bool, Option("--block", help="Wait while the lane is full, instead of failing.")]
Wait = Annotated[bool, Option("--wait", help="Wait for the results and print them, page by page.")]
NoticeUrl = Annotated[str | None, Option("--webhook", help="URL to notify when a job has ended.")]
InBatch = Annotated[
    str | None,
    Option(
        "--batch",
        metavar="NAME",
        help="Batch of the jobs, new or existing, by name. Default for several files: a new batch.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingOptions:
    """Options of how a language model writes."""

    preset: Annotated[tasks.Preset | None, _writing("--preset", help="Named set of these options.")] = None
    temperature: Annotated[
        float | None, _writing(min=0, max=2, help="Randomness; 0: always the most likely word.")
    ] = None
    top_p: Annotated[
        float | None, _writing(min=0, max=1, help="Choose among likeliest words up to this probability.")
    ] = None
    top_k: Annotated[int | None, _writing(min=0, help="Choose among so many likeliest words; 0: all.")] = None
    repetition_penalty: Annotated[float | None, _writing(min=0, max=2, help="Above 1: less repetition.")] = (
        None
    )
    max_output_tokens: Annotated[int | None, _writing(min=1, help="Most tokens of an answer.")] = None
    seed: Annotated[int | None, _writing(min=0, help="Seed of the random choice: repeats an answer.")] = None
    adapter: Annotated[str | None, _writing(help="LoRA adapter of the fleet, by name.")] = None

    def changes(self) -> tasks.GenerationOptions | None:
        """Return the options that override the preset, or None without any. Raises `typer.BadParameter`."""
        said = {name: getattr(self, name) for name in tasks.GenerationOptions.model_fields}
        given = {name: value for name, value in said.items() if value is not None}
        try:
            return tasks.GenerationOptions.model_validate(given) if given else None
        except ValidationError as error:
            (first, *_) = error.errors(include_url=False, include_context=False, include_input=False)
            hint = "--" + str(first["loc"][0]).replace("_", "-")
            raise BadParameter(first["msg"].lower(), param_hint=hint) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options for all jobs of a command."""

    no_cache: NoCache = False
    batch: InBatch = None
    metadata: Metadata = None
    webhook: NoticeUrl = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions(JobOptions):
    """Options for files that are submitted together."""

    key: Annotated[
        str | None, Option(help="Idempotency key; of several files the n-th gets KEY/n, counted from 0.")
    ] = None
    not_before: Annotated[
        str | None,
        Option("--not-before", metavar="WHEN", help="Earliest start: in 30m, 2h or 7d, or a date."),
    ] = None
    expires: Annotated[
        str | None,
        Option("--expires", metavar="WHEN", help="When unfinished jobs expire: in 30m, 2h or 7d, or a date."),
    ] = None
    block: Block = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How job ids and results are printed or written."""

    wait: Wait = False
    timeout: values.Timeout = None
    form: results.Form = None
    target: results.Target = None
    force: results.Force = False
    as_json: Annotated[bool, Option("--json", help="Print one JSON object for each file.")] = False
    stream: results.Stream = False

    @property
    def delivery(self) -> Delivery:
        """How results are written."""
        return Delivery(form=self.form, target=self.target, force=self.force)

    def check(self, kind: str, count: int) -> None:
        """Raise `typer.BadParameter` or `InvalidFormatError` if so many results cannot be written like this."""
        results.check_stream(stream=self.stream, as_json=self.as_json)
        if self.delivery.is_plain:
            return
        if not self.wait:
            raise BadParameter("results need --wait: add it", param_hint="--format, --output")
        if self.as_json:
            raise BadParameter("use --format json instead, or omit --output", param_hint="--json")
        self.delivery.check({kind}, count)

    def print_submitted(self, group: JobGroup[Any], names: Sequence[str]) -> None:
        """Print the jobs' ids, or JSON objects. A job that was submitted before by the same key may have a result."""
        for job, name in zip(group, names, strict=True):
            if self.as_json:
                result = job.result(timeout=0) if job.state.has_result and job.erased_at is None else None
                output.json_line(printing.result_json(job, name, result))
            else:
                typer.echo(job.id)


_bundling = partial(Option, rich_help_panel="Bundles")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """Options for bundles: files that contain many documents, and their expected patient."""

    bundle: Annotated[
        bool,
        _bundling(
            "--bundle",
            help="FILE holds several documents: find where each begins, and whose it is. A folder is one bundle, "
            "and so are several pictures.",
        ),
    ] = False
    subject_name: Annotated[
        str | None, _bundling(metavar="NAME", help="The only patient that the documents may be about.")
    ] = None
    subject_born: Annotated[
        str | None, _bundling(metavar="YYYY-MM-DD", help="The patient's date of birth.")
    ] = None
    subject_record: Annotated[
        list[str] | None, _bundling(metavar="NUMBER", help="Record number of this patient; may be repeated.")
    ] = None

    def subject(self) -> Subject | None:
        """Return the expected patient, or None if any patient is accepted. Raises `typer.BadParameter`."""
        if not (self.subject_name or self.subject_born or self.subject_record):
            return None
        if not self.bundle:
            raise BadParameter("a subject is of a bundle: add --bundle", param_hint="--subject-…")
        try:
            return Subject(
                name=self.subject_name,
                birth_date=date.fromisoformat(self.subject_born) if self.subject_born else None,
                record_numbers=tuple(self.subject_record or ()),
            )
        except ValueError:
            raise BadParameter("write a date, as in 1961-03-14", param_hint="--subject-born") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of which pages are read, and how."""

    document_type: Kind = tasks.DocumentType.MIXED
    language: Language = None
    pages: Annotated[
        str | None, Option(metavar="PAGES", help="Pages to read, as in 1-3,7,9-. Default: all.")
    ] = None
    ask_password: Annotated[bool, Option("--password", help="Ask for the password of the PDFs.")] = False
    password_file: Annotated[
        Path | None, existing_file(help="File whose first line is the password that opens the PDFs.")
    ] = None
    prepare: Annotated[
        str | None,
        Option(
            metavar="STEPS",
            help="Steps before reading: blank, orient, deskew, downscale, separated by commas; or none. "
            "Default: the fleet's setting.",
        ),
    ] = None
    prefer: Annotated[
        tasks.Prefer,
        Option(
            help="Source of the text of a PDF's page: the file's own text where it can be trusted (auto) or wherever "
            "there is any (layer), or the picture of the page (pixels)."
        ),
    ] = tasks.Prefer.AUTO
    witness: Annotated[
        tasks.Witness | None,
        Option(
            help="Second reader, by which text that a language model swapped, invented or omitted is found: the PDF's "
            "own text (layer), the CPU engine (ocr), either (auto), or none. Default: as the fleet is set."
        ),
    ] = None
    fields: Fields = None
    instructions: Annotated[
        Path | None, existing_file(help="File with a language model's prompt, in place of the fleet's.")
    ] = None

    def task(
        self, writing: WritingOptions, bundling: BundleOptions | None = None, *, cache: bool
    ) -> tasks.ReadPages[Any]:
        """Return the task with these options and a placeholder source. Raises `typer.BadParameter`."""
        kind: Any = tasks.ReadDocument
        subject = bundling.subject() if bundling else None
        if bundling and bundling.bundle:
            kind = partial(tasks.ReadBundle, subject=subject)
        task: tasks.ReadPages[Any] = kind(
            ANY_SOURCE,
            document_type=self.document_type,
            language=values.language(self.language),
            fields=values.json_object(self.fields),
            instructions=values.instructions(self.instructions),
            pages=values.pages(self.pages),
            prepare=values.preparation(self.prepare),
            password=values.password(self.password_file, ask=self.ask_password),
            prefer=self.prefer,
            witness=self.witness,
            preset=writing.preset,
            options=writing.changes(),
            adapter=writing.adapter,
            cache=cache,
        )
        return task


@grouped
def read(
    files: Files,
    *,
    priority: Priority = Lane.NORMAL,
    reading: ReadingOptions,
    bundling: BundleOptions,
    writing: WritingOptions,
    jobs: SubmitOptions,
    shown: OutputOptions,
) -> None:
    """Read documents: pictures, TIFF, PDF, DICOM. Prints the jobs' ids, or with --wait their text.

    Example: `pecia read scan.png report.pdf inbox/ --wait`
    """
    task = reading.task(writing, bundling, cache=not jobs.no_cache)
    found = bundle_inputs(files) if bundling.bundle else inputs(files, lambda media: not media.is_video)
    _run(task, found, priority, jobs, shown)


@grouped
def caption(
    files: Files,
    *,
    priority: Priority = Lane.NORMAL,
    style: Annotated[
        tasks.CaptionStyle, Option(help="Level of detail of the captions.")
    ] = tasks.CaptionStyle.DETAILED,
    language: Annotated[Literal["en", "ko"], Option(help="Language of the captions.")] = "en",
    segments: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0.1, help="Length of one segment. Default: the fleet's setting."),
    ] = None,
    writing: WritingOptions,
    jobs: SubmitOptions,
    shown: OutputOptions,
) -> None:
    """Describe videos, segment by segment and in a summary. Prints the jobs' ids, or with --wait the captions.

    Example: `pecia caption gait.mp4 --style brief --wait`
    """
    task = tasks.CaptionVideo(
        ANY_SOURCE,
        style=style,
        language=language,
        segments=values.seconds(segments, "--segments"),
        preset=writing.preset,
        options=writing.changes(),
        adapter=writing.adapter,
        cache=not jobs.no_cache,
    )
    _run(task, inputs(files, lambda media: media.is_video), priority, jobs, shown)


def new_name(verb: str) -> str:
    """Return a generated name for a batch, so that it is known before anything is submitted."""
    return f"{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _run(
    task: tasks.ReadPages[Any] | tasks.CaptionVideo,
    found: Sequence[Input],
    priority: Lane,
    jobs: SubmitOptions,
    shown: OutputOptions,
) -> None:
    """Submit the task for each input; print the jobs' ids, or wait and print or write their results."""
    options: dict[str, Any] = {
        "priority": priority,
        "metadata": values.metadata(jobs.metadata),
        "webhook": jobs.webhook,
        "not_before": values.moment(jobs.not_before, "--not-before"),
        "expires": values.moment(jobs.expires, "--expires"),
        "block": jobs.block,
    }
    batch = arguments.checked_batch(jobs.batch)
    shown.check(task.kind, len(found))
    if batch is None and len(found) > 1:
        batch = new_name("batch")
    settings, names = from_environment(), [one.name for one in found]
    submissions = (
        Submission(replace(task, source=cast("Any", one.source)), label=one.label) for one in found
    )
    with (
        endings.going_on(f"--batch {batch}" if batch else ""),
        warnings.catch_warnings(),
        Client(settings=settings) as client,
        exported(settings, "pecia-client"),
    ):
        warnings.showwarning = lambda message, *_, **__: endings.complain(str(message))
        refused: Mapping[int, SubmitError] = {}
        try:
            if batch:
                submitted = counted(submissions, len(found), "submitted")
                group = client.submit_many(submitted, batch=batch, idempotency_prefix=jobs.key, **options)
            else:
                (one,) = submissions
                job = client.submit(one.task, label=one.label, idempotency_key=jobs.key, **options)
                group = client.group([job])
        except SubmitManyError as error:
            group, refused = client.group(error.accepted), error.failures
            _complain(refused, names)
        except (UnavailableError, QueueFullError) as error:
            _complain(error.failures, names)
            for job in error.accepted or ():
                if shown.as_json:
                    output.json_line(output.job_json(job, None))
                else:
                    typer.echo(job.id)
            raise
        if batch and sys.stderr.isatty():
            endings.complain(f"batch {batch}, {output.counted(len(group), 'job')}")
        accepted = [name for number, name in enumerate(names) if number not in refused]
        ending = Ending.USAGE if refused else Ending.DONE
        if shown.wait:
            ending = max(ending, _waited(group, accepted, shown, f"--batch {batch}" if batch else ""))
        else:
            shown.print_submitted(group, accepted)
    raise typer.Exit(ending)


def _complain(failures: Mapping[int, SubmitError], names: Sequence[str]) -> None:
    for number, why in failures.items():
        endings.complain(f"{names[number]}: {why}")


def _waited(group: JobGroup[Any], names: Sequence[str], shown: OutputOptions, which: str) -> Ending:
    """Deliver every result, finished or not, once all jobs have ended or the timeout has passed."""
    tally = printing.Tally(names=not shown.delivery.is_plain)
    if not which and len(group) == 1:
        which = str(group[0].id)
    with endings.going_on(which, f"'{names[0]}'" if len(names) == 1 else "what was submitted"):
        if shown.delivery.is_plain:
            by_document = shown.as_json and not shown.stream
            what, total = ("documents", len(group)) if by_document else ("pages", None)
            with (
                unserved_reported(lambda: (job for job in group if not job.done)),
                bar(what, total, prints=True) as step,
            ):
                printer = printing.Printer(
                    as_json=shown.as_json, by_page=shown.stream, tally=tally, step=step
                )
                ending = printing.print_each(group, printer, names, shown.timeout)
        else:
            with suppress(JobTimeoutError):
                follow(group, shown.timeout)
            ending = deliver(group, shown.delivery, tally)
    tally.close(which)
    return ending
