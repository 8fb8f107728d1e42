"""The files of a watched folder: which of them are complete, and the journal of those that are read."""

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

from pecia.cli.values import label_of
from pecia.client import Client
from pecia.errors import (
    JobError,
    JobFailedError,
    JobNotFoundError,
    SubmitError,
    SubmitManyError,
    UnavailableError,
)
from pecia.formats import Format
from pecia.job import AnyJob
from pecia.request import Submission
from pecia.saving import replacing
from pecia_schemas.failures import Failure
from pecia_schemas.tasks import ReadPages

_PARTIAL: Final = (
    ".part",
    ".partial",
    ".filepart",
    ".crdownload",
    ".download",
    ".opdownload",
    ".tmp",
    ".temp",
)
_LEFT_ALONE: Final = re.compile(r"\.|~\$|.*~$|(?:thumbs\.db|desktop\.ini)$", re.IGNORECASE)
"""Hidden files, Office lock files, editor backups, and files that file managers leave behind."""
_HOME: Final = ".pecia"
_LEAST_COMPACTED: Final = 1_000
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of network drives that support no locks."""

Print = tuple[int, int, int]
"""Size, modification time in nanoseconds and inode of a file. It changes whenever the file is written or replaced."""


def is_partial(name: str, names: Collection[str] = ()) -> bool:
    """Return whether a name belongs to a file that is still being written, or that is never read, such as a lock file.

    A browser's `scan.pdf` is empty while `scan.pdf.part`, another of `names`, grows.
    """
    lower = name.lower()
    return (
        lower.endswith(_PARTIAL)
        or _LEFT_ALONE.match(name) is not None
        or any(f"{name}{suffix}" in names for suffix in _PARTIAL)
    )


class Stillness:
    """Finds complete files: those unchanged over two looks at least this many seconds apart."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, tuple[Print, float]] = {}

    def whole(self, prints: Mapping[str, Print], now: float) -> list[str]:
        """Return the names of the complete files, the longest unchanged first, and store the state of all files."""
        former, self._since = self._since, {}
        whole: list[tuple[float, str]] = []
        for name, print_ in prints.items():
            known, since = former.get(name, (None, now))
            if known == print_ and now - since >= self._seconds:
                whole.append((since, name))
            self._since[name] = (print_, since if known == print_ else now)
        return [name for _, name in sorted(whole)]


def print_of(path: Path) -> Print | None:
    """Return the print of a file, or None if the file is missing."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_size, about.st_mtime_ns, about.st_ino


def files_in(folder: Path, *, recursive: bool, passed_over: Collection[Path]) -> dict[str, Print]:
    """Return the readable files of a folder by their relative names. Raises `OSError` if the folder is unavailable."""
    found: dict[str, Print] = {}

    def away(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    for where, folders, names in os.walk(folder, onerror=away):
        folders[:] = sorted(
            name
            for name in folders
            if recursive and not name.startswith(".") and Path(where, name).resolve() not in passed_over
        )
        beside = set(names)
        for name in names:
            path = Path(where, name)
            if not is_partial(name, beside) and path.is_file() and (print_ := print_of(path)):
                found[str(path.relative_to(folder))] = print_
    return found


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or an empty string if it is unreadable, which its submit reports."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        return ""


def numbered(name: str) -> Iterator[str]:
    """Yield the name, then variants with a number, such as `scan-2.pdf`."""
    path = Path(name)
    return chain([name], (str(path.with_name(f"{path.stem}-{number}{path.suffix}")) for number in count(2)))


Report = Callable[[str, AnyJob | None, str | None, Failure | str | None], None]
"""Reports an ended document: its name, its job, the place of its result, and the reason of a failure."""


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Submits documents by their names, and settles each document whose job has ended."""

    client: Client
    task: ReadPages[Any]
    options: Mapping[str, Any]
    """Options of each submit."""
    form: Format
    recursive: bool
    report: Report
    waiting: bool = True
    """Whether documents are there that were not submitted."""
    jobs: dict[str, AnyJob] = field(default_factory=dict)
    """Of the documents that are read, by name."""

    def submit(self, documents: Mapping[str, tuple[Path | str, str]]) -> dict[str, SubmitError]:
        """Submit documents, each with its source and idempotency key; return which were refused, and why."""
        refused: Mapping[int, SubmitError] = {}
        try:
            jobs = self.client.submit_many(
                [
                    Submission(replace(self.task, source=source), key=key, label=label_of(name))
                    for name, (source, key) in documents.items()
                ],
                **self.options,
            )
        except SubmitManyError as error:
            jobs, refused = self.client.group(error.accepted), error.failures
        names = list(documents)
        accepted = (name for number, name in enumerate(names) if number not in refused)
        self.jobs |= zip(accepted, jobs, strict=True)
        return {names[number]: why for number, why in refused.items()}

    def settle(self) -> None:
        """Save the results of ended jobs. Raises `OSError`, `PeciaError`; the next call continues where it stopped."""
        if not self.jobs:
            return
        try:
            self.client.group(self.jobs.values()).refresh()
        except JobNotFoundError as error:  # submitted again by its key
            self.jobs = {name: job for name, job in self.jobs.items() if job.id != error.job_id}
            self.waiting = True
            return
        for name, job in list(self.jobs.items()):
            if job.done:
                self.end(name, job)

    def end(self, name: str, job: AnyJob) -> None:
        """Save the result of an ended job, or the reason why it has none."""
        raise NotImplementedError

    def save(self, job: AnyJob, path: Path) -> Failure | str | None:
        """Save the result of a job to a file; return why there is none."""
        try:
            job.save(path, self.form, timeout=0)
        except JobFailedError as error:
            return error.failure
        except JobError as error:
            return str(error)
        return None


