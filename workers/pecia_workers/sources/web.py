"""Documents by http and https: through the guard, with few redirects, no proxies and no cookies, as the bytes are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import httpcore2
import httpx2

from pecia_schemas import FailureCode
from pecia_schemas.threads import finish_in_thread
from pecia_workers.media.limits import MediaError
from pecia_workers.outgoing.guard import GuardedBackend, Refusal, RefusedTargetError, parse_target

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.media.limits import Limits

_BLOCK = 64 * 1024
"""Written at a time: a thread for every byte that a server sends alone would keep the loop busy."""


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

        Raises `MediaError` before the file is longer than the fleet takes, or if it cannot be written.
        """
        self._size += len(chunk)
        self._limits.check_bytes(self._size)
        self._waiting += chunk
        if len(self._waiting) >= _BLOCK:
            await finish_in_thread(self._write)

    async def arrived(self) -> None:
        """Make the file ready to be read. Raises `MediaError` if nothing has come, or not all can be written."""
        self._limits.check_bytes(self._size)
        await finish_in_thread(self._rewind)

    def _write(self) -> None:
        with spooling():
            self._file.write(self._waiting)
        self._waiting.clear()

    def _rewind(self) -> None:
        self._write()
        with spooling():
            self._file.seek(0)  # writes what is left in the buffer


@contextmanager
def spooling() -> Iterator[None]:
    """Raise what the worker's own directory refuses as `MediaError`: it is no fault of the document's server."""
    try:
        yield
    except OSError as error:
        raise unreachable(
            f"The worker cannot write what it fetches ({error.strerror}): see that PECIA_SPOOL_DIR has room."
        ) from None


def refused(found: str) -> MediaError:
    """Return the error for what is not fetched, now or later; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_REFUSED, found)


def unreachable(found: str) -> MediaError:
    """Return the error for what may be fetched at another time; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_UNREACHABLE, found)


MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 425, 429})
"""Of the statuses below 500: request timeout, too early, too many requests."""

_REFUSALS = {
    Refusal.URL: "The URL, or one that it leads to, has no form that is fetched.",
    Refusal.SCHEME: "The URL leads to another that is neither http nor https.",
    Refusal.USERINFO: "The URL leads to another with a user name or password in it.",
    Refusal.PORT: "The URL, or one that it leads to, names a port that is not in PECIA_SOURCE_PORTS.",
    Refusal.ADDRESS: "The URL's host, or one that it leads to, has an address that is not public.",
}


class Web:
    """Fetches documents by URL. Every request opens a connection of its own, so that every one is judged afresh."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._backend = GuardedBackend(allow=settings.source_allow, ports=settings.source_ports)
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
        with _telling():
            async with asyncio.timeout(self._total_s), pool:
                await self._follow(pool, parse_target(url), arriving)

    async def _follow(
        self, pool: httpcore2.AsyncConnectionPool, target: httpx2.URL, arriving: Arriving
    ) -> None:
        for _ in range(1 + MAX_REDIRECTS):
            if not _is_named(target, self._hosts):
                raise refused("The URL's host, or one that it leads to, is not in PECIA_SOURCE_HOSTS.")
            location = await self._get(pool, target, arriving)
            if location is None:
                return
            target = _next(target, location)
        raise refused(f"The URL is redirected more than {MAX_REDIRECTS} times.")

    async def _get(
        self, pool: httpcore2.AsyncConnectionPool, target: httpx2.URL, arriving: Arriving
    ) -> str | None:
        """Write what is there; if it is a redirect, return where to."""
        response = await pool.handle_async_request(self._request(target))
        try:
            headers = httpx2.Headers(response.headers)
            if response.status in _REDIRECTS and "location" in headers:
                return headers["location"]
            _check(response.status, headers)
            if (length := headers.get("content-length", "")).isdecimal():
                arriving.announced(int(length))
            async for chunk in response.aiter_stream():
                await arriving.write(chunk)
        finally:
            await response.aclose()
        return None

    def _request(self, target: httpx2.URL) -> httpcore2.Request:
        waits = dict.fromkeys(("connect", "read", "write", "pool"), self._silence_s)
        return httpcore2.Request(
            "GET",
            httpcore2.URL(
                scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
            ),
            headers=[
                ("Host", target.netloc),
                ("User-Agent", "Pecia"),
                ("Accept", "*/*"),
                ("Accept-Encoding", "identity"),
            ],
            extensions={"timeout": waits},
        )


def _is_named(target: httpx2.URL, hosts: Collection[str]) -> bool:
    """Return whether a host is among those that the settings name; if they name none, every host is."""
    host = target.raw_host.decode("ascii").lower().rstrip(".")
    return not hosts or any(
        host.endswith(name[1:].lower()) if name.startswith("*.") else host == name.lower() for name in hosts
    )


def _next(target: httpx2.URL, location: str) -> httpx2.URL:
    """Return where a redirect leads."""
    try:
        following = parse_target(str(target.join(location)))
    except httpx2.InvalidURL:
        raise RefusedTargetError(Refusal.URL) from None
    if target.scheme == "https" and following.scheme == "http":
        raise refused("The URL leads from https to http.")
    return following


def _check(status: int, headers: httpx2.Headers) -> None:
    """Raise `MediaError` unless the document follows, as it is."""
    if status >= 500 or status in _TRANSIENT:  # noqa: PLR2004  as RFC 9110 divides them
        raise unreachable(f"The URL's server answered {status}.")
    if status not in (200, 203):
        raise refused(f"The URL's server answered {status}.")
    # Not asked for, and a small answer may unpack to any size.
    if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise refused("The URL's server sends the file compressed, though it was asked not to.")


@contextmanager
def _telling() -> Iterator[None]:
    """Raise what goes wrong on the way as `MediaError`."""
    try:
        yield
    except RefusedTargetError as error:
        raise refused(_REFUSALS[error.refusal]) from None
    except TimeoutError:
        raise unreachable("The URL's server took too long.") from None
    except httpcore2.TimeoutException:
        raise unreachable("The URL's server was silent for too long.") from None
    except httpcore2.ConnectError as error:
        is_tls = isinstance(error.__context__, ssl.SSLError)  # httpcore2 cuts the chain of causes
        found = "has no certificate that is good for it" if is_tls else "cannot be reached"
        raise unreachable(f"The URL's server {found}.") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError, ssl.SSLError):
        raise unreachable("The URL's server broke off, or speaks no HTTP.") from None
