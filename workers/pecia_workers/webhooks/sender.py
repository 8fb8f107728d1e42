"""One POST to a receiver: no redirects, no proxies, no cookies, a bounded reply in a bounded time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import httpcore2

from pecia_workers.outgoing.guard import GuardedBackend, parse_target

MAX_REPLY_BYTES = 64 * 1024
"""Of a reply's body, this much is read at most: a status is all that a receiver can tell us."""

KEPT_REPLY_BYTES = 512
"""Of that, this much is kept, for diagnosis."""


class SendFailure(StrEnum):
    """Why a POST got no answer, as it is stored with its delivery."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    BROKEN = "connection_broken"
    PROTOCOL = "not_http"
    INTERNAL = "internal"
    KEY = "secret_unreadable"
    """The endpoint's secret is encrypted under a key that is not here."""


class SendError(Exception):
    """The receiver gave no answer; another try may succeed."""

    def __init__(self, failure: SendFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a receiver answered."""

    status: int
    retry_after: str | None
    """The header of that name, as sent."""
    text: str = ""
    """The beginning of its body, without what no terminal and no database takes."""


class Sender:
    """Posts through the guard. Every call opens a connection of its own, so that every call is judged afresh."""

    def __init__(
        self,
        backend: GuardedBackend,
        *,
        timeout: timedelta,
        connections: int,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout_s = timeout.total_seconds()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or httpcore2.default_ssl_context(),
            network_backend=backend,
            max_connections=connections,
            max_keepalive_connections=0,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Return the answer. Raises `RefusedTargetError` or `SendError`, also when the whole takes too long."""
        target = parse_target(url)
        request = httpcore2.Request(
            "POST",
            httpcore2.URL(
                scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
            ),
            headers=[
                ("Host", target.netloc),
                ("User-Agent", "Pecia"),
                ("Content-Length", str(len(body))),
                *headers.items(),
            ],
            content=body,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(request)
        except (TimeoutError, httpcore2.TimeoutException):
            raise SendError(SendFailure.TIMEOUT) from None
        except httpcore2.ConnectError as error:
            is_tls = isinstance(error.__context__, ssl.SSLError)  # httpcore2 cuts the chain of causes
            raise SendError(SendFailure.TLS if is_tls else SendFailure.UNREACHABLE) from None
        except httpcore2.NetworkError:
            raise SendError(SendFailure.BROKEN) from None
        except httpcore2.ProtocolError:
            raise SendError(SendFailure.PROTOCOL) from None

    async def aclose(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    async def _exchange(self, request: httpcore2.Request) -> Reply:
        response = await self._pool.handle_async_request(request)
        try:
            # Raw bytes: a compressed reply stays as small as it came.
            read, kept = 0, b""
            async for chunk in response.aiter_stream():
                read += len(chunk)
                kept += chunk[: KEPT_REPLY_BYTES - len(kept)]
                if read >= MAX_REPLY_BYTES:
                    break
        finally:
            await response.aclose()
        return Reply(
            status=response.status, retry_after=_header(response, b"retry-after"), text=_printable(kept)
        )


def _printable(kept: bytes) -> str:
    return "".join(each if each.isprintable() else " " for each in kept.decode(errors="replace")).strip()


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    for key, value in response.headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None
