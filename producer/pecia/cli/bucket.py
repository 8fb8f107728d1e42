"""`pecia watch-folder s3://bucket/prefix`: reads each version of an object once and leaves the objects in place."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from typer import BadParameter

from pecia.cli.backfill import Found, documents_below
from pecia.cli.inbox import Watcher, missing_pages, reason_text
from pecia.errors import InvalidSourceError
from pecia.exporting import Place
from pecia.job import AnyJob
from pecia_schemas.encryption import Keyring
from pecia_schemas.failures import Failure
from pecia_schemas.payloads import in_bucket
from pecia_schemas.states import JobState
from pecia_schemas.tasks import task_to_json

_IN_FLIGHT: Final = 200
_JOURNAL: Final = ".pecia"


@dataclass(slots=True, kw_only=True)
class BucketWatch(Watcher):
    """Reads the objects below a prefix. An empty object in the journal, `.pecia/`, marks each version that ended."""

    where: str
    out: str
    failed: str
    keys: Keyring
    _marks: dict[str, str] = field(default_factory=dict)
    """Of the objects that are read: each the name of its version in the journal."""
    _over: set[str] = field(default_factory=set)
    _journal: Place = field(init=False)
    _out: Place = field(init=False)
    _failed: Place = field(init=False)

    def __post_init__(self) -> None:
        """Read the journal. Raises `typer.BadParameter`, `UnavailableError`."""
        bucket, prefix = in_bucket(self.where) or ("", "")
        if not bucket:
            raise BadParameter("name a bucket: s3://bucket/prefix", param_hint="DIR")
        self.where = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
        self._out, self._failed, self._journal = Place(self.out), Place(self.failed), Place(self.where)
        self._over = {Path(path).name for path in self._journal.below(_JOURNAL)}

    @property
    def is_busy(self) -> bool:
        """Whether objects are being read or wait for it."""
        return self.waiting or bool(self.jobs)

    def open_entries(self) -> list[str]:
        """Return the names of the objects that have not ended."""
        return list(self.jobs)

    def search(self) -> None:
        """List the objects once, and submit those whose version is new. Raises `PeciaError`."""
        fresh: dict[str, Found] = {}
        waiting, self.waiting = False, True  # until all new objects are submitted
        for found in documents_below(self.where):
            name = found.name.removeprefix(self.where).lstrip("/")
            mark = self._mark(found)
            is_open = name in self.jobs and self._marks[name] == mark
            if self._is_passed_over(name, found.name) or mark in self._over or is_open:
                continue
            if len(self.jobs) + len(fresh) >= _IN_FLIGHT:
                waiting = True
                break
            if job := self.jobs.pop(name, None):
                job.cancel(reason="the object has changed")
            fresh[name], self._marks[name] = found, mark
        self._submit(fresh)
        self.waiting = waiting

    def _is_passed_over(self, name: str, url: str) -> bool:
        if not self.recursive and "/" in name:
            return True
        places = (self.out, self.failed, f"{self.where}/{_JOURNAL}")
        return any(
            url.startswith(f"{place.rstrip('/')}/") for place in places if place.rstrip("/") != self.where
        )

    def _mark(self, found: Found) -> str:
        """Return the journal name of a version and its options. Without the encryption key it cannot be guessed."""
        parts = [found.name, found.version, task_to_json(self.task), self.form]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return self.keys.name_of(digest, self.keys.current)

    def _submit(self, fresh: Mapping[str, Found]) -> None:
        if not fresh:
            return
        documents = {name: (found.source, f"watch/{self._marks[name]}") for name, found in fresh.items()}
        for name, why in self.submit(documents).items():
            if not isinstance(why, InvalidSourceError):
                raise why
            self._close(name, None, None, str(why))

    def end(self, name: str, job: AnyJob) -> None:
        """Write the result, and mark the object's version."""
        result = f"{name}{self.form.suffix}"
        with tempfile.TemporaryDirectory(prefix="pecia-watch-") as scratch:
            written = Path(scratch) / f"result{self.form.suffix}"
            if why := self.save(job, written):
                self._close(name, job, None, why)
                return
            self._out.put(result, written)
        if job.state is JobState.PARTIAL:
            self._failed.put(f"{name}.error.txt", reason_text(job, missing_pages(job)).encode())
        self._close(name, job, f"{self.out.rstrip('/')}/{result}", None)

    def _close(self, name: str, job: AnyJob | None, result: str | None, why: Failure | str | None) -> None:
        if why is not None:
            self._failed.put(f"{name}.error.txt", reason_text(job, why).encode())
        mark = self._marks.pop(name)
        self._journal.put(f"{_JOURNAL}/{mark}", b"")
        self._over.add(mark)
        self.jobs.pop(name, None)
        self.report(name, job, result, why)
