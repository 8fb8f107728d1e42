"""`pecia backfill`: all there is below a prefix, handed over in steps that can be repeated."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from obstore.exceptions import BaseError

from pecia import asking
from pecia.cli import endings, output, reading, submitting, values
from pecia.cli.endings import Ending
from pecia.cli.ray_worker import ray_worker
from pecia.cli.values import files_below, label_of, sniffed
from pecia.cli.watching import counted, unserved_told
from pecia.client import Client
from pecia.configuration import document_settings, resolve
from pecia.errors import SubmitManyError, UnavailableError
from pecia.job import AnyJob, JobGroup
from pecia.submission import Submission
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import UrlRef
from pecia_schemas.payloads import in_bucket, open_bucket
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import DocumentType, ReadDocument, task_to_json

_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One document that lies there."""

    name: str
    """As the user of the command knows it."""
    source: Path | str
    version: str
    """What is another whenever its content is."""
    size: int
    """Bytes."""
    label: str | None

    def key(self, asked: ReadDocument, lane: Lane, keys: Keyring) -> str:
        """Return what names this version of the document, read as `asked`: it tells nothing of where it lies.

        Under an encryption key names cannot be guessed without it.
        """
        how = task_to_json(asked)
        parts = [self.name, self.version, how, lane]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape"))
        return f"backfill/{keys.name_of(digest.hexdigest(), keys.current)}"


ANY_SOURCE = UrlRef(url="s3://any/document")
"""Stands for a document where only what is asked about it counts."""


def documents_below(where: str) -> Iterator[Found]:
    """Yield the documents of a folder or of `s3://bucket/prefix`, searched to the bottom, in the order of their names.

    In a folder only files that can be read as documents, none that is hidden; in a bucket all objects that are not
    empty. Raises `typer.BadParameter`, `UnavailableError`.
    """
    if found := in_bucket(where):
        return _in_bucket(*found)
    folder = Path(where)
    if not os.path.isdir(folder):  # noqa: PTH112  Path's raises for a folder that may not be entered
        raise typer.BadParameter(f"'{where}' is no folder, and no s3://bucket/prefix", param_hint="PREFIX")
    return _in_folder(folder)


def _in_folder(folder: Path) -> Iterator[Found]:
    for path in files_below(folder):
        media = sniffed(path)
        if media is not None and not media.is_video:
            about = path.stat()
            version = f"{about.st_mtime_ns} {about.st_size}"
            yield Found(
                name=str(path.absolute()),
                source=path,
                version=version,
                size=about.st_size,
                label=label_of(str(path.relative_to(folder))),
            )


def _in_bucket(bucket: str, prefix: str) -> Iterator[Found]:
    if not bucket:
        raise typer.BadParameter("name a bucket: s3://bucket/prefix", param_hint="PREFIX")
    store = open_bucket(bucket, document_settings(), retries=_RETRIES)
    try:
        for objects in store.list(prefix.strip("/") or None):
            for one in objects:
                if one["size"]:
                    url = f"s3://{bucket}/{one['path']}"
                    version = one["e_tag"] or f"{one['last_modified'].timestamp()} {one['size']}"
                    yield Found(
                        name=url,
                        source=url,
                        version=version,
                        size=one["size"],
                        label=label_of(one["path"][len(prefix) :].lstrip("/")) or label_of(one["path"]),
                    )
    except (BaseError, OSError) as error:
        raise UnavailableError(
            f"The bucket cannot be listed ({type(error).__name__}): check its name, PECIA_SOURCE_OPTIONS, and that the "
            "object store answers."
        ) from None


_BACKLOG: Final = 10_000
_OPEN_BATCHES: Final = 20
"""Batches that are waited for at a time, so that no more than their jobs are held."""

