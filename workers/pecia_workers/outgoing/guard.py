"""The guard of outgoing connections: resolve a host once, check every address, connect to a checked address."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import cast

import httpcore2
import httpx2

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
# Not public, whatever the running Python's tables say about them.
_NEVER = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments, Oracle's metadata among them
        "168.63.129.16/32",  # Azure's platform, as every machine there sees it
        "192.88.99.0/24",  # 6to4 relays, withdrawn (RFC 7526)
        "2001::/23",  # protocol assignments, Teredo among them
        "3fff::/20",  # documentation (RFC 9637)
    )
)


def is_admitted(address: str, allow: Collection[Network] = ()) -> bool:
    """Return whether an address, as the resolver wrote it, is allowed.

    Addresses that carry an IPv4 address inside (mapped, NAT64, 6to4) are judged by that one.
    """
    target: Address = ip_address(address.partition("%")[0])
    if isinstance(target, IPv6Address):
        ipv4 = IPv4Address(int(target) & 0xFFFF_FFFF) if target in _NAT64 else None
        target = ipv4 or target.ipv4_mapped or target.sixtofour or target
    if any(target in network for network in allow):
        return True
    if target.is_multicast or target.is_reserved or not target.is_global:
        return False
    if isinstance(target, IPv6Address) and target not in _GLOBAL_UNICAST:
        return False
    return not any(target in network for network in _NEVER)


# Its debug logs quote headers, and so the URLs that redirects lead to.
logging.getLogger("httpcore2").setLevel(logging.INFO)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_HIGHEST_PORT = 65_535
_THIS_MACHINE = frozenset({"127.0.0.1", "::1"})


class Refusal(StrEnum):
    """Reason why a target is refused, as stored with the delivery or task."""

    URL = "refused_url"
    SCHEME = "refused_scheme"
    USERINFO = "refused_userinfo"
    PORT = "refused_port"
    ADDRESS = "refused_address"


class RefusedTargetError(Exception):
    """The target may not be called, now or later."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


def request(
    method: str,
    target: httpx2.URL,
    headers: Iterable[tuple[str, str]],
    *,
    content: bytes | None = None,
    silence_s: float | None = None,
) -> httpcore2.Request:
    """Return a request for a parsed target; `silence_s` limits each read and write."""
    waits = dict.fromkeys(("connect", "read", "write", "pool"), silence_s)
    return httpcore2.Request(
        method,
        httpcore2.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
        ),
        headers=[("Host", target.netloc), ("User-Agent", "Pecia"), *headers],
        content=content,
        extensions={"timeout": waits},
    )


def parse_retry_after(header: str | None, date: str | None = None) -> timedelta | None:
    """Return the wait requested by a `Retry-After` header; None without a valid header.

    A date is compared with the server's own `Date` header, if present, so that clocks need not agree.
    """
    if header is None:
        return None
    if header.strip().isdecimal():
        with suppress(ValueError):  # digits beyond what Python converts
            return timedelta(seconds=min(int(header), 10**9))
        return None
    moment = _moment(header)
    return None if moment is None else moment - (_moment(date) or datetime.now(UTC))


def _moment(header: str | None) -> datetime | None:
    with suppress(ValueError, OverflowError):
        if header is not None:
            moment = parsedate_to_datetime(header)
            return moment.replace(tzinfo=moment.tzinfo or UTC)
    return None


class TlsFault(StrEnum):
    """Reason why TLS failed, as stored with the delivery."""

    EXPIRED = "tls_expired"
    OTHER_NAME = "tls_other_name"
    UNTRUSTED = "tls_untrusted"
    WEAK = "tls_weak"
    VERSION = "tls_version"
    CLIENT_CERTIFICATE = "tls_client_certificate"
    HANDSHAKE = "tls_handshake"


