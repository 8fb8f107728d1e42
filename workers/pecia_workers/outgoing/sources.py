"""What a task's URL names, taken into the payload store: once for each job, however many try.

By http and https through the guard, with few redirects, no proxies and no cookies, as the bytes are; by s3 from the
buckets that the settings name.
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
from pecia_workers.protocol.attempts import StorageUnavailableError
from pecia_workers.protocol.parts import ClaimedPart

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

MAX_REDIRECTS = 5

_BLOCK = 64 * 1024
"""Written at a time: a thread for every byte that a server sends alone would keep the loop busy."""
_CHUNK = 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIME_SKEWED = "RequestTimeTooSkewed"
"""S3's code for a signature of another time: this worker's clock is wrong, and no document to blame."""
_TRANSIENT = frozenset({408, 425, 429})
"""Of the statuses below 500: request timeout, too early, too many requests."""

_REFUSALS = {
    outgoing.Refusal.URL: "The URL, or a redirect of it, has no form that is fetched.",
    outgoing.Refusal.SCHEME: "The URL leads to another that is neither http nor https.",
    outgoing.Refusal.USERINFO: "The URL leads to another with a user name or password in it.",
    outgoing.Refusal.PORT: "The URL, or one that it leads to, names a port that is not in PECIA_SOURCE_PORTS.",
    outgoing.Refusal.ADDRESS: "The URL's host, or one that it leads to, has an address that is not public.",
}

_TLS_FAULTS = {
    outgoing.TlsFault.EXPIRED: "shows a certificate that has expired, or is not valid yet",
    outgoing.TlsFault.OTHER_NAME: "shows a certificate for another name",
    outgoing.TlsFault.UNTRUSTED: "shows a certificate that no authority has signed which the fleet trusts",
    outgoing.TlsFault.WEAK: "shows a certificate with a key or a digest that is too weak",
    outgoing.TlsFault.VERSION: "speaks no version of TLS that the fleet speaks",
    outgoing.TlsFault.CLIENT_CERTIFICATE: "demands a certificate of its clients, and the fleet has none",
    outgoing.TlsFault.HANDSHAKE: "broke off the TLS handshake, or speaks no TLS",
}
_BROKE_OFF = "broke off, or speaks no HTTP"


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
        """Return the document of a claimed part, fetched if it has to be.

        Raises `MediaError` if it cannot be fetched, `PartLostError` if the part is not this worker's any more: then
        the job has not changed.
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
        """Raise `MediaError` if a file of so many bytes is not worth fetching."""
        self._limits.check_bytes(size)

    async def write(self, chunk: bytes) -> None:
        """Add what has come.

        Raises `MediaError` before the file is longer than the fleet takes, `StorageUnavailableError` if it cannot be
        written.
        """
        self._size += len(chunk)
        self._limits.check_bytes(self._size)
        self._waiting += chunk
        if len(self._waiting) >= _BLOCK:
            await finish_in_thread(self._write)

    async def arrived(self) -> None:
        """Make the file ready to be read. Raises `MediaError` if nothing has come, and what `write` does."""
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
    """Raise what the worker's own directory refuses: it is no fault of the document or its server."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(error.strerror) from None


def _refused(found: str) -> MediaError:
    """Return the error of a source that is not fetched, now or ever; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_REFUSED, found)


def _unreachable(found: str) -> MediaError:
    """Return the error for what may be fetched at another time; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_UNREACHABLE, found)


class Web:
    """Fetches documents by URL. Every request opens a connection of its own, so that every one is judged afresh."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._backend = outgoing.GuardedBackend(allow=settings.source_allow, ports=settings.source_ports)
        self._hosts = settings.source_hosts
        self._total_s = settings.source_timeout.total_seconds()
        self._silence_s = settings.source_silence.total_seconds()
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, arriving: Arriving) -> None:
        """Write the document that a URL leads to. Raises `MediaError`, which says nothing of the URL."""
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
                        raise _refused(
                            "The URL's host, or one that it leads to, is not in PECIA_SOURCE_HOSTS."
                        )
                    location = await self._get(pool, target, arriving)
                    if location is None:
                        return
                    try:
                        following = outgoing.parse_target(str(target.join(location)))
                    except httpx2.InvalidURL:
                        raise outgoing.RefusedTargetError(outgoing.Refusal.URL) from None
                    if target.scheme == "https" and following.scheme == "http":
                        raise _refused("The URL leads from https to http.")
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
    """Raise what goes wrong on the way as `MediaError`."""
    try:
        yield
    except outgoing.RefusedTargetError as error:
        raise _refused(_REFUSALS[error.refusal]) from None
    except TimeoutError:
        raise _unreachable("The URL's server took too long.") from None
    except httpcore2.TimeoutException:
        raise _unreachable("The URL's server was silent for too long.") from None
    except outgoing.NoConnectionError:
        raise _unreachable("The URL's server cannot be reached.") from None
    except (httpcore2.NetworkError, ssl.SSLError) as error:
        fault = outgoing.tls_fault(error)
        raise _unreachable(f"The URL's server {_TLS_FAULTS[fault] if fault else _BROKE_OFF}.") from None
    except httpcore2.ProtocolError:
        raise _unreachable(f"The URL's server {_BROKE_OFF}.") from None


class Buckets:
    """Fetches objects. What the settings do not name is not asked for, whatever the credentials open."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._total_s = settings.source_timeout.total_seconds()

    async def fetch(self, url: str, arriving: Arriving) -> None:
        """Write the object that a URL names. Raises `MediaError`, which says nothing of the URL."""
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
            raise _refused("The object store does not let the fleet read the object.") from None
        except (exceptions.BaseError, OSError) as error:
            raise _unreachable(f"The object store does not answer ({type(error).__name__}).") from None
