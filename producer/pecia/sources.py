"""Sources of tasks: reads each once, stores it by content and measures its header; also fetches stored documents."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import SecretStr

from pecia import errors
from pecia_schemas import storable
from pecia_schemas.encryption import DecryptionError, Keyring, unseal_task
from pecia_schemas.media import HEAD_BYTES, MAX_SIDE, URL_SCHEMES, MediaType, PayloadRef, Pile, UrlRef, sniff

if TYPE_CHECKING:
    from pecia_schemas.payloads import Deposit, PayloadStore
    from pecia_schemas.settings import ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The place of a job's document, and its password."""

    job_id: UUID
    payload: PayloadRef
    password: SecretStr | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any], keys: Keyring) -> Original:
        """Return the document of a row of `jobs`.

        Raises `DocumentGoneError` if it was erased, `InvalidSettingError` if its password is encrypted under a key that
        this process lacks.
        """
        job_id = row["id"]
        if row["payload_released_at"] is not None or row["task"].get("source") is None:
            raise errors.DocumentGoneError(job_id)
        try:
            task = unseal_task(row["task"], job_id, keys.of_job(job_id, row["wrapped"]))
        except DecryptionError as error:
            raise errors.InvalidSettingError(f"The document cannot be read. {error}") from None
        password = task.get("password")
        return cls(
            job_id=job_id,
            payload=PayloadRef.model_validate(task["source"]),
            password=SecretStr(password) if password else None,
        )


@contextmanager
def at_hand(original: Original, payloads: PayloadStore) -> Iterator[Path]:
    """Yield the document as a file, verified and decrypted. The file is deleted when the block ends.

    Raises `DocumentGoneError`, `PayloadStoreUnavailableError` or `InvalidSettingError`.
    """
    from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, verify  # noqa: PLC0415  slow to load

    in_place = payloads.path_of(original.payload)
    with tempfile.TemporaryDirectory(prefix="pecia-document-") as scratch:
        target = in_place or Path(scratch) / "document"
        try:
            with store_answers():
                if in_place is None:
                    payloads.fetch(original.payload, target)
                else:
                    verify(in_place, original.payload)
        except (PayloadMissingError, PayloadCorruptError):
            raise errors.DocumentGoneError(original.job_id) from None
        except DecryptionError as error:
            raise errors.InvalidSettingError(f"The document cannot be read. {error}") from None
        yield target


# Its debug log quotes metadata of pictures.
logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.INFO)

_payload_processes: set[int] = set()
"""Ids of this process and its ancestors that have used a payload store."""
_IN_MEMORY = 16 * 1024**2  # bytes of a stream that are kept out of the temporary directory
_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)  # EXIF orientations that swap width and height


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSource:
    """A document in the payload store, or a URL from which the fleet will fetch it."""

    payload: PayloadRef | UrlRef
    sha256: str | None = None
    """SHA-256 of the content; None if the document was in the store before, or is not fetched yet."""
    pixels: tuple[int, int] | None = None
    """Width and height of the upright picture; None if only the fleet can measure it."""


def open_payloads(settings: ClientSettings, keys: Keyring) -> PayloadStore:
    """Return the payload store. It does not survive a fork: a child would wait for its threads forever.

    Raises `ConfigurationError` in a forked child of a user, `PayloadStoreUnavailableError` if it cannot be opened.
    """
    from pecia_schemas.payloads import PayloadStore  # noqa: PLC0415  slow to load

    if _payload_processes - {os.getpid()}:
        raise errors.ConfigurationError(
            "This process was forked from one that had already submitted, which the payload store does not "
            "support: submit for the first time after the fork, or start processes with 'spawn'."
        )
    _payload_processes.add(os.getpid())
    with store_answers("cannot be opened", "PECIA_PAYLOAD_URL, its credentials and permissions"):
        return PayloadStore.open(settings.payload_url, settings.payload_options, keys=keys)


@contextmanager
def store_answers(
    said: str = "does not answer", check: str = "PECIA_PAYLOAD_URL and its credentials"
) -> Iterator[None]:
    """Convert errors of the payload store to `PayloadStoreUnavailableError`."""
    from obstore.exceptions import BaseError  # noqa: PLC0415  slow to load

    try:
        yield
    except (BaseError, OSError) as error:
        raise errors.PayloadStoreUnavailableError(
            f"The payload store {said} ({type(error).__name__}): check {check}."
        ) from error


def store(payloads: PayloadStore, source: object) -> StoredSource:
    """Store a task's source and measure it, unless it is in the store already or the fleet fetches it.

    Raises `InvalidSourceError` if it cannot be read, `PayloadStoreUnavailableError` if it cannot be written.
    """
    if isinstance(source, (PayloadRef, UrlRef)):
        return StoredSource(payload=source)
    with opened(source) as file:
        start = file.tell()
        with depositing():
            deposit = payloads.deposit(file)
        return measured(file, start, deposit)


def check(source: object) -> None:
    """Raise `InvalidSourceError` if a path is not a readable file, or the fleet cannot fetch the URL.

    Other sources are not opened: streams and pipes can be read only once, and only the fleet fetches URLs.
    """
    if isinstance(source, Pile):
        for one in _files_of(source):
            check(one)
    elif isinstance(source, Path):
        with suppress(OSError):
            if source.is_fifo():
                return
        with opened(source):
            pass
    elif isinstance(source, UrlRef):
        _check_url(source.url)