# X509_V_ERR_CERT_NOT_YET_VALID … CERT_HAS_EXPIRED, HOSTNAME_MISMATCH and IP_ADDRESS_MISMATCH, EE_KEY_TOO_SMALL …
# CA_MD_TOO_WEAK; what is not listed is the chain's
_OF_CERTIFICATES = {
    **dict.fromkeys((9, 10), TlsFault.EXPIRED),
    **dict.fromkeys((62, 64), TlsFault.OTHER_NAME),
    **dict.fromkeys((66, 67, 68), TlsFault.WEAK),
}
_OF_REASONS = (
    ("CERTIFICATE_REQUIRED", TlsFault.CLIENT_CERTIFICATE),
    ("UNSUPPORTED_PROTOCOL", TlsFault.VERSION),
    ("ALERT_PROTOCOL_VERSION", TlsFault.VERSION),
)


class NoConnectionError(httpcore2.ConnectError):
    """No connection: the host has no address, or none accepts."""


def tls_fault(error: httpcore2.NetworkError | ssl.SSLError) -> TlsFault | None:
    """Return the TLS error of a failed connection; None if it failed for another reason.

    httpcore2 does not wrap TLS errors after the handshake.
    """
    if isinstance(error, NoConnectionError):
        return None
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _OF_CERTIFICATES.get(cause.verify_code, TlsFault.UNTRUSTED)
    reason = (cause.reason if isinstance(cause, ssl.SSLError) else None) or ""
    fault = next((fault for part, fault in _OF_REASONS if part in reason), None)
    # One that breaks later than in the handshake has broken off, unless the server says why.
    return fault or (TlsFault.HANDSHAKE if isinstance(error, httpcore2.ConnectError) else None)


async def resolve(host: str, port: int) -> list[str]:
    """Return every address the system's resolver knows for a host, in its order. Raises `NoConnectionError`."""
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoConnectionError("the name has no address") from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def parse_target(url: str) -> httpx2.URL:
    """Parse a URL that may be called. Raises `RefusedTargetError`."""
    try:
        target = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise RefusedTargetError(Refusal.URL) from None
    if target.scheme not in {"http", "https"}:
        raise RefusedTargetError(Refusal.SCHEME)
    if target.userinfo:
        raise RefusedTargetError(Refusal.USERINFO)
    if not target.host:
        raise RefusedTargetError(Refusal.URL)
    return target


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that closes if its handshake is cancelled; httpcore2 closes it only after errors.

    Otherwise the loop would keep it open.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore2's signature
    ) -> httpcore2.AsyncNetworkStream:
        # A system's own Python may speak what nothing should any more.
        ssl_context.minimum_version = max(ssl_context.minimum_version, ssl.TLSVersion.TLSv1_2)
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self._stream.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections to admitted ports of admitted addresses; no port named means any port.

    `listener`: a further port, admitted on the loopback address only; 0: none.

    One forbidden address refuses the name, so that private addresses cannot hide among public ones. Connects to the
    checked address, so that a later answer of the resolver has no effect.
    """

    def __init__(
        self,
        *,
        allow: Collection[str] = (),
        ports: Collection[int] = (443, 80),
        listener: int = 0,
        resolve: Resolve = resolve,
    ) -> None:
        self._allow = tuple(ip_network(network) for network in allow)
        self._ports = frozenset(ports)
        self._listener = listener
        self._resolve = resolve
        # httpcore2 declares it twice, once for installations without anyio.
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers. Raises `RefusedTargetError` before any packet is sent."""
        takes_port = 0 < port <= _HIGHEST_PORT and (not self._ports or port in self._ports)
        is_listener = port == self._listener != 0
        if not takes_port and not is_listener:
            raise RefusedTargetError(Refusal.PORT)
        addresses = await self._resolve(host, port)
        if not (is_listener and _THIS_MACHINE.issuperset(addresses)):
            if not takes_port:
                raise RefusedTargetError(Refusal.PORT)
            if not all(is_admitted(address, self._allow) for address in addresses):
                raise RefusedTargetError(Refusal.ADDRESS)
        failure: Exception = NoConnectionError("the name has no address")
        for address in addresses:
            try:
                return _Stream(
                    await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
                )
            except httpcore2.ConnectError:
                failure = NoConnectionError("no address accepts a connection")
            except httpcore2.ConnectTimeout as error:
                failure = error
        raise failure
