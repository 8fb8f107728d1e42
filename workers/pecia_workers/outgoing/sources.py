"""Documents by URL: fetched into the payload store, once for each job, even by concurrent workers.

By http and https through the guard, with few redirects, no proxies, cookies or decompression; by s3 from the buckets in
the settings.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import httpcore2
import httpx2
import obstore
from obstore import exceptions

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PayloadRef, UrlRef
from pecia_schemas.payloads import PayloadMissingError, PayloadStore, open_bucket
from pecia_schemas.threads import finish, finish_in_thread
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.media.pages import Limits, MediaError
from pecia_workers.outgoing import guard as outgoing
from pecia_workers.protocol.parts import ClaimedPart, StorageUnavailableError

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

MAX_REDIRECTS = 5

_BLOCK = 64 * 1024
"""Bytes written at a time: servers that send single bytes would otherwise cost a thread call each."""
_CHUNK = 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIME_SKEWED = "RequestTimeTooSkewed"
"""S3's error code for a wrong time in the signature: this worker's clock is wrong, not the document."""
_TRANSIENT = frozenset({408, 425, 429})
"""Transient statuses below 500: request timeout, too early, too many requests."""

_REFUSALS = {
    outgoing.Refusal.URL: "The URL, or a redirect of it, is no valid http, https or s3 URL.",
    outgoing.Refusal.SCHEME: "The URL redirects to one that is neither http nor https.",
    outgoing.Refusal.USERINFO: "The URL redirects to one that contains a user name or password.",
    outgoing.Refusal.PORT: "The URL, or a redirect of it, names a port that is not in PECIA_SOURCE_PORTS.",
    outgoing.Refusal.ADDRESS: "The URL's host, or that of a redirect, has an address that is not public.",
}

_TLS_FAULTS = {
    outgoing.TlsFault.EXPIRED: "presents a certificate that has expired, or is not valid yet",
    outgoing.TlsFault.OTHER_NAME: "presents a certificate for another name",
    outgoing.TlsFault.UNTRUSTED: "presents a certificate from an authority that the fleet does not trust",
    outgoing.TlsFault.WEAK: "presents a certificate with a key or a digest that is too weak",
    outgoing.TlsFault.VERSION: "supports no version of TLS that the fleet supports",
    outgoing.TlsFault.CLIENT_CERTIFICATE: "requires a client certificate, which the fleet does not have",
    outgoing.TlsFault.HANDSHAKE: "aborted the TLS handshake, or does not speak TLS",
}
_BROKE_OFF = "aborted the connection, or does not speak HTTP"


class Intake:
    """Fetches documents by URL, each to a file without a name in `directory`, and from there into the store."""

    def __init__(
        self, store: PayloadStore, ledger: Ledger, directory: Path, settings: WorkerSettings
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._directory = directory
        self._limits = Limits.of(settings)
        self._web = Web(settings)
        self._buckets = Buckets(settings)

    async def __call__(self, part: ClaimedPart) -> PayloadRef:
        """Return the document of a claimed part, after fetching it if needed.

        Raises `MediaError` if it cannot be fetched, `PartLostError` if the part is no longer this worker's; then the
        job has not changed.
        """
        source = part.task.source
        if not isinstance(source, UrlRef):
            return part.payload
        if document := await self._ledger.document_of(part):
            return document
        with _nameless(self._directory) as file:
            arriving = Arriving(file, self._limits)
            fetcher = self._buckets if source.url.lower().startswith("s3://") else self._web
            await fetcher.fetch(source.url, arriving)
            await arriving.arrived()
            # Even if the caller is cancelled meanwhile: each stored file must be known.
            return await finish(self._keep(part, file))

    async def _keep(self, part: ClaimedPart, file: IO[bytes]) -> PayloadRef:
        while True:
            file.seek(0)
            reference = (await self._store.deposit_async(file)).reference
            try:
                return await self._ledger.take_in(part, reference, self._store.holds_async)
            except PayloadMissingError:  # the same document was erased at this very moment
                continue


@contextmanager
def _nameless(directory: Path) -> Iterator[IO[bytes]]:
    with _spooling():
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed below
    try:
        yield file
    finally:
        with suppress(OSError):  # what found no room on the disk finds none now
            file.close()


class Arriving:
    """A file that grows while it is fetched."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._size = 0
        self._waiting = bytearray()

    def announced(self, size: int) -> None:
        """Raise `MediaError` if a file of so many bytes is too large or empty."""
        self._limits.check_bytes(size)

    async def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises `MediaError` before the file is longer than the fleet takes, `StorageUnavailableError` if it cannot be
        written.
        """
        self._size += len(chunk)
        self._limits.check_bytes(self._size)
        self._waiting += chunk
        if len(self._waiting) >= _BLOCK:
            await finish_in_thread(self._write)

    async def arrived(self) -> None:
        """Make the file ready to be read. Raises `MediaError` if it is empty, and the errors of `write`."""
        self._limits.check_bytes(self._size)
        await finish_in_thread(self._write, rewind=True)

    def _write(self, *, rewind: bool = False) -> None:
        with _spooling():
            self._file.write(self._waiting)
            if rewind:
                self._file.seek(0)  # flushes the buffer
        self._waiting.clear()


@contextmanager
def _spooling() -> Iterator[None]:
    """Turn errors of the worker's own directory into `StorageUnavailableError`: the document is not at fault."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(error.strerror) from None


