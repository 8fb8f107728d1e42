"""`pecia backfill`: submits all documents below a prefix, in steps that can be repeated."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from obstore.exceptions import BaseError
from typer import Argument, BadParameter, Option

from pecia import arguments
from pecia.cli import endings, output, reading, values
from pecia.cli.accounts import variables_of
from pecia.cli.endings import Ending
from pecia.cli.values import label_of
from pecia.cli.watching import counted, unserved_reported
from pecia.client import Client
from pecia.configuration import document_settings, resolve
from pecia.errors import SubmitManyError, UnavailableError
from pecia.job import AnyJob, JobGroup
from pecia.request import Submission
from pecia.sources import files_below, sniffed
from pecia_schemas.encryption import Keyring
from pecia_schemas.payloads import in_bucket, open_bucket
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import DocumentType, ReadDocument, task_to_json

_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One document below the prefix."""

    source: Path | str
    version: str
    """Text that changes whenever the document's content does."""
    size: int
    """Bytes."""
    label: str | None

    @property
    def name(self) -> str:
        """The absolute path or URL of the document."""
        return self.source if isinstance(self.source, str) else str(self.source.absolute())


def documents_below(where: str) -> Iterator[Found]:
    """Yield the documents of a folder or of `s3://bucket/prefix`, with all subfolders, in the order of their names.

    A folder yields the files that can be read as documents, except hidden ones; a bucket yields all objects that are
    not empty. Raises `typer.BadParameter`, `UnavailableError`.
    """
    if found := in_bucket(where):
        return _in_bucket(*found)
    folder = Path(where)
    if not os.path.isdir(folder):  # noqa: PTH112  Path's raises for a folder that may not be entered
        raise BadParameter(f"'{where}' is neither a folder nor s3://bucket/prefix", param_hint="PREFIX")
    return _in_folder(folder)


def _in_folder(folder: Path) -> Iterator[Found]:
    for path in files_below(folder):
        media = sniffed(path)
        if media is not None and not media.is_video:
            about = path.stat()
            version = f"{about.st_mtime_ns} {about.st_size}"
            label = label_of(str(path.relative_to(folder)))
            yield Found(source=path, version=version, size=about.st_size, label=label)


def _in_bucket(bucket: str, prefix: str) -> Iterator[Found]:
    if not bucket:
        raise BadParameter("name a bucket: s3://bucket/prefix", param_hint="PREFIX")
    store = open_bucket(bucket, document_settings(), retries=_RETRIES)
    try:
        for one in chain.from_iterable(store.list(prefix.strip("/") or None)):
            if one["size"]:
                path = one["path"]
                version = one["e_tag"] or f"{one['last_modified'].timestamp()} {one['size']}"
                label = label_of(path[len(prefix) :].lstrip("/")) or label_of(path)
                yield Found(source=f"s3://{bucket}/{path}", version=version, size=one["size"], label=label)
    except (BaseError, OSError) as error:
        raise UnavailableError(
            f"The bucket cannot be listed ({type(error).__name__}): check its name, PECIA_SOURCE_OPTIONS, and that the "
            "object store answers."
        ) from None


_BACKLOG: Final = 10_000
_OPEN_BATCHES: Final = 20
"""Batches that are waited for at a time, to bound the jobs in memory."""


@dataclass(slots=True)
class Tally:
    """Counts of the documents so far."""

    documents: int = 0
    bytes: int = 0
    new: int = 0
    known: int = 0
    """Documents that an earlier run submitted."""
    refused: int = 0
    over: dict[JobState, int] = field(default_factory=dict)
    """Ended jobs that were waited for, by state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The task and the submit options of each document."""

    task: ReadDocument
    keys: Keyring
    metadata: dict[str, str]
    webhook: str | None
    batch: str

    def key(self, found: Found) -> str:
        """Return the idempotency key of this version of the document and these options. It does not show the path.

        If an encryption key is set, the result cannot be guessed without it.
        """
        parts = [found.name, found.version, task_to_json(self.task), Lane.BULK]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape"))
        return f"backfill/{self.keys.name_of(digest.hexdigest(), self.keys.current)}"

    def submit(self, client: Client, documents: list[Found], tally: Tally) -> JobGroup[Any]:
        """Submit the documents of a step, waiting while the lane is full, and count the outcomes."""
        tally.documents += len(documents)
        tally.bytes += sum(one.size for one in documents)
        submissions = (
            Submission(replace(self.task, source=one.source), key=self.key(one), label=one.label)
            for one in documents
        )
        try:
            group = client.submit_many(
                submissions,
                batch=self.batch,
                priority=Lane.BULK,
                metadata=self.metadata,
                webhook=self.webhook,
                block=True,
            )
        except SubmitManyError as error:
            group = client.group(error.accepted)
            for number, why in error.failures.items():
                endings.complain(f"{documents[number].name}: {why}")
            tally.refused += len(error.failures)
        new = sum(job.created for job in group)
        tally.new, tally.known = tally.new + new, tally.known + len(group) - new
        return group


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions(reading.JobOptions):
    """Command-line options of an order."""

    document_type: reading.Kind = DocumentType.MIXED
    language: reading.Language = None
    fields: reading.Fields = None

    def order(self, keys: Keyring) -> Order:
        """Return the order that the options describe. Raises `typer.BadParameter`, `PeciaError`."""
        task = ReadDocument(
            reading.ANY_SOURCE,
            document_type=self.document_type,
            language=values.language(self.language),
            fields=values.json_object(self.fields),
            cache=not self.no_cache,
        )
        metadata = values.metadata(self.metadata)
        batch = arguments.checked_batch(self.batch) or reading.new_name("backfill")
        return Order(task=task, keys=keys, metadata=metadata, webhook=self.webhook, batch=batch)


