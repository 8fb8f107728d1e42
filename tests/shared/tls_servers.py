"""TLS in front of servers that were built without it: an endpoint, and certificates of the test's own authority."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.shared.limits import WAIT_S

_CHUNK = 64 * 1024
_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
_DAY = timedelta(days=1)
_UNKNOWN = x509.ObjectIdentifier("1.3.6.1.4.1.99999.1")


class Authority:
    """Signs certificates for this machine's loopback."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.path = directory / f"{name}.pem"
        """Its own certificate, for those who are to trust it."""
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = (
            _draft(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(own.public_bytes(Encoding.PEM))

    def context(
        self,
        host: str = "localhost",
        *,
        expired: bool = False,
        self_signed: bool = False,
        key: rsa.RSAPrivateKey | None = None,
        padding: int = 0,
    ) -> ssl.SSLContext:
        """Return what a server needs that shows a certificate for a host, and for 127.0.0.1 if that is this machine.

        Its key may be another one, such as one that is too short, and it longer by so many bytes.
        """
        own = key or ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ip_address("127.0.0.1")))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        draft = _draft(subject if self_signed else self._name, subject, own.public_key(), expired=expired)
        draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if padding:
            draft = draft.add_extension(x509.UnrecognizedExtension(_UNKNOWN, bytes(padding)), critical=False)
        signed = draft.sign(own if self_signed else self._key, hashes.SHA256())
        path = self.directory / f"{x509.random_serial_number()}.pem"
        pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(pem + signed.public_bytes(Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # a strict system's OpenSSL would not show what is weak
        context.load_cert_chain(path)
        return context


def _draft(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    *,
    expired: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * _DAY)
        .not_valid_after(now - _DAY if expired else now + _DAY)
    )


@dataclass(frozen=True)
class TlsEndpoint:
    """Speaks TLS on a port of loopback, and plainly with a server on a unix socket."""

    socket: Path
    context: ssl.SSLContext
    postgres: bool = False
    """Whether clients ask in Postgres's own way before they begin with TLS."""

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Serve for the length of a block; yields the port."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="tls")
        thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(self._listen(), loop).result(WAIT_S)
            yield server.sockets[0].getsockname()[1]
            asyncio.run_coroutine_threadsafe(_close(server), loop).result(WAIT_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _listen(self) -> asyncio.Server:
        context = None if self.postgres else self.context
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            if self.postgres:
                if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                    return  # plain text is not spoken here
                writer.write(b"S")
                await writer.start_tls(self.context)
            behind = await asyncio.open_unix_connection(self.socket)
            await _join((reader, writer), behind)
        writer.transport.abort()


_End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: _End, other: _End) -> None:
    """Carry bytes both ways until either side ends."""
    ways = [asyncio.create_task(_carry(one[0], other[1])), asyncio.create_task(_carry(other[0], one[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        other[1].transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()


async def _close(server: asyncio.Server) -> None:
    server.close()
    this = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not this]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