def _refused(found: str) -> MediaError:
    """Return the error of a source that is refused for good; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_REFUSED, found)


def _unreachable(found: str) -> MediaError:
    """Return the error of a source that may be available later; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_UNREACHABLE, found)


class Web:
    """Fetches documents by URL. Every request opens its own connection, so that the guard checks each."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._backend = outgoing.GuardedBackend(allow=settings.source_allow, ports=settings.source_ports)
        self._hosts = settings.source_hosts
        self._total_s = settings.source_timeout.total_seconds()
        self._silence_s = settings.source_silence.total_seconds()
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, arriving: Arriving) -> None:
        """Write the document at a URL, following redirects. Raises `MediaError`, which quotes nothing of the URL."""
        self._tls = self._tls or httpcore2.default_ssl_context()
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls, network_backend=self._backend, max_keepalive_connections=0
        )
        with _web_errors():
            async with asyncio.timeout(self._total_s), pool:
                target = outgoing.parse_target(url)
                for _ in range(1 + MAX_REDIRECTS):
                    host = target.raw_host.decode("ascii").lower().rstrip(".")
                    if self._hosts and not any(
                        host.endswith(name[1:].lower()) if name.startswith("*.") else host == name.lower()
                        for name in self._hosts
                    ):
                        raise _refused("The URL's host, or that of a redirect, is not in PECIA_SOURCE_HOSTS.")
                    location = await self._get(pool, target, arriving)
                    if location is None:
                        return
                    try:
                        following = outgoing.parse_target(str(target.join(location)))
                    except httpx2.InvalidURL:
                        raise outgoing.RefusedTargetError(outgoing.Refusal.URL) from None
                    if target.scheme == "https" and following.scheme == "http":
                        raise _refused("The URL redirects from https to http.")
                    target = following
                raise _refused(f"The URL is redirected more than {MAX_REDIRECTS} times.")

    async def _get(
        self, pool: httpcore2.AsyncConnectionPool, target: httpx2.URL, arriving: Arriving
    ) -> str | None:
        """Write the body; return the target of a redirect."""
        accepted = (("Accept", "*/*"), ("Accept-Encoding", "identity"))
        response = await pool.handle_async_request(
            outgoing.request("GET", target, accepted, silence_s=self._silence_s)
        )
        try:
            headers = httpx2.Headers(response.headers)
            if response.status in _REDIRECTS and "location" in headers:
                return headers["location"]
            if response.status >= 500 or response.status in _TRANSIENT:  # noqa: PLR2004  as RFC 9110 divides them
                raise _unreachable(f"The URL's server answered {response.status}.")
            if response.status not in (200, 203):
                raise _refused(f"The URL's server answered {response.status}.")
            # Not asked for, and a small answer may unpack to any size.
            if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
                raise _refused("The URL's server sends the file compressed, though it was asked not to.")
            if (length := headers.get("content-length", "")).isdecimal():
                arriving.announced(int(length))
            async for chunk in response.aiter_stream():
                await arriving.write(chunk)
        finally:
            await response.aclose()
        return None


@contextmanager
def _web_errors() -> Iterator[None]:
    """Turn network errors into `MediaError`."""
    try:
        yield
    except outgoing.RefusedTargetError as error:
        raise _refused(_REFUSALS[error.refusal]) from None
    except TimeoutError:
        raise _unreachable("The URL's server took too long.") from None
    except httpcore2.TimeoutException:
        raise _unreachable("The URL's server sent nothing for too long.") from None
    except outgoing.NoConnectionError:
        raise _unreachable("The URL's server cannot be reached.") from None
    except (httpcore2.NetworkError, ssl.SSLError) as error:
        fault = outgoing.tls_fault(error)
        raise _unreachable(f"The URL's server {_TLS_FAULTS[fault] if fault else _BROKE_OFF}.") from None
    except httpcore2.ProtocolError:
        raise _unreachable(f"The URL's server {_BROKE_OFF}.") from None


class Buckets:
    """Fetches objects from the buckets in the settings only, whatever the credentials allow."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._total_s = settings.source_timeout.total_seconds()

    async def fetch(self, url: str, arriving: Arriving) -> None:
        """Write the object at a URL. Raises `MediaError`, which quotes nothing of the URL."""
        bucket, _, key = url.partition("://")[2].partition("/")
        buckets = self._settings.source_buckets
        named = any(f"{bucket}/{key}".startswith(f"{name.rstrip('/')}/") for name in buckets)
        if not named or any(segment in ("", ".", "..") for segment in key.split("/")):
            raise _refused("The URL's object is in no bucket that PECIA_SOURCE_BUCKETS names.")
        try:
            async with asyncio.timeout(self._total_s):
                # No retries: the part is tried again, by the fleet's schedule.
                found = await obstore.get_async(open_bucket(bucket, self._settings, retries=0), key)
                arriving.announced(found.meta["size"])
                async for chunk in found.stream(min_chunk_size=_CHUNK):
                    await arriving.write(bytes(chunk))
        except TimeoutError:
            raise _unreachable("The object store took too long.") from None
        except (FileNotFoundError, exceptions.NotFoundError, exceptions.InvalidPathError):
            raise _refused("The object store has no such object.") from None
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            if _TIME_SKEWED in str(error):
                raise StorageUnavailableError(_TIME_SKEWED) from None
            raise _refused("The object store denies the fleet access to the object.") from None
        except (exceptions.BaseError, OSError) as error:
            raise _unreachable(f"The object store does not answer ({type(error).__name__}).") from None