Where = Annotated[
    str, typer.Argument(metavar="PREFIX", help="s3://bucket/prefix, or a folder; searched to the bottom.")
]
Step = Annotated[int, typer.Option(min=1, help="Documents that are handed over together.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "--backlog",
        min=1,
        help="Parts that may wait in the bulk lane before more is handed over. Default: as PECIA_MAX_BACKLOG says, "
        f"else {_BACKLOG}.",
    ),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Read them too, on the Ray cluster of RAY_ADDRESS or this machine, and wait."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(slots=True)
class Tally:
    """What has become of the documents so far."""

    documents: int = 0
    bytes: int = 0
    new: int = 0
    known: int = 0
    """That were handed over by an earlier run."""
    refused: int = 0
    over: dict[JobState, int] = field(default_factory=dict)
    """That were waited for, by how they ended."""

    @property
    def ending(self) -> Ending:
        """How the command ends."""
        return Ending.USAGE if self.refused else endings.of_states(self.over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for each document."""

    task: ReadDocument
    keys: Keyring
    metadata: dict[str, str]
    webhook: str | None
    name: str
    """Of the batch."""

    def submit(self, client: Client, batch: list[Found], tally: Tally) -> JobGroup[Any]:
        """Hand over the documents of a batch, wait for room in the lane if need be, and count what became of them."""
        tally.documents += len(batch)
        tally.bytes += sum(one.size for one in batch)
        group, refused = self._submit(client, batch)
        for number, why in refused.items():
            endings.complain(f"{batch[number].name}: {why}")
        tally.refused += len(refused)
        tally.new += sum(job.created for job in group)
        tally.known += sum(not job.created for job in group)
        return group

    def _submit(self, client: Client, batch: list[Found]) -> tuple[JobGroup[Any], dict[int, Exception]]:
        try:
            group = client.submit_many(
                (
                    Submission(
                        replace(self.task, source=one.source),
                        key=one.key(self.task, Lane.BULK, self.keys),
                        label=one.label,
                    )
                    for one in batch
                ),
                batch=self.name,
                priority=Lane.BULK,
                metadata=self.metadata,
                webhook=self.webhook,
                block=True,
            )
        except SubmitManyError as error:
            return client.group(error.accepted), dict(error.failures)
        return group, {}


def backfill(
    where: Where,
    *,
    document_type: reading.Kind = DocumentType.MIXED,
    language: reading.Language = None,
    fields: reading.Fields = None,
    no_cache: submitting.NoCache = False,
    metadata: submitting.Metadata = None,
    webhook: submitting.NoticeUrl = None,
    batch: submitting.InBatch = None,
    step: Step = 1_000,
    backlog: Limit = None,
    ray: Ray = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Read all documents below a prefix, in the bulk lane. Repeat it as you like: what was handed over is not again.

    Example: `pecia backfill s3://archive/2019/ --type chart --metadata run=2019`
    """
    tally = Tally()
    if dry_run:
        for one in counted(documents_below(where), None, "documents"):
            tally.documents += 1
            tally.bytes += one.size
    else:
        settings = resolve(None, database_url=None, redis_url=None, payload_url=None)
        limits = {Lane.BULK: backlog or settings.max_backlog.get(Lane.BULK, _BACKLOG)}
        settings = settings.model_copy(update={"max_backlog": settings.max_backlog | limits})
        task = ReadDocument(
            ANY_SOURCE,
            document_type=document_type,
            language=values.language(language),
            fields=values.json_object(fields, "--fields"),
            cache=not no_cache,
        )
        told = values.metadata(metadata)
        name = asking.checked_batch(batch) or submitting.new_name("backfill")
        order = Order(task=task, keys=settings.keyring, metadata=told, webhook=webhook, name=name)
        with endings.going_on(f"pecia watch --batch {name}"), Client(settings=settings) as client:
            batches = _batches(documents_below(where), step)
            groups = (order.submit(client, some, tally) for some in batches)
            if ray:
                _read(groups, settings, tally)
            else:
                deque(counted(chain.from_iterable(groups), None, "documents"), maxlen=0)
    _tell(tally, dry_run=dry_run, as_json=as_json)
    raise typer.Exit(tally.ending)


def _read(groups: Iterable[JobGroup[Any]], settings: ClientSettings, tally: Tally) -> None:
    """Have a worker read the documents, and count how they end; what it lacks is what others do: to cut them."""
    waiting: deque[JobGroup[Any]] = deque()
    with ray_worker(settings), unserved_told(lambda: _uncut(list(waiting))):
        for job in counted(_over(groups, waiting), None, "documents read"):
            tally.over[job.state] = tally.over.get(job.state, 0) + 1


def _over(groups: Iterable[JobGroup[Any]], waiting: deque[JobGroup[Any]]) -> Iterator[AnyJob]:
    """Yield each job once it is over; a batch more is handed over whenever the oldest of many waiting ones is."""
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


def _batches(found: Iterable[Found], size: int) -> Iterator[list[Found]]:
    rest = iter(found)
    while batch := list(islice(rest, size)):
        yield batch


def _tell(tally: Tally, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        output.json_line(asdict(tally))
    elif dry_run:
        typer.echo(f"{tally.documents:,} documents, {tally.bytes:,} bytes.")
    else:
        typer.echo(
            f"{tally.documents:,} documents: {tally.new:,} handed over, {tally.known:,} handed over before, "
            f"{tally.refused:,} refused."
        )
        if tally.over:
            over = ", ".join(f"{count:,} {state.value}" for state, count in sorted(tally.over.items()))
            typer.echo(f"Over: {over}.")
