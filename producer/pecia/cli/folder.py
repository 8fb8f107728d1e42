"""`pecia watch-folder`: reads each document that is put into a folder, once, and saves its result."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

import typer
from typer import Argument, BadParameter, Option

from pecia import arguments
from pecia.cli import endings, inbox, output, reading, values
from pecia.cli.bucket import BucketWatch
from pecia.cli.endings import Ending
from pecia.cli.inbox import Entry, Journal, Stillness, Watcher
from pecia.cli.results import Delivery
from pecia.cli.watching import unserved_reported
from pecia.client import Client
from pecia.configuration import resolve
from pecia.errors import (
    AccessError,
    IdempotencyConflictError,
    InvalidSourceError,
    QueueFullError,
    SubmitError,
    UnavailableError,
)
from pecia.formats import Format
from pecia.job import AnyJob
from pecia.saving import replacing
from pecia_schemas.failures import Failure
from pecia_schemas.payloads import in_bucket
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import ReadDocument

_TICK_S: Final = 0.5
_RESCAN_S: Final = 30.0
"""The folder is searched at this interval even if the system announces no change, as on most network drives."""
_PAUSE_S: Final = 5.0
"""Pause after something was unavailable."""
_IN_FLIGHT: Final = 200
"""Documents that are read at a time; the others wait in the folder."""
_TOO_LARGE: Final = "too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """Which files are read, and where the files and their results go."""

    out: Annotated[
        str | None,
        Option(
            "--out", metavar="DIR", help="Where results go. Default: beside their documents, in DIR/done."
        ),
    ] = None
    form: Annotated[Format, Option("--format", help="Format of the results.")] = Format.TEXT
    keep: Annotated[
        bool,
        Option(
            "--keep",
            help="Leave documents where they are, with their results beside them; failed ones are copied to "
            "DIR/failed. Default: documents are moved to DIR/done or DIR/failed.",
        ),
    ] = False
    failed: Annotated[
        str | None,
        Option(metavar="DIR", help="Where failed documents go, with the reason. Default: DIR/failed."),
    ] = None
    recursive: Annotated[bool, Option("--recursive", help="Read documents in subfolders, too.")] = False
    settle: Annotated[
        float, Option(metavar="SECONDS", min=0, help="Read a file once it has been unchanged for this long.")
    ] = 2.0
    poll: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            min=0.1,
            help="Search the folder this often, for network drives. Default: when the system announces a change.",
        ),
    ] = None
    once: Annotated[bool, Option("--once", help="Read the documents that are there now, then exit.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders for documents and their results."""

    folder: Path
    done: Path | None
    """None if documents stay where they are."""
    failed: Path
    out: Path
    suffix: str
    """Of results."""

    @classmethod
    def of(cls, folder: Path, options: FolderOptions) -> "Places":
        """Return the places that the options name. Raises `typer.BadParameter`."""
        done = None if options.keep else folder / "done"
        out = Path(options.out) if options.out else done or folder
        if done and out.resolve() == folder.resolve():
            raise BadParameter("results would be read as documents there: add --keep", param_hint="--out")
        failed = Path(options.failed) if options.failed else folder / "failed"
        if failed.resolve() == folder.resolve():
            raise BadParameter("documents would be read again there", param_hint="--failed")
        return cls(folder=folder, done=done, failed=failed, out=out, suffix=options.form.suffix)

    @property
    def passed_over(self) -> set[Path]:
        """Folders that are not searched."""
        others = (self.folder / "done", self.failed, self.out)
        return {place.resolve() for place in others} - {self.folder.resolve()}

    def result(self, name: str) -> Path:
        """Return the path of the result of a document with this name in the output folder."""
        return self.out / f"{name}{self.suffix}"

    def reason(self, name: str) -> Path:
        """Return the file that explains why a document failed."""
        return self.failed / f"{name}.error.txt"

    def is_free(self, name: str) -> bool:
        """Return whether no file of an earlier document has this name."""
        documents = (self.done / name, self.failed / name) if self.done else ()
        return not any(os.path.lexists(place) for place in (*documents, self.result(name), self.reason(name)))