Prefix = Annotated[
    str, Argument(metavar="PREFIX", help="s3://bucket/prefix, or a folder, with all that is below it.")
]
Step = Annotated[int, Option(min=1, help="Documents submitted together.")]
Backlog = Annotated[
    int | None,
    Option(
        min=1,
        help="Most parts that wait in the bulk lane before more documents are submitted. Default: PECIA_MAX_BACKLOG, "
        f"else {_BACKLOG}.",
    ),
]
WithRay = Annotated[
    bool,
    Option("--ray", help="Also read them, on the Ray cluster at RAY_ADDRESS or on this machine, and wait."),
]
DryRun = Annotated[bool, Option("--dry-run", help="Only count the documents.")]


@values.grouped
def backfill(
    where: Prefix,
    *,
    options: OrderOptions,
    step: Step = 1_000,
    backlog: Backlog = None,
    ray: WithRay = False,
    dry_run: DryRun = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read all documents below a prefix, in the bulk lane. It can be repeated: no document is submitted twice.

    Example: `pecia backfill s3://archive/2019/ --type chart --metadata run=2019`
    """
    tally = Tally()
    if dry_run:
        for one in counted(documents_below(where), None, "documents"):
            tally.documents += 1
            tally.bytes += one.size
    else:
        settings = resolve()
        limits = {Lane.BULK: backlog or settings.max_backlog.get(Lane.BULK, _BACKLOG)}
        settings = settings.model_copy(update={"max_backlog": settings.max_backlog | limits})
        order = options.order(settings.keyring)
        with endings.going_on(f"--batch {order.batch}"), Client(settings=settings) as client:
            found = documents_below(where)
            steps = iter(lambda: list(islice(found, step)), [])
            groups = (order.submit(client, documents, tally) for documents in steps)
            if ray:
                _read(groups, settings, tally)
            else:
                deque(counted(chain.from_iterable(groups), None, "documents"), maxlen=0)
    _report(tally, dry_run=dry_run, as_json=as_json)
    raise typer.Exit(Ending.USAGE if tally.refused else endings.of_states(tally.over))


class _Ended(BaseException):
    """The worker ended by itself. A BaseException, so that code in between does not handle it as its own error."""


@contextmanager
def ray_worker(settings: ClientSettings) -> Iterator[None]:
    """Run a worker that reads with Ray during the block. On exit it requeues its unfinished parts. Main thread only.

    Raises `UnavailableError`, in the middle of the block, if the worker ends by itself.
    """
    # The launcher becomes the worker, which receives SIGTERM when this process ends.
    launcher = [sys.executable, "-m", "pecia_workers.processes.launcher"]
    death = [str(os.getpid()), str(int(signal.SIGTERM)), "-1", "-1"]
    command = [sys.executable, "-m", "pecia_workers", "worker", "engine", "--name", f"backfill-{os.getpid()}"]
    # Its own session keeps Ctrl-C for this process; its output goes to standard error.
    worker = subprocess.Popen(
        [*launcher, *death, *command],
        env=os.environ | variables_of(settings) | {"PECIA_ENGINE": "ray"},
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )

    def look(*_: Any) -> None:
        if worker.poll() is not None:
            raise _Ended

    former = signal.signal(signal.SIGCHLD, look)
    try:
        look()
        yield
    except _Ended:
        raise UnavailableError(
            f"The worker that reads with Ray has ended ({worker.returncode}); its output is above. Repeat the command: "
            "results are kept, and only the rest is read."
        ) from None
    finally:
        signal.signal(signal.SIGCHLD, former)
        worker.terminate()
        try:
            worker.wait()  # it finishes or requeues its parts
        except KeyboardInterrupt:  # the second one
            worker.kill()
            raise


def _read(groups: Iterable[JobGroup[Any]], settings: ClientSettings, tally: Tally) -> None:
    """Run a Ray worker and count how the documents end. It does not cut documents: other workers of the fleet do."""
    waiting: deque[JobGroup[Any]] = deque()
    with ray_worker(settings), unserved_reported(lambda: _uncut(list(waiting))):
        for job in counted(_over(groups, waiting), None, "documents read"):
            tally.over[job.state] = tally.over.get(job.state, 0) + 1


def _over(groups: Iterable[JobGroup[Any]], waiting: deque[JobGroup[Any]]) -> Iterator[AnyJob]:
    """Yield each job once it has ended. Submit another batch when the oldest of `_OPEN_BATCHES` batches has ended."""
    for group in groups:
        waiting.append(group)
        if len(waiting) >= _OPEN_BATCHES:
            yield from waiting[0].as_completed()
            waiting.popleft()
    while waiting:
        yield from waiting[0].as_completed()
        waiting.popleft()


def _uncut(groups: Iterable[JobGroup[Any]]) -> Iterator[AnyJob]:
    return (job for job in chain.from_iterable(groups) if not job.done and job.progress.total is None)


def _report(tally: Tally, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        output.json_line(asdict(tally))
    elif dry_run:
        typer.echo(f"{output.counted(tally.documents, 'document')}, {tally.bytes:,} bytes.")
    else:
        typer.echo(
            f"{output.counted(tally.documents, 'document')}: {tally.new:,} submitted, "
            f"{tally.known:,} submitted before, {tally.refused:,} refused."
        )
        if tally.over:
            over = ", ".join(f"{count:,} {state.value}" for state, count in sorted(tally.over.items()))
            typer.echo(f"Over: {over}.")
