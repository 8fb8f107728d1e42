"""The payload store: documents by the hash of their content, in a directory or in S3.

A payload is written once, under `sha256/ab/abcd…`, and verified whenever it is read. Object stores do not survive a
fork: open one in each process.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, S3Store

from pecia_schemas.media import HEAD_BYTES, sniff
from pecia_schemas.tasks import PayloadRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from obstore.store import ObjectStore, S3Config

_CHUNK = 1024 * 1024
_ONE_PUT = 16 * _CHUNK
"""Up to here a payload travels in one request that refuses to overwrite; above, in parts."""


class PayloadMissingError(LookupError):
    """The payload is not in the store."""


class PayloadCorruptError(ValueError):
    """The stored bytes are not those that were put in."""


@dataclass(frozen=True, slots=True)
class PayloadStore:
    """Documents by content. Safe to share between threads, not across a fork."""

    _store: ObjectStore
    _root: Path | None

    @classmethod
    def open(cls, url: str, options: Mapping[str, str] | None = None) -> PayloadStore:
        """Open a directory (a path or `file://…`, made if missing) or `s3://bucket/prefix`.

        `options` are obstore's for S3, such as `endpoint`, `region`, `access_key_id`, `secret_access_key`; what they
        leave out comes from the usual `AWS_*` variables.
        """
        if url.startswith("s3://"):
            config = cast("S3Config", dict(options or {}))
            plain_http = (options or {}).get("endpoint", "").startswith("http://")
            return cls(S3Store.from_url(url, config=config, client_options={"allow_http": plain_http}), None)
        root = Path(url.removeprefix("file://")).expanduser().resolve()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(LocalStore(root), root)

    def put(self, source: str | os.PathLike[str] | bytes | IO[bytes]) -> PayloadRef:
        """Store a path, bytes or a binary file object from where it stands; return the reference to it.

        Raises `OSError` if the source cannot be read, obstore's errors if the store cannot be written.
        """
        with _as_file(source) as file:
            start = file.tell()
            digest, size, head = _measure(file)
            reference = PayloadRef(sha256=digest, size=size, media_type=sniff(head))
            file.seek(start)
            self._write_once(key_of(reference), file, size)
        return reference

    def _write_once(self, key: str, file: IO[bytes], size: int) -> None:
        if size <= _ONE_PUT:
            with suppress(AlreadyExistsError):
                obstore.put(self._store, key, file.read(size), mode="create")
        elif not self._exists(key, size):
            obstore.put(self._store, key, file)

    def _exists(self, key: str, size: int) -> bool:
        try:
            return obstore.head(self._store, key)["size"] == size
        except FileNotFoundError:
            return False

    def path_of(self, reference: PayloadRef) -> Path | None:
        """Return where the payload lies on this machine, unverified; None if the store is no directory."""
        return self._root / key_of(reference) if self._root else None

    async def download(self, reference: PayloadRef, target: Path) -> None:
        """Copy a payload to a new file, in constant memory, and verify it.

        Raises `PayloadMissingError` or `PayloadCorruptError`; then no file is left.
        """
        try:
            response = await obstore.get_async(self._store, key_of(reference))
        except FileNotFoundError as error:
            raise PayloadMissingError(reference.sha256) from error
        digest = hashlib.sha256()
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                async for chunk in response.stream(min_chunk_size=_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != reference.sha256:
                raise PayloadCorruptError(reference.sha256)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def key_of(reference: PayloadRef) -> str:
    """Return the object's name in the store."""
    return f"sha256/{reference.sha256[:2]}/{reference.sha256}"


def verify(path: Path, reference: PayloadRef) -> None:
    """Read the whole file and compare. Raises `PayloadMissingError` or `PayloadCorruptError`."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise PayloadMissingError(reference.sha256) from error
    if digest != reference.sha256:
        raise PayloadCorruptError(reference.sha256)


@contextmanager
def _as_file(source: str | os.PathLike[str] | bytes | IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield something that can be read twice: what cannot seek is copied to a temporary file first."""
    if isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb") as file:
            yield file
        return
    if not isinstance(source, bytes) and source.seekable():
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=_ONE_PUT) as copy:
        if isinstance(source, bytes):
            copy.write(source)
        else:
            while chunk := source.read(_CHUNK):
                copy.write(chunk)
        copy.seek(0)
        yield cast("IO[bytes]", copy)


def _measure(file: IO[bytes]) -> tuple[str, int, bytes]:
    """Return sha256, size and first bytes of what is left to read."""
    digest, size, head = hashlib.sha256(), 0, b""
    while chunk := file.read(_CHUNK):
        head = head or chunk[:HEAD_BYTES]
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size, head
