"""The payload store: documents by the hash of their content, in a directory or in S3; encrypted if a key is set.

A payload is written once, under `sha256/ab/abcd…`, and verified on every read. Object stores do not survive a fork:
open one in each process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from pecia_schemas.encryption import Keyring, KeyUnavailableError, Unsealer, seal, sealed_size
from pecia_schemas.media import HEAD_BYTES, PayloadRef, sniff
from pecia_schemas.threads import finish_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from obstore.store import ClientConfig, ObjectStore, S3Config
    from typing_extensions import Buffer

    from pecia_schemas.settings.worker import DocumentSettings

_SCHEME: Final = "s3://"


def in_bucket(where: str) -> tuple[str, str] | None:
    """Return bucket and prefix of `s3://bucket/prefix`, each possibly empty; None for other locations."""
    if not where.lower().startswith(_SCHEME):
        return None
    bucket, _, prefix = where[len(_SCHEME) :].partition("/")
    return bucket, prefix


def open_bucket(bucket: str, settings: DocumentSettings, *, retries: int) -> S3Store:
    """Return a bucket, opened with `PECIA_SOURCE_OPTIONS`. Sends no request."""
    options = settings.source_options
    if not options and settings.payload_url.startswith(_SCHEME):
        options = settings.payload_options
    waits = dict.fromkeys(("connect_timeout", "read_timeout"), settings.source_silence)
    client = cast("ClientConfig", {"allow_http": _is_plain(options)} | waits)
    config = cast("S3Config", dict(options))
    url = f"{_SCHEME}{bucket}"
    return S3Store.from_url(url, config=config, client_options=client, retry_config={"max_retries": retries})


def _is_plain(options: Mapping[str, str]) -> bool:
    """Return whether the object store is accessed without TLS."""
    return options.get("endpoint", "").startswith("http://")


_FOLDER = "sha256"
_CHUNK = 1024 * 1024
_DELETES_AT_A_TIME = 16
_ONE_PUT = 16 * _CHUNK
"""Largest payload written to a bucket in one request, which refuses to overwrite; larger ones go in parts."""


class PayloadMissingError(LookupError):
    """The payload is not in the store."""


class PayloadCorruptError(ValueError):
    """The stored bytes differ from the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposit:
    """A payload that was put into the store."""

    reference: PayloadRef
    sha256: str
    """Hash of the content, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class PayloadStore:
    """Documents by content. Safe to share between threads, but not across a fork."""

    _store: ObjectStore
    _root: Path | None
    _keys: Keyring

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str] | None = None, *, keys: Keyring | None = None
    ) -> PayloadStore:
        """Open a directory (a path or `file://…`, made if missing) or `s3://bucket/prefix`.

        `options` are obstore's for S3, such as `endpoint`, `region`, `access_key_id`, `secret_access_key`. Missing ones
        come from the usual `AWS_*` variables. New payloads are encrypted with the current one of `keys`.
        """
        if url.startswith(_SCHEME):
            config, client = cast("S3Config", dict(options or {})), {"allow_http": _is_plain(options or {})}
            s3 = S3Store.from_url(url, config=config, client_options=cast("ClientConfig", client))
            return cls(s3, None, keys or Keyring())
        root = Path(url.removeprefix("file://")).expanduser().resolve()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        payloads = root / _FOLDER
        payloads.mkdir(exist_ok=True)
        with suppress(PermissionError):  # owned by another account, which made it private
            payloads.chmod(0o700)
        return cls(LocalStore(root), root, keys or Keyring())

    def put(self, source: str | os.PathLike[str] | bytes | IO[bytes]) -> PayloadRef:
        """Store a path, bytes or a binary file object from its position; return the reference to it.

        Raises `OSError` if the source cannot be read, and obstore's errors if the store cannot be written.
        """
        return self.deposit(source).reference

    def deposit(self, source: str | os.PathLike[str] | bytes | IO[bytes]) -> Deposit:
        """Store the source like `put`; return also the hash of its content."""
        with _as_file(source) as file:
            deposit, content, size = self._prepare(file)
            name = key_of(deposit.reference)
            if isinstance(content, bytes) and self._root is None:
                with suppress(AlreadyExistsError):
                    obstore.put(self._store, name, content, mode="create")
            elif self._size(name) != size or not self._is_intact(deposit.reference):
                obstore.put(self._store, name, content)
        return deposit

    async def deposit_async(self, file: IO[bytes]) -> Deposit:
        """Store the rest of a seekable file like `deposit`; a thread reads, hashes and encrypts it."""
        deposit, content, size = await finish_in_thread(self._prepare, file)
        name = key_of(deposit.reference)
        if isinstance(content, bytes) and self._root is None:
            with suppress(AlreadyExistsError):
                await obstore.put_async(self._store, name, content, mode="create")
        elif await self._size_async(name) != size or not await finish_in_thread(
            self._is_intact, deposit.reference
        ):
            await obstore.put_async(self._store, name, content)
        return deposit

    def _prepare(self, file: IO[bytes]) -> tuple[Deposit, bytes | Iterator[bytes] | IO[bytes], int]:
        """Hash the rest of the file, and encrypt it if a key is set. This is the slow part.

        Return the content to write, as bytes for one request or otherwise for several parts, and its length.
        """
        start, digest, size, head = file.tell(), hashlib.sha256(), 0, b""
        while chunk := file.read(_CHUNK):
            head = head or chunk[:HEAD_BYTES]
            digest.update(chunk)
            size += len(chunk)
        sha256, key = digest.hexdigest(), self._keys.current
        keys = self._keys.of_document(sha256, key) if key else self._keys
        name, secret = keys.name_of(sha256, key), keys.secret(key) if key else None
        reference = PayloadRef(sha256=name, size=size, media_type=sniff(head), key=key, secret=secret)
        file.seek(start)
        content: bytes | Iterator[bytes] | IO[bytes] = seal(file, name, keys, key) if key else file
        if size <= _ONE_PUT:
            content = file.read(size) if key is None else b"".join(cast("Iterator[bytes]", content))
        deposit = Deposit(reference=reference, sha256=sha256)
        return deposit, content, sealed_size(size, key) if key else size

    def _size(self, name: str) -> int | None:
        with suppress(FileNotFoundError):
            return obstore.head(self._store, name)["size"]
        return None

    async def _size_async(self, name: str) -> int | None:
        with suppress(FileNotFoundError):
            return (await obstore.head_async(self._store, name))["size"]
        return None

    def _is_intact(self, reference: PayloadRef) -> bool:
        """Return whether a directory's file of that name has the document's content; buckets ensure that themselves.

        After a power loss, or on a bad disk, it may be other content of the same size.
        """
        if self._root is None:
            return True
        try:
            with (
                (self._root / key_of(reference)).open("rb") as stored,
                Path(os.devnull).open("wb") as nowhere,
            ):
                copy = _Copy(nowhere, reference, self._keys)
                while chunk := stored.read(_CHUNK):
                    copy.write(chunk)
                copy.finish()
        except (FileNotFoundError, ValueError):
            return False
        return True

    def holds(self, reference: PayloadRef) -> bool:
        """Return whether a payload of that name exists. Its content is not checked."""
        return self._size(key_of(reference)) is not None

    async def holds_async(self, reference: PayloadRef) -> bool:
        """Do the same as `holds`."""
        return await self._size_async(key_of(reference)) is not None

    def names(self, beginning: str) -> Iterator[tuple[str, datetime]]:
        """Yield names of payloads that begin with two hexadecimal digits, with the time of writing."""
        for found in obstore.list(self._store, prefix=f"{_FOLDER}/{beginning}"):
            yield from ((entry["path"].rpartition("/")[2], entry["last_modified"]) for entry in found)

    def delete(self, reference: PayloadRef) -> None:
        """Remove a payload; a missing payload is no error."""
        with suppress(FileNotFoundError):
            obstore.delete(self._store, key_of(reference))

    async def delete_async(self, reference: PayloadRef) -> None:
        """Do the same as `delete`."""
        with suppress(FileNotFoundError):
            await obstore.delete_async(self._store, key_of(reference))

    async def delete_many(self, names: Sequence[str]) -> set[str]:
        """Remove payloads by name, in as few requests as possible; return the names that could not be removed."""
        with suppress(BaseError, OSError):
            await obstore.delete_async(self._store, [key_of(name) for name in names])
            return set()
        # A bulk delete stops at the first missing or undeletable payload.
        at_a_time, kept = asyncio.Semaphore(_DELETES_AT_A_TIME), set[str]()

        async def delete(name: str) -> None:
            async with at_a_time:
                try:
                    await obstore.delete_async(self._store, key_of(name))
                except FileNotFoundError:
                    pass
                except (BaseError, OSError):
                    kept.add(name)

        await asyncio.gather(*map(delete, names))
        return kept

    def path_of(self, reference: PayloadRef) -> Path | None:
        """Return the path of the payload on this machine, unverified.

        None if the store is no directory, or the payload is encrypted.
        """
        return self._root / key_of(reference) if self._root and reference.key is None else None

    async def download(self, reference: PayloadRef, target: Path) -> None:
        """Copy a payload to a new file, decrypted and in constant memory, and verify it.

        Raises `PayloadMissingError`, `PayloadCorruptError` or `KeyUnavailableError`, and then leaves no file.
        """
        with _arriving(reference, target, self._keys) as copy:
            response = await obstore.get_async(self._store, key_of(reference))
            async for chunk in response.stream(min_chunk_size=_CHUNK):
                await asyncio.to_thread(copy.write, chunk)
            await asyncio.to_thread(copy.finish)

    def fetch(self, reference: PayloadRef, target: Path) -> None:
        """Do the same as `download`, on the caller's thread."""
        with _arriving(reference, target, self._keys) as copy:
            response = obstore.get(self._store, key_of(reference))
            for chunk in response.stream(min_chunk_size=_CHUNK):
                copy.write(chunk)
            copy.finish()


