"""The files of a watched folder: which of them are complete, and the journal of those that are read."""

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from pecia.errors import UnavailableError
from pecia.job import AnyJob
from pecia_schemas.failures import Failure

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


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file so that readers see it complete or not at all."""
    scratch = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
    try:
        scratch.write_bytes(content)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


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
        content = "".join(f"{json.dumps(asdict(entry))}\n" for entry in self.entries.values())
        write_atomically(self._path, content.encode())
        self._lines = len(self.entries)
