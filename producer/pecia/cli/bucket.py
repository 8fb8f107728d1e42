"""`pecia watch-folder s3://bucket/prefix`: reads each version of an object once and leaves the objects in place."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from typer import BadParameter

from pecia.cli.backfill import Found, documents_below
from pecia.cli.inbox import reason_text
from pecia.cli.values import label_of
from pecia.client import Client
from pecia.errors import InvalidSourceError, JobError, JobFailedError, JobNotFoundError, SubmitManyError
from pecia.exporting import Place
from pecia.formats import Format
from pecia.job import AnyJob
from pecia.request import Submission
from pecia_schemas.encryption import Keyring
from pecia_schemas.failures import Failure
from pecia_schemas.payloads import in_bucket
from pecia_schemas.states import JobState
from pecia_schemas.tasks import ReadPages, task_to_json

_IN_FLIGHT: Final = 200
_JOURNAL: Final = ".pecia"

Report = Callable[[str, AnyJob | None, str | None, Failure | str | None], None]
"""Reports an ended document: its name, its job, the place of its result, and the reason of a failure."""


@dataclass(slots=True)
class BucketWatch:
    """Reads the objects below a prefix. An empty object in the journal, `.pecia/`, marks each version that ended."""

    client: Client
    task: ReadPages[Any]
    options: Mapping[str, Any]
    """Options of each submit."""
    where: str
    out: str
    failed: str
    form: Format
    recursive: bool
    keys: Keyring
    report: Report
    waiting: bool = True
    """Whether more objects wait than may be read at a time."""
    jobs: dict[str, AnyJob] = field(default_factory=dict)
    """Jobs of the objects that are being read, by their names below the prefix."""
    _marks: dict[str, str] = field(default_factory=dict)
    """The journal names of the versions of the same objects."""
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
        names = list(fresh)
        submissions = [
            Submission(
                replace(self.task, source=fresh[name].source),
                key=f"watch/{self._marks[name]}",
                label=label_of(name),
            )
            for name in names
        ]
        refused: Mapping[int, Exception] = {}
        try:
            jobs = self.client.submit_many(submissions, **self.options)
        except SubmitManyError as error:
            jobs, refused = self.client.group(error.accepted), error.failures
        accepted = (name for number, name in enumerate(names) if number not in refused)
        self.jobs |= dict(zip(accepted, jobs, strict=True))
        for number, why in refused.items():
            if not isinstance(why, InvalidSourceError):
                raise why
            self._close(names[number], None, None, str(why))

    def settle(self) -> None:
        """Write the results of ended jobs. Raises `OSError`, `PeciaError`; the next call continues where it stopped."""
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
                self._end(name, job)

    def _end(self, name: str, job: AnyJob) -> None:
        result = f"{name}{self.form.suffix}"
        with tempfile.TemporaryDirectory(prefix="pecia-watch-") as scratch:
            try:
                written = job.save(Path(scratch) / f"result{self.form.suffix}", self.form, timeout=0)
            except JobFailedError as error:
                self._close(name, job, None, error.failure)
                return
            except JobError as error:
                self._close(name, job, None, str(error))
                return
            self._out.put(result, written)
        progress = job.progress
        if job.state is JobState.PARTIAL:
            sentence = (
                f"{progress.failed} of {progress.total} pages could not be read; the result has the others."
            )
            self._failed.put(f"{name}.error.txt", reason_text(job, sentence).encode())
        self._close(name, job, f"{self.out.rstrip('/')}/{result}", None)

    def _close(self, name: str, job: AnyJob | None, result: str | None, why: Failure | str | None) -> None:
        if why is not None:
            self._failed.put(f"{name}.error.txt", reason_text(job, why).encode())
        mark = self._marks.pop(name)
        self._journal.put(f"{_JOURNAL}/{mark}", b"")
        self._over.add(mark)
        self.jobs.pop(name, None)
        self.report(name, job, result, why)