@contextmanager
def _arriving(reference: PayloadRef, target: Path, keys: Keyring) -> Iterator[_Copy]:
    """Yield a sink for the payload's chunks; create the target if all succeed."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                yield _Copy(file, reference, keys)
            except FileNotFoundError as error:
                raise PayloadMissingError(reference.sha256) from error
            except KeyUnavailableError:
                raise
            except ValueError:
                raise PayloadCorruptError(reference.sha256) from None
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


class _Copy:
    """A copy of a payload out of the store: decrypted, hashed, written, and verified at the end.

    Raises `KeyUnavailableError`, or `ValueError` without a message.
    """

    def __init__(self, file: IO[bytes], reference: PayloadRef, keys: Keyring) -> None:
        key, secret = reference.key, reference.secret
        self._keys = Keyring.of_secret(key, secret) if key and secret else keys
        self._file, self._reference = file, reference
        self._unsealer = Unsealer(reference.sha256, self._keys, key) if key else None
        self._digest = hashlib.sha256()

    def write(self, chunk: Buffer) -> None:
        self._take(self._unsealer.feed(chunk) if self._unsealer else chunk)

    def finish(self) -> None:
        if self._unsealer:
            self._take(self._unsealer.end())
        if self._keys.name_of(self._digest.hexdigest(), self._reference.key) != self._reference.sha256:
            raise ValueError

    def _take(self, content: Buffer) -> None:
        self._digest.update(content)
        self._file.write(content)


def payload_named(name: str) -> PayloadRef:
    """Return a reference that can find and delete a payload, but not read it."""
    return PayloadRef(sha256=name, size=0, media_type=None)


def key_of(payload: PayloadRef | str) -> str:
    """Return the object name in the store for a payload or its name."""
    name = payload if isinstance(payload, str) else payload.sha256
    return f"{_FOLDER}/{name[:2]}/{name}"


def verify(path: Path, reference: PayloadRef) -> None:
    """Verify the content of a file. Raises `PayloadMissingError` or `PayloadCorruptError`."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise PayloadMissingError(reference.sha256) from error
    if digest != reference.sha256:
        raise PayloadCorruptError(reference.sha256)


@contextmanager
def _as_file(source: str | os.PathLike[str] | bytes | IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a file that can be read twice; copies an unseekable source to a temporary file."""
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
