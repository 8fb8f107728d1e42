"""Servers whose TLS is wrong, each in its own way: certificates, versions, what comes instead of a handshake."""

import socket
import socketserver
import ssl
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.shared.tls_servers import Authority

Serve = Callable[[socket.socket], None]

_CHUNK = 65_536
_NOISE = b"\xde\xad\xbe\xef" * 256
_ALERT = b"\x15\x03\x03\x00\x02\x02"
"""A fatal alert of TLS 1.2, without its number."""
_NO_APPLICATION_PROTOCOL, _UNRECOGNIZED_NAME = b"\x78", b"\x70"
_HALF_A_RECORD = b"\x16\x03\x03\x40\x00\x02"
_REPLY = b"HTTP/1.1 204 No Content\r\n\r\n"
_HALF_A_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
_ONE_MEGABYTE = 1024 * 1024


def tls_faults(authority: Authority, stranger: Authority) -> Mapping[str, Serve]:
    """Return how each server answers a connection; its clients trust `authority` and not `stranger`."""
    right, old, demanding, demanding_old = (authority.context() for _ in range(4))
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")  # or Debian's OpenSSL speaks no TLS 1.0 at all
    for context in (demanding, demanding_old):
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.path)
    demanding_old.maximum_version = ssl.TLSVersion.TLSv1_2
    short = rsa.generate_private_key(65537, 1024)  # noqa: S505  the fault
    contexts = {
        "expired": authority.context(expired=True),
        "another name": authority.context("other.test"),
        "unknown authority": stranger.context(),
        "self-signed": authority.context(self_signed=True),
        "short key": authority.context(key=short),
        "certificate of 1 MB": authority.context(padding=_ONE_MEGABYTE),
        "TLS 1.0": old,
        "client certificate": demanding,
        "client certificate, TLS 1.2": demanding_old,
    }
    return {name: partial(_speak, context, _REPLY) for name, context in contexts.items()} | {
        "stalls": _stall,
        "stalls in the handshake": partial(_send, _HALF_A_RECORD, then=_stall),
        "noise": partial(_send, _NOISE),
        "plain HTTP": partial(_send, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        "closes": partial(_send, b""),
        "resets": partial(_send, b"", then=_linger_not),
        "no protocol in common": partial(_send, _ALERT + _NO_APPLICATION_PROTOCOL),
        "unknown name": partial(_send, _ALERT + _UNRECOGNIZED_NAME),
        "closes in the answer": partial(_speak, right, _HALF_A_REPLY, stays=False),
        "noise in the answer": partial(_spoil, right),
    }


@contextmanager
def answering(serve: Serve) -> Iterator[int]:
    """Answer connections to a port of loopback for the length of a block; yields the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client goes away, or does not like the certificate
                serve(self.request)

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        request.close()  # without FIN before it: what lingers not is reset


def _speak(context: ssl.SSLContext, reply: bytes, connection: socket.socket, *, stays: bool = True) -> None:
    with connection.dup() as bare:
        try:
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.recv(_CHUNK)
                secured.sendall(reply)
                if not stays:
                    secured.shutdown(socket.SHUT_WR)  # a close with bytes unread would be a reset
                _stall(secured)
        except ssl.SSLError:
            _stall(bare)  # a reset would overtake the alert


def _spoil(context: ssl.SSLContext, connection: socket.socket) -> None:
    with context.wrap_socket(connection, server_side=True) as secured:
        secured.recv(_CHUNK)
        secured.sendall(_HALF_A_REPLY)
        with socket.socket(fileno=secured.detach()) as bare:
            bare.sendall(_NOISE)
            _stall(bare)


def _stall(connection: socket.socket) -> None:
    while connection.recv(_CHUNK):
        pass


def _linger_not(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _send(reply: bytes, connection: socket.socket, then: Serve | None = None) -> None:
    connection.recv(_CHUNK)
    connection.sendall(reply)
    if then:
        then(connection)