def _check_url(url: str) -> None:
    """Raise `InvalidSourceError` for an invalid URL. The error does not quote the URL."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, named = urlsplit(""), False
    spaced = " " in url and parts.scheme != "s3"  # keys may hold any character
    if not named or not url.isprintable() or spaced:
        raise errors.InvalidSourceError(
            "The URL cannot be fetched: write https://host/path or s3://bucket/key."
        )
    if len(url) > storable.SOURCE_URL:
        raise errors.InvalidSourceError(
            f"A URL may have at most {storable.SOURCE_URL:,} characters, not {len(url):,}."
        )
    if not url.lower().startswith(URL_SCHEMES):
        raise errors.InvalidSourceError(
            "The fleet fetches only http://, https:// and s3:// URLs: submit other files themselves."
        )
    if "@" in parts.netloc:
        raise errors.InvalidSourceError(
            "The fleet fetches no URL with a user name or password: give the fleet access, or use a signed URL."
        )
    if parts.scheme == "s3" and not parts.path.strip("/"):
        raise errors.InvalidSourceError("An S3 URL must name a bucket and an object: write s3://bucket/key.")


def measured(file: IO[bytes], start: int, deposit: Deposit) -> StoredSource:
    """Return a deposited file with the properties that need no decoding."""
    stored = StoredSource(payload=deposit.reference, sha256=deposit.sha256)
    media_type = deposit.reference.media_type
    if start > 0 or media_type is None or not media_type.is_single_image:
        return stored
    from PIL import Image  # noqa: PLC0415  slow to load, and only pictures need it

    file.seek(0)
    try:
        if media_type.name not in Image.OPEN:
            Image.init()
        # `Image.open` would warn of large pictures; only the fleet knows its limit.
        opening, _ = Image.OPEN[media_type.name]
        with opening(file, "") as image:
            width, height = image.size
            # Reading EXIF of a PNG without it would decode the picture.
            if "exif" in image.info and image.getexif().get(_ORIENTATION) in _LYING:
                width, height = height, width
    except Exception:  # noqa: BLE001  a damaged header raises anything; the fleet reports the damage
        return stored
    is_possible = 0 < min(width, height) <= max(width, height) <= MAX_SIDE
    return replace(stored, pixels=(width, height)) if is_possible else stored


@contextmanager
def depositing() -> Iterator[None]:
    """Convert errors of reading a source and of writing the payload store to errors of this client."""
    from obstore.exceptions import BaseError  # noqa: PLC0415  a client that only reads does not need it

    try:
        yield
    except BaseError as error:
        raise errors.PayloadStoreUnavailableError(
            f"The payload store refused a document ({type(error).__name__}): check PECIA_PAYLOAD_URL, "
            "its credentials and its free space."
        ) from error
    except (OSError, TypeError) as error:
        raise unreadable(error) from error


@contextmanager
def opened(source: object) -> Iterator[IO[bytes]]:
    """Yield the source as a file that can be read twice. The caller's own file object stays open."""
    if isinstance(source, Path):
        try:
            file = source.open("rb")
        except (OSError, ValueError) as error:  # ValueError: a NUL in its name
            raise unreadable(error) from None  # the original names the file
        with file, _seeking(file) as seeking:
            yield seeking
    elif isinstance(source, bytes):
        yield io.BytesIO(source)
    elif isinstance(source, Pile):
        with tempfile.TemporaryFile(prefix="pecia-pile-") as packed:
            try:
                Pile.pack(_each_opened(source), packed)
            except (OSError, TypeError) as error:
                raise unreadable(error) from error
            packed.seek(0)
            yield packed
    else:
        with _seeking(source) as seeking:
            yield seeking


def _each_opened(pile: Pile) -> Iterator[IO[bytes]]:
    """Yield the files one after the other; each is closed before the next is opened, unless it is the caller's."""
    for source in _files_of(pile):
        with opened(source) as file:
            yield file


def _files_of(pile: Pile) -> Iterator[object]:
    """Yield the documents of a pile. Raises `InvalidSourceError` for a folder without documents."""
    for source in pile.sources:
        if not isinstance(source, Path) or not source.is_dir():
            yield source
            continue
        files = [path for path in files_below(source) if (media := sniffed(path)) and not media.is_video]
        if not files:
            raise errors.InvalidSourceError(
                "The folder contains no document: check the path and its permissions."
            )
        yield from sorted(files, key=natural)


def natural(path: Path) -> list[tuple[int, int, str]]:
    """Return the sort key of natural order: `page-2` before `page-10`."""
    pieces = re.split(r"(\d+)", str(path).casefold())
    return [(1, int(piece), "") if piece.isdecimal() else (0, 0, piece) for piece in pieces]


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted, without hidden ones."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(names) if not name.startswith("."))


def sniffed(path: Path) -> MediaType | None:
    """Return the media type of a file by its content; None if it is unreadable or of no type that Pecia reads."""
    try:
        if not path.is_file():  # a pipe would wait for a writer
            return None
        with path.open("rb") as file:
            return sniff(file.read(HEAD_BYTES))
    except OSError:
        return None


@contextmanager
def _seeking(source: Any) -> Iterator[IO[bytes]]:
    """Yield the file itself if it can seek, or else a copy."""
    if getattr(source, "closed", False):
        raise errors.InvalidSourceError("The file object is closed: submit it while it is open.")
    if getattr(source, "seekable", lambda: False)():
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
        try:
            shutil.copyfileobj(source, copy, 1024**2)
        except (OSError, TypeError) as error:
            raise unreadable(error) from error
        copy.seek(0)
        yield cast("IO[bytes]", copy)


def unreadable(error: Exception) -> errors.InvalidSourceError:
    """Return the error for an unreadable source. It does not name the source."""
    if isinstance(error, TypeError):
        return errors.InvalidSourceError("A file object must be binary: open it with mode 'rb'.")
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
    return errors.InvalidSourceError(
        f"The source cannot be read ({reason}): check the path and its permissions."
    )
