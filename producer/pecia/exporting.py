"""Exports the results of many jobs to files in a folder or below `s3://bucket/prefix`.

Files are written in steps of some hundred jobs, each step's part of the manifest after its files. So a run that repeats
an interrupted one redoes at most one step. Memory holds one step, and a hash of each job that was exported before. Only
one run at a time may write to a place.
"""

import csv
import errno
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from obstore.exceptions import BaseError
from obstore.store import LocalStore

from pecia.bundles import MANIFEST, Layout
from pecia.configuration import document_settings
from pecia.errors import ConfigurationError, IdentityConflictError, InvalidFormatError, UnavailableError
from pecia.formats import Format, check, check_patients, render
from pecia.formats.text import every_page
from pecia.handles import JobHandle, assemble
from pecia.records import Exported, PartOutcome
from pecia.saving import Draw, Stems, stem_of
from pecia_schemas.bundled import Bundle
from pecia_schemas.installing import install_command
from pecia_schemas.payloads import in_bucket, open_bucket
from pecia_schemas.results import BundledDocument, Captions, Document, PageFailure, SegmentFailure, Verdict

if TYPE_CHECKING:
    from obstore.store import S3Store

_RETRIES: Final = 3
_STEP_JOBS: Final = 200
_STEP_BYTES: Final = 32 * 1024**2
_PARTS: Final = "manifest"
_WORST: Final = {verdict: rank for rank, verdict in enumerate(Verdict)}


class ExportFormat(StrEnum):
    """A format in which many results are written."""

    JSONL = "jsonl"
    """One line for each job, in files of some hundred lines."""
    PARQUET = "parquet"
    """One row for each page or segment, in files of some hundred jobs."""
    MARKDOWN = "markdown"
    CSV = "csv"
    HOCR = "hocr"
    PDF = "pdf"
    FHIR = "fhir"
    """For bundles only."""
    TABLES = "tables"
    """All tables of all documents in one CSV file, `tables.csv`, with one row for each cell."""
    TABLES_PARQUET = "tables-parquet"
    """The same as Parquet, `tables.parquet`."""

    @property
    def of_one(self) -> Format | None:
        """The format of a file for one job, or None if a file holds many jobs."""
        holds_many = self.of_tables or self in (ExportFormat.JSONL, ExportFormat.PARQUET)
        return None if holds_many else Format(self.value)

    @property
    def of_tables(self) -> bool:
        """Whether only tables are exported."""
        return self in (ExportFormat.TABLES, ExportFormat.TABLES_PARQUET)


