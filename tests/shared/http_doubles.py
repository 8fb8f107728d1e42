"""What the tests' own HTTP servers have in common: on loopback, in a thread, and they say nothing; services in one."""

import asyncio
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound="LoopbackServer")


def free_port() -> int:
    """Return a port for a server that is started later; no other caller, nor the system, hands it out meanwhile."""
    for port in random.sample(range(10_000, 20_000), 10_000):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0pecia-test-port-{port}")  # until this process ends
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        claim.detach()
        return port
    raise OSError("no port is free")


def listens(address: str, port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((address, port)) == 0


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a port of loopback, a free one unless it is said which."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: those who ask may go away, or not like the certificate."""


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing, and can break off."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""

    def reset(self) -> None:
        """Reset the connection, as a process that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        self.wfile = self.rfile = open(os.devnull, "r+b")  # noqa: SIM115, PTH123  closed by the handler


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def at_work(service: Any) -> Iterator[Any]:
    """Keep a service of the fleet at work, on a loop in a thread, until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(service.run()))
    thread.start()
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(service.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
