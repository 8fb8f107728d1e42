"""What a watched folder holds: which files are whole, and the journal of those that are read."""

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
"""Hidden files, lock files of Office, copies of editors, and what file managers leave."""
_HOME: Final = ".pecia"
_LEAST_COMPACTED: Final = 1_000
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Said by network drives that have no locks."""

Print = tuple[int, int, int]
"""Size, time of change in nanoseconds and inode of a file: another whenever it is written or replaced."""


def is_partial(name: str, names: Collection[str] = ()) -> bool:
    """Return whether a name is that of a file which is still written, or of none that is to be read.

    A browser's `scan.pdf` is empty while `scan.pdf.part`, another of the names, grows.
    """
    lower = name.lower()
    return (
        lower.endswith(_PARTIAL)
        or _LEFT_ALONE.match(name) is not None
        or any(f"{name}{suffix}" in names for suffix in _PARTIAL)
    )


class Stillness:
    """Tells which files are whole: unchanged over two looks that are so many seconds apart."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, tuple[Print, float]] = {}

    def whole(self, prints: Mapping[str, Print], now: float) -> list[str]:
        """Return the names of those that are, the longest unchanged first. Takes in how all of them are now."""
        former, self._since = self._since, {}
        whole: list[tuple[float, str]] = []
        for name, print_ in prints.items():
            known, since = former.get(name, (None, now))
            if known == print_ and now - since >= self._seconds:
                whole.append((since, name))
            self._since[name] = (print_, since if known == print_ else now)
        return [name for _, name in sorted(whole)]


def print_of(path: Path) -> Print | None:
    """Return the print of a file; None if it is not there."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_size, about.st_mtime_ns, about.st_ino


def files_in(folder: Path, *, recursive: bool, passed_over: Collection[Path]) -> dict[str, Print]:
    """Return the files of a folder that may be read, by their names below it. Raises `OSError` if it is away."""
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
    """Return the SHA-256 of a file; empty for one that may not be read, which its submit says."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        return ""


def numbered(name: str) -> Iterator[str]:
    """Yield a name, then others with a number, as in `scan-2.pdf`."""
    path = Path(name)
    return chain([name], (str(path.with_name(f"{path.stem}-{number}{path.suffix}")) for number in count(2)))


Report = Callable[[str, AnyJob | None, str | None, Failure | str | None], None]
"""Reports a document that has ended: its name, its job, where its result is, and why it failed."""


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Submits documents by their names, and ends each whose job is over."""

    client: Client
    task: ReadPages[Any]
    options: Mapping[str, Any]
    """Of each submit."""
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
        """Save the results of jobs that are over. Raises `OSError`, `PeciaError`; the next call goes on."""
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
        """Save the result of a job that is over, or the reason why there is none."""
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
    """Return what the file beside a failed document says: code, what happened, and what to do."""
    if isinstance(why, Failure):
        sentence = why.message.removesuffix(why.code.advice).strip() or why.code.meaning
        lines = [f"Code: {why.code}", sentence, f"Next: {why.code.advice}"]
    else:
        lines = [why]
    lines.append("A document that is put into the watched folder again is read again.")
    if job is not None:
        lines.append(f"Job: {job.id} (`pecia status {job.id}`)")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One document of the folder, from before it is submitted until it is moved; for ever if it stays."""

    name: str
    """Below the folder."""
    print: Print
    digest: str
    """Of its content; empty for a document that is moved."""
    key: str
    """Its idempotency key: however often it is submitted, it is read once."""
    place: str
    """What it is called where it is moved to."""
    result: str
    """Where its result is written, seen from the folder."""
    kept: bool = False
    """Whether it is over and stays where it is."""

    @classmethod
    def new(cls, name: str, print_: Print, *, digest: str, place: str, result: str) -> Self:
        """Return the entry of a document that was not read before."""
        key = f"watch-folder/{uuid4()}"
        return cls(name=name, print=print_, digest=digest, key=key, place=place, result=result)


class Journal:
    """The entries of a folder, in a file there: a line for each change, of which the last one of a name counts."""

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
        """Yield the journal of a folder, which no other process has open. Raises `UnavailableError`, `OSError`."""
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
        """Raise `OSError` if the folder is away: then its documents are not gone."""
        self._path.stat()

    def write(self, entries: Sequence[Entry]) -> None:
        """Add or replace entries."""
        self._append([asdict(entry) for entry in entries])
        self.entries |= {entry.name: entry for entry in entries}

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self._append([{"name": entry.name, "gone": True}])
        self.entries.pop(entry.name, None)

    def _append(self, changes: Sequence[Mapping[str, object]]) -> None:
        if not changes:
            return
        # A line of its own also after one that a full disk or the end of a process has cut.
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