def missing_pages(job: AnyJob) -> str:
    """Return a sentence about the pages that a partial result lacks."""
    progress = job.progress
    return f"{progress.failed} of {progress.total} pages could not be read; the result has the others."


def reason_text(job: AnyJob | None, why: Failure | str) -> str:
    """Return the text of the file beside a failed document: code, what happened, and what to do."""
    if isinstance(why, Failure):
        sentence = why.message.removesuffix(why.code.advice).strip() or why.code.meaning
        lines = [f"Code: {why.code}", sentence, f"Next: {why.code.advice}"]
    else:
        lines = [why]
    lines.append("To read the document again, put it into the watched folder again.")
    if job is not None:
        lines.append(f"Job: {job.id} (`pecia status {job.id}`)")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One document of the folder, from before its submit until it is moved; kept forever if the document stays."""

    name: str
    """Path of the document, relative to the folder."""
    print: Print
    digest: str
    """SHA-256 of the document's content; empty if the document is moved."""
    key: str
    """Idempotency key of the document: repeated submits read it once."""
    place: str
    """Name of the document in the folder to which it is moved."""
    result: str
    """Path of the document's result, relative to the folder."""
    kept: bool = False
    """Whether the document has ended and stays where it is."""

    @classmethod
    def new(cls, name: str, print_: Print, *, digest: str, place: str, result: str) -> Self:
        """Return the entry of a new document, with a new idempotency key."""
        key = f"watch-folder/{uuid4()}"
        return cls(name=name, print=print_, digest=digest, key=key, place=place, result=result)


class Journal:
    """The entries of a folder, in a file there: one line for each change; the last line for a name counts."""

    def __init__(self, home: Path) -> None:
        self._path = home / "watched.jsonl"
        self.entries: dict[str, Entry] = {}
        self._lines = 0
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                self._take(line)
        self._compact()

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Self]:
        """Yield the journal of a folder, locked against other processes. Raises `UnavailableError`, `OSError`."""
        home = folder / _HOME
        home.mkdir(mode=0o700, exist_ok=True)
        with (home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise UnavailableError(
                        "Another `pecia watch-folder` watches this folder: end it first."
                    ) from None
            yield cls(home)

    def check(self) -> None:
        """Raise `OSError` if the folder is unavailable: then its missing documents were not removed."""
        self._path.stat()

    def write(self, entries: Sequence[Entry]) -> None:
        """Add or replace entries."""
        self._append([asdict(entry) for entry in entries])
        self.entries |= {entry.name: entry for entry in entries}

    def remove(self, entry: Entry) -> None:
        """Delete an entry."""
        self._append([{"name": entry.name, "gone": True}])
        self.entries.pop(entry.name, None)

    def _append(self, changes: Sequence[Mapping[str, object]]) -> None:
        if not changes:
            return
        # Starts a line of its own, because a full disk or a killed process may have cut the last one.
        content = "".join(f"\n{json.dumps(change)}\n" for change in changes)
        with self._path.open("ab", buffering=0) as file:
            if file.write(content.encode()) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.fsync(file.fileno())
        self._lines += len(changes)
        if self._lines > _LEAST_COMPACTED + 2 * len(self.entries):
            self._compact()

    def _take(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError):  # a cut line
            change = json.loads(line)
            if change.pop("gone", False):
                self.entries.pop(change["name"], None)
            else:
                entry = Entry(**change | {"print": tuple(change["print"])})
                self.entries[entry.name] = entry

    def _compact(self) -> None:
        """Write the file anew, with one line for each entry."""
        with replacing(self._path) as file:
            file.write_text("".join(f"{json.dumps(asdict(entry))}\n" for entry in self.entries.values()))
        self._lines = len(self.entries)