@dataclass(slots=True, kw_only=True)
class Watch(Watcher):
    """Reads the documents of a folder. The journal has an entry for each from before its submit until its end."""

    places: Places
    journal: Journal
    stillness: Stillness

    @property
    def is_busy(self) -> bool:
        """Whether work remains even if the folder does not change."""
        return self.waiting or bool(self.open_entries())

    def open_entries(self) -> list[Entry]:
        """Return the documents that have not ended."""
        return [entry for entry in self.journal.entries.values() if not entry.kept]

    def search(self) -> None:
        """Search the folder once, and submit the files that are complete. Raises `OSError`, `PeciaError`."""
        self.journal.check()
        prints = inbox.files_in(
            self.places.folder, recursive=self.recursive, passed_over=self.places.passed_over
        )
        entries = self.journal.entries
        for entry in self.open_entries():
            if prints.get(entry.name, entry.print) != entry.print:
                self._abandon(entry)
        for entry in [entry for entry in entries.values() if entry.kept and entry.name not in prints]:
            if not any(os.path.lexists(self.places.folder / name) for name in (entry.name, entry.result)):
                self.journal.remove(entry)
        results = {entry.result for entry in entries.values()}
        fresh = {
            name: print_
            for name, print_ in prints.items()
            if name not in results and (name not in entries or entries[name].print != print_)
        }
        whole = self.stillness.whole(fresh, time.monotonic())
        capacity = max(0, _IN_FLIGHT - len(self.open_entries()))
        self._enter({name: fresh[name] for name in islice(whole, capacity)})
        self.waiting = any(name not in entries or entries[name].print != fresh[name] for name in fresh)
        self._submit([entry for entry in self.open_entries() if entry.name not in self.jobs])

    def _enter(self, whole: Mapping[str, inbox.Print]) -> None:
        """Write new documents to the journal, each with its idempotency key and the name under which it is filed."""
        made: list[Entry] = []
        for name, print_ in whole.items():
            former, keeps = self.journal.entries.get(name), self.places.done is None
            with suppress(FileNotFoundError):
                digest = inbox.digest_of(self.places.folder / name) if keeps else ""
                if former and digest and former.digest == digest:
                    made.append(replace(former, print=print_))
                    continue
                taken = {entry.place for entry in (*self.journal.entries.values(), *made)}
                place = former.place if former else ""
                if not former:
                    free = (
                        one for one in inbox.numbered(name) if one not in taken and self.places.is_free(one)
                    )
                    place = next(free)
                result = os.path.relpath(self.places.result(place), self.places.folder)
                made.append(Entry.new(name, print_, digest=digest, place=place, result=result))
        self.journal.write(made)

    def _abandon(self, entry: Entry) -> None:
        """Cancel the job of a file that has changed since its submit: the file is read again once it is complete."""
        if job := self.jobs.pop(entry.name, None):
            job.cancel(reason="the file has changed")
        self.journal.remove(entry)

    def _submit(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        refused: Mapping[str, SubmitError | AccessError]
        try:
            refused = self.submit({one.name: (self.places.folder / one.name, one.key) for one in entries})
        except AccessError as error:
            if error.code != _TOO_LARGE:
                raise
            if len(entries) > 1:
                for entry in entries:
                    self._submit([entry])
                return
            refused = {entries[0].name: error}
        for entry in entries:
            if why := refused.get(entry.name):
                self._refuse(entry, why)

    def _refuse(self, entry: Entry, error: SubmitError | AccessError) -> None:
        """End a document that was refused. Raise the error if it would refuse the other documents too."""
        if isinstance(error, IdempotencyConflictError):  # submitted by a former run with other options
            self.jobs[entry.name] = self.client.job(error.existing_job_id)
        elif not (isinstance(error, InvalidSourceError) or getattr(error, "code", "") == _TOO_LARGE):
            raise error
        elif not (self.places.folder / entry.name).exists():
            self.journal.remove(entry)
        else:
            self._fail(entry, None, str(error))

    def end(self, name: str, job: AnyJob) -> None:
        """Save the result, and move the document."""
        entry = self.journal.entries[name]
        if inbox.print_of(self.places.folder / name) not in (None, entry.print):
            self._abandon(entry)
            return
        result = self.places.folder / entry.result
        result.parent.mkdir(parents=True, exist_ok=True)
        if why := self.save(job, result):
            self._fail(entry, job, why)
            return
        if job.state is JobState.PARTIAL:
            self._write_reason(entry, job, inbox.missing_pages(job))
        if self.places.done:
            _move(self.places.folder / name, self.places.done / entry.place)
        self._close(entry, job, result, None)

    def _fail(self, entry: Entry, job: AnyJob | None, why: Failure | str) -> None:
        self._write_reason(entry, job, why)
        source, target = self.places.folder / entry.name, self.places.failed / entry.place
        if self.places.done:
            _move(source, target)
        else:
            _copy(source, target)
        self._close(entry, job, None, why)

    def _write_reason(self, entry: Entry, job: AnyJob | None, why: Failure | str) -> None:
        target = self.places.reason(entry.place)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write_text(inbox.reason_text(job, why), encoding="utf-8")

    def _close(
        self, entry: Entry, job: AnyJob | None, result: Path | None, why: Failure | str | None
    ) -> None:
        if self.places.done:
            self.journal.remove(entry)
        else:
            self.journal.write([replace(entry, kept=True)])
        self.jobs.pop(entry.name, None)
        self.report(entry.name, job, str(result) if result else None, why)


def _move(source: Path, target: Path) -> None:
    """Move a document. If an interrupted run has moved it, or its owner has removed it, do nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        try:
            source.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(source, target)
            source.unlink()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The source is missing or unreadable: the reason is already beside the target.
    with suppress(FileNotFoundError, PermissionError), replacing(target) as scratch:
        shutil.copy2(source, scratch)


@contextmanager
def _stopping() -> Iterator[Event]:
    """Yield an event that SIGINT and SIGTERM set. A second signal raises `KeyboardInterrupt`."""
    stop = Event()

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _announced(folder: Path, *, recursive: bool, stop: Event) -> Iterator[bool]:
    """Yield regularly, True if something in the folder has changed. Raises `typer.BadParameter`."""
    from watchfiles import watch  # noqa: PLC0415  polling does not need it

    yield True
    try:
        for changes in watch(
            folder,
            watch_filter=None,
            recursive=recursive,
            stop_event=stop,
            rust_timeout=int(_TICK_S * 1000),
            yield_on_timeout=True,
            force_polling=False,
        ):
            yield bool(changes)
    except (OSError, RuntimeError):  # such as no inotify watches being free
        raise BadParameter(
            "the system does not announce changes in this folder: add --poll 5", param_hint="DIR"
        ) from None


def _polled(seconds: float, stop: Event) -> Iterator[bool]:
    searched = 0.0
    while not stop.is_set():
        due = time.monotonic() - searched >= seconds
        searched = time.monotonic() if due else searched
        yield due
        stop.wait(min(seconds, _TICK_S))


def _run(watch: Watch | BucketWatch, looks: Iterator[bool], *, polls: bool, once: bool) -> None:
    """Search, submit and save until a signal stops it, or with `once` until no work remains."""
    complained, searched, paused = "", 0.0, 0.0
    for changed in looks:
        now = time.monotonic()
        if now < paused:
            continue
        due = changed or (not polls and (watch.is_busy or now - searched >= _RESCAN_S))
        try:
            if due or paused:
                watch.search()
                searched = now
            watch.settle()
            complained, paused = "", 0.0
        except (UnavailableError, QueueFullError, AccessError, OSError) as error:
            if isinstance(error, AccessError) and error.retry_after is None:
                raise
            sentence = _trouble(error)
            if once and not isinstance(error, QueueFullError | AccessError):
                raise UnavailableError(f"{sentence} Repeat the command to continue.") from None
            if sentence != complained:
                endings.complain(f"{sentence} Trying again.")
            complained, paused = sentence, now + _PAUSE_S
            continue
        if once and not watch.is_busy:
            return
    if count := len(watch.open_entries()):
        endings.complain(
            f"{output.counted(count, 'document')} not ended yet: the next start saves the results."
        )


def _trouble(error: Exception) -> str:
    """Describe the error that blocks the watch, and what to do about it."""
    if not isinstance(error, OSError):
        return str(error)
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    return f"{place} cannot be used ({reason}): make space or correct its permissions."


def _bucket_watch(where: str, places: FolderOptions, common: Mapping[str, Any]) -> BucketWatch:
    base = where.rstrip("/")
    return BucketWatch(
        where=where,
        out=places.out or f"{base}/done",
        failed=places.failed or f"{base}/failed",
        keys=resolve().keyring,
        **common,
    )


@values.grouped
def watch_folder(
    where: Annotated[str, Argument(metavar="DIR", help="The folder, or s3://bucket/prefix.")],
    *,
    priority: reading.Priority = Lane.NORMAL,
    reading_options: reading.ReadingOptions,
    writing: reading.WritingOptions,
    jobs: reading.JobOptions,
    places: FolderOptions,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object for each document.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print no names of documents, as for a log.")] = False,
) -> None:
    """Read every document that is put into a folder, once, until Ctrl-C or SIGTERM.

    A file is read once it is complete, then moved to DIR/done with its result; with --keep it stays. A failed document
    goes to DIR/failed, with the reason. Objects of a bucket stay where they are; it is listed every 30 s, or --poll.

    Example: `pecia watch-folder inbox/ --recursive --format markdown`
    """
    Delivery(form=places.form, target=f"{where}{os.sep}").check({ReadDocument.kind}, 1)
    task = reading_options.task(writing, cache=not jobs.no_cache)
    options = {
        "priority": priority,
        "metadata": values.metadata(jobs.metadata),
        "webhook": jobs.webhook,
        "batch": arguments.checked_batch(jobs.batch) or reading.new_name("watch"),
    }
    ending = Ending.DONE

    def report(name: str, job: AnyJob | None, result: str | None, why: Failure | str | None) -> None:
        nonlocal ending
        if why is not None or (job and job.state is not JobState.SUCCEEDED):
            ending = Ending.FAILED
        if not quiet:
            _report(name, job, result, why, as_json=as_json)

    with _stopping() as stop, Client() as client, ExitStack() as stack:
        common: dict[str, Any] = {
            "client": client,
            "task": task,
            "options": options,
            "form": places.form,
            "recursive": places.recursive,
            "report": report,
        }
        watch: Watch | BucketWatch
        poll = places.poll
        if in_bucket(where):
            poll = poll or _RESCAN_S
            watch = _bucket_watch(where, places, common)
            looks = _polled(poll, stop)
        else:
            folder = Path(where)
            if not folder.is_dir():
                raise BadParameter(f"'{folder}' is not a folder", param_hint="DIR")
            watch = Watch(
                places=Places.of(folder, places),
                journal=stack.enter_context(Journal.open(folder)),
                stillness=Stillness(places.settle),
                **common,
            )
            looks = _polled(poll, stop) if poll else _announced(folder, recursive=places.recursive, stop=stop)
        if not places.once:
            endings.complain(f"watching {where}; press Ctrl-C to end.")
        with unserved_reported(lambda: (job for job in list(watch.jobs.values()) if not job.done)):
            _run(watch, looks, polls=bool(poll), once=places.once)
    raise typer.Exit(ending if places.once else Ending.DONE)


def _report(
    name: str, job: AnyJob | None, result: str | None, why: Failure | str | None, *, as_json: bool
) -> None:
    failure = output.failure_json(why) if isinstance(why, Failure) else why and {"code": None, "message": why}
    if as_json:
        output.json_line(
            {
                "file": name,
                "job": job and job.id,
                "state": job.state if job else JobState.FAILED,
                "progress": job and job.progress,
                "result": result,
                "failure": failure,
            }
        )
    elif why is not None:
        code = f"{why.code}: {why.message}" if isinstance(why, Failure) else why
        endings.complain(f"{output.printable(name)}: {code}")
    elif job is not None:
        lacks = f", {job.progress.failed} failed" if job.progress.failed else ""
        pages = f"{job.progress.done} page{'s' if job.progress.done != 1 else ''}"
        typer.echo(f"{output.printable(name)}: {pages}{lacks}: {output.printable(str(result))}")