class Place:
    """The destination of an export: a folder or a bucket prefix."""

    def __init__(self, to: str | os.PathLike[str]) -> None:
        where = os.fspath(to)
        self._prefix = ""
        self._store: LocalStore | S3Store
        if found := in_bucket(where):
            bucket, prefix = found
            if not bucket:
                raise InvalidFormatError("Name a bucket: s3://bucket/prefix.")
            self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
            self._store = open_bucket(bucket, document_settings(), retries=_RETRIES)
        else:
            with _answering():
                Path(where).mkdir(parents=True, exist_ok=True)
                if not os.access(where, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                self._store = LocalStore(Path(where).absolute())

    def put(self, name: str, content: bytes | Path) -> None:
        """Write a file atomically."""
        with _answering():
            self._store.put(self._prefix + name, content)

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        with _answering():
            return bytes(self._store.get(self._prefix + name).bytes())

    def below(self, folder: str) -> Iterator[str]:
        """Yield the names of the files below a folder, in no order."""
        with _answering():
            for one in chain.from_iterable(self._store.list(f"{self._prefix}{folder}/")):
                yield one["path"].removeprefix(self._prefix)


@dataclass(slots=True)
class _Step:
    """Jobs of the step that is not in the manifest yet."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Exportable:
    """A job with its result, and the outputs that must be rendered with pictures."""

    job: JobHandle[Any]
    result: Document | Captions | None
    """None if the job has no result; the manifest records that."""
    drawn: tuple[int | None, ...] = ()
    """Numbers of bundle documents to render; None in place of a number stands for the complete result."""


class Exporter:
    """One run of an export. The last step of an unfinished run is repeated by the next run."""

    def __init__(
        self, to: str | os.PathLike[str], form: ExportFormat | str | None, layout: Layout | None = None
    ) -> None:
        """Export in this format, bundles by `layout` if given. Raises `InvalidFormatError`."""
        self._layout = layout
        try:
            self._form = ExportFormat(form or ("pdf" if layout else "jsonl"))
        except ValueError:
            raise InvalidFormatError(f"An export format must be one of {', '.join(ExportFormat)}.") from None
        if layout and self._form.of_one is None:
            forms = ", ".join(one for one in ExportFormat if one.of_one)
            raise InvalidFormatError(f"Documents of bundles become single files: use one of {forms}.")
        self.draws = Format.PDF if self._form is ExportFormat.PDF else None
        """The format that needs the pages' pictures, or None."""
        if self._form in (ExportFormat.PARQUET, ExportFormat.TABLES_PARQUET):
            _parquet()
        self._place = Place(to)
        self._known: set[int] = set()
        self._stems = Stems()
        self._files: dict[int, str] = {}
        """Files of earlier runs by a hash of the job's id, for formats with a file for each job and for tables."""
        self._number = 0
        for name in self._place.below(_PARTS):
            self._number = max(self._number, int(Path(name).stem))
            for line in self._place.get(name).splitlines():
                entry = json.loads(line)
                if entry["format"] == self._form and entry.get("by") == (layout and layout.by):
                    if entry.get("held_back"):  # documents held back may have been reviewed since
                        self._note(entry)
                        continue
                    self._known.add(hash((entry["id"], entry["state"], entry["finished_at"])))
                    if entry["file"] and (self._form.of_one or self._form.of_tables):
                        self._note(entry)
        self._step = _Step()
        self.exported = Exported()

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Remember the file of a job in the manifest, the latest if it has several."""
        key, file = hash(entry["id"]), entry["file"]
        if self._form.of_one and key not in self._files:
            self._stems.add(Path(file).parent.name or Path(file).stem)
        self._files[key] = max(self._files.get(key, ""), file)

    def finish(self) -> Exported:
        """Write the rest of the last step, and return the summary."""
        self._flush()
        if self._form.of_tables:
            self._write_tables()
        return self.exported

    def wants(self, job: JobHandle[Any]) -> bool:
        """Return whether a job has ended and is not exported in its current state; count it if not."""
        if not job.done:
            self.exported.open += 1
            return False
        if hash(_entry_of(job)) in self._known:
            self.exported.before += 1
            return False
        return True

    def prepare(self, job: JobHandle[Any], ended: Sequence[PartOutcome] | None) -> Exportable:
        """Return a job with the result of its parts, or without one for None."""
        result = None if ended is None else assemble(job.kind, ended)
        if not self.draws or not isinstance(result, Document):
            return Exportable(job, result)
        layout = self._layout_of(result)
        if layout is None:
            return Exportable(job, result, (None,))
        drawn = (
            one.part.number
            for one in cast("Bundle", result).documents
            if layout.with_conflicts or not one.part.has_conflict
        )
        return Exportable(job, result, tuple(drawn))

    def _layout_of(self, result: Document | Captions) -> Layout | None:
        """Return how the documents of a bundle become files of their own, as those of several patients always do.

        None if the bundle becomes one file.
        """
        if not isinstance(result, Bundle) or self._form.of_one is None:
            return None
        try:
            check_patients(result, self._form.of_one)
        except IdentityConflictError:
            return self._layout or Layout()
        return self._layout

    def add(self, one: Exportable, draws: Mapping[int | None, Draw]) -> None:
        """Write a result; `draws` renders outputs with pictures.

        Raises `InvalidFormatError` if results of this kind do not have the format.
        """
        job, result = one.job, one.result
        step, file, digest, held_back = self._step, None, None, 0
        if result is None:
            self.exported.empty += 1
        else:
            self.exported.written += 1
            form = self._form.of_one
            if form is not None:
                stem = stem_of(job.label) or str(job.id)
                if layout := self._layout_of(result):
                    file = self._files.get(hash(str(job.id))) or f"{self._stems.add(stem)}/{MANIFEST}"
                    digest, held_back = self._write_documents(one, layout, form, file, draws)
                else:
                    file = self._files.get(hash(str(job.id))) or f"{self._stems.add(stem)}{form.suffix}"
                    digest = self._write(result, form, file, draws.get(None))
            elif self._form is ExportFormat.JSONL:
                step.lines.append(_line(job, result))
                step.size += len(step.lines[-1])
            else:
                rows = list(_cells(job, result) if self._form.of_tables else _rows(job, result))
                step.rows += rows
                step.size += sum(len(row["text"] or "") + len(row.get("fields") or "") for row in rows)
        self.exported.held_back += held_back
        identifier, state, finished_at = _entry_of(job)
        pieces = result.pages if isinstance(result, Document) else result.segments if result else ()
        step.entries.append(
            {
                "id": identifier,
                "label": job.label,
                "state": state,
                "verdict": max((one.verdict for one in pieces), key=_WORST.__getitem__, default=None),
                "finished_at": finished_at,
                "format": self._form,
                "file": file,
                "sha256": digest,
                "shared": file is None and result is not None,
            }
            | ({"by": self._layout.by} if self._layout else {})
            | ({"held_back": held_back} if self._layout or held_back else {})
        )
        if len(step.entries) >= _STEP_JOBS or step.size >= _STEP_BYTES:
            self._flush()

    def _write_documents(
        self, one: Exportable, layout: Layout, form: Format, file: str, draws: Mapping[int | None, Draw]
    ) -> tuple[str, int]:
        """Write the documents of a bundle. Return the SHA-256 of their manifest, and how many are held back."""
        folder, bundle = Path(file).parent, cast("Bundle", one.result)

        def save(document: BundledDocument, name: str) -> str:
            return self._write(document, form, f"{folder}/{name}", draws.get(document.part.number))

        _, held, manifest = layout.write(one.job.id, bundle, form.suffix, save)
        content = manifest.encode()
        self._place.put(file, content)
        return hashlib.sha256(content).hexdigest(), len(held) or int(bundle.split is None)

    def _write(self, result: Document | Captions, form: Format, file: str, draw: Draw | None) -> str:
        """Write a file and return its SHA-256."""
        check(form, type(result))
        if isinstance(result, Document) and draw is not None:
            with tempfile.TemporaryDirectory(prefix="pecia-export-") as scratch:
                written = Path(scratch) / Path(file).name
                draw(result, written)
                self._place.put(file, written)
                with written.open("rb") as stream:
                    return hashlib.file_digest(stream, "sha256").hexdigest()
        content = render(result, form).encode()
        self._place.put(file, content)
        self._step.size += len(content)
        return hashlib.sha256(content).hexdigest()

    def _flush(self) -> None:
        step, self._step = self._step, _Step()
        if not step.entries:
            return
        self._number += 1
        name: str | None
        digest = None
        if self._form.of_tables:
            name, content = f"tables/{self._number:06}.csv", _csv(step.rows)
        else:
            name = f"part-{self._number:06}.{self._form.value}"
            content = b"".join(step.lines) or (_table(step.rows) if step.rows else b"")
        if content:
            digest = hashlib.sha256(content).hexdigest()
            self._place.put(name, content)
        for entry in step.entries:
            if entry.pop("shared") and digest:
                entry |= {"file": name, "sha256": digest}
                if self._form.of_tables:
                    self._note(entry)
        manifest = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in step.entries)
        self._place.put(f"{_PARTS}/{self._number:06}.jsonl", manifest.encode())

    def _write_tables(self) -> None:
        """Write one file with the tables of all jobs, each job's from its latest export."""
        form = "parquet" if self._form is ExportFormat.TABLES_PARQUET else "csv"
        with tempfile.TemporaryDirectory(prefix="pecia-export-") as scratch:
            path = Path(scratch) / f"tables.{form}"
            with _answering(), _cell_writer(path) as write:
                for name in sorted(set(self._files.values())):
                    rows = csv.DictReader(io.StringIO(self._place.get(name).decode(), newline=""))
                    write([row for row in rows if self._files.get(hash(row["job"])) == name])
            self._place.put(path.name, path)


_CELL: Sequence[str] = (
    *("document", "job", "page", "table"),
    *("row", "column", "row_span", "column_span", "text"),
)
"""Columns of the tables' file. Pages and tables count from 1, as in `pecia result --table`; rows and columns from 0."""


def _cells(job: JobHandle[Any], result: Document | Captions) -> Iterator[dict[str, Any]]:
    """Yield one row for each cell of all tables. Tables are numbered through the document."""
    number = 0
    for page in result.pages if isinstance(result, Document) else ():
        for table in page.tables:
            number += 1
            about = {"document": job.label, "job": str(job.id), "page": page.number, "table": number}
            for cell in table.cells:
                yield about | {name: getattr(cell, name) for name in _CELL[4:]}


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    file = io.StringIO(newline="")
    _csv_writer(file).writerows(rows)
    return file.getvalue().encode()


def _csv_writer(file: TextIO) -> "csv.DictWriter[str]":
    writer: csv.DictWriter[str] = csv.DictWriter(file, _CELL)
    writer.writeheader()
    return writer


@contextmanager
def _cell_writer(path: Path) -> Iterator[Callable[[list[dict[str, str]]], None]]:
    """Yield a function that adds rows to a file of cells, in the format of its suffix."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            yield _csv_writer(file).writerows
        return
    pyarrow, parquet = _parquet()
    texts = ("document", "job", "text")
    schema = pyarrow.schema({name: pyarrow.string() if name in texts else pyarrow.int32() for name in _CELL})
    with parquet.ParquetWriter(path, schema) as file:

        def write(rows: list[dict[str, str]]) -> None:
            typed = [
                {name: value if name in texts else int(value) for name, value in row.items()} for row in rows
            ]
            file.write_table(pyarrow.Table.from_pylist(typed, schema=schema))

        yield write


def _entry_of(job: JobHandle[Any]) -> tuple[str, str, str | None]:
    """Return a job's identity and state in a manifest. A retry changes it."""
    return str(job.id), job.state.value, job.finished_at.isoformat() if job.finished_at else None


def _line(job: JobHandle[Any], result: Document | Captions) -> bytes:
    result_json = result.model_dump(mode="json")
    record = {"kind": job.kind, "metadata": dict(job.metadata), "result": result_json}
    text = json.dumps(_about(job) | record, ensure_ascii=False, default=datetime.isoformat)
    return f"{text}\n".encode()


def _about(job: JobHandle[Any]) -> dict[str, Any]:
    return {
        "job": str(job.id),
        "label": job.label,
        "state": job.state.value,
        "submitted_at": job.submitted_at,
        "finished_at": job.finished_at,
    }


def _rows(job: JobHandle[Any], result: Document | Captions) -> Iterator[dict[str, Any]]:
    """Yield one row for each page or segment, including failed ones."""
    about = _about(job) | {"metadata": list(job.metadata.items())}
    pieces: Any = every_page(result) if isinstance(result, Document) else (*result.segments, *result.failed)
    for piece in pieces:
        row = about | dict.fromkeys(("verdict", "text", "fields", "engine", "start_s", "end_s", "failure"))
        if isinstance(piece, PageFailure | SegmentFailure):
            row["failure"] = piece.failure.code.value
        else:
            row |= {"verdict": piece.verdict.value, "text": piece.text, "engine": piece.engine}
            if (fields := getattr(piece, "fields", None)) is not None:
                row["fields"] = json.dumps(fields, ensure_ascii=False)
            if isinstance(result, Captions):
                row |= {"start_s": piece.start.total_seconds(), "end_s": piece.end.total_seconds()}
        yield row | {"number": piece.number}


def _table(rows: list[dict[str, Any]]) -> bytes:
    """Return the rows as Parquet."""
    pyarrow, parquet = _parquet()
    moment, text, number = pyarrow.timestamp("us", tz="UTC"), pyarrow.string(), pyarrow.float64()
    columns = {
        **dict.fromkeys(("job", "label", "state"), text),
        "number": pyarrow.int32(),
        **dict.fromkeys(("verdict", "text", "fields", "engine"), text),
        **dict.fromkeys(("start_s", "end_s"), number),
        "failure": text,
        "metadata": pyarrow.map_(text, text),
        **dict.fromkeys(("submitted_at", "finished_at"), moment),
    }
    written = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(columns)), written)
    content: bytes = written.getvalue().to_pybytes()
    return content


def _parquet() -> tuple[Any, Any]:
    """Return the modules of pyarrow. Raises `ConfigurationError` if it is not installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415  comes with pecia[parquet]
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(f"Parquet needs pyarrow: {install_command('parquet')}") from None
    return pa, parquet


@contextmanager
def _answering() -> Iterator[None]:
    """Convert errors of the place to `UnavailableError`, because their texts may name a document."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise UnavailableError(
            f"The folder of the export cannot be used: {reason}. Name another one with --to."
        ) from None
    except BaseError as error:
        raise UnavailableError(
            f"The export cannot be written or read ({type(error).__name__}): check that the place exists and is "
            "writable, and for a bucket PECIA_SOURCE_OPTIONS."
        ) from None
