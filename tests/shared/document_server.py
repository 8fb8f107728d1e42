"""A web server that hands documents out, well or badly, and remembers who asked."""

import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Literal

from tests.shared.http_doubles import LoopbackServer, QuietHandler, serving

LONGEST_S = 10.0
_TRICKLE_S = 0.05


@dataclass
class Answer:
    """What the server does with a request for a path."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = -1
    """What it says the length is; None: nothing, -1: the truth."""
    then: Literal["end", "reset", "flood", "trickle", "hang", "noise"] = "end"
    """What follows the body."""


class DocumentServer(LoopbackServer):
    """Gives the answers planned for a path in turn, the last for ever; 404 for any other path."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(_Handler)
        self.scheme = "https" if context else "http"
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        """Paths with queries, as they came."""
        self.headers: list[dict[str, str]] = []
        self.cut = threading.Event()
        """Set once a client has gone away in the middle of an answer."""
        self.reached = threading.Event()
        """Set once an answer hangs."""
        self.go_on = threading.Event()
        """Ends what hangs."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.server_port}{path}"

    def plan(self, path: str, *answers: Answer) -> str:
        """Have these answers given at a path; return its URL."""
        self.answers[path] = list(answers)
        return self.url(path)

    def take(self, path: str) -> Answer:
        self.asked.append(path)
        planned = self.answers.get(path.partition("?")[0], [Answer(status=404)])
        return planned.pop(0) if len(planned) > 1 else planned[0]


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: DocumentServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        answer = self.server.take(self.path)
        self.send_response(answer.status)
        if answer.length is not None:
            self.send_header("Content-Length", str(len(answer.body) if answer.length < 0 else answer.length))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(answer.body)
            getattr(self, f"_{answer.then}")()
        except OSError:
            self.server.cut.set()

    def _end(self) -> None:
        """It ends."""

    def _reset(self) -> None:
        self.wfile.flush()
        self.reset()

    def _flood(self) -> None:
        for _ in range(10_000):
            self.wfile.write(b"x" * 100_000)

    def _noise(self) -> None:
        os.write(self.connection.fileno(), b"noise" * 100)  # past the encryption, if there is any

    def _trickle(self) -> None:
        for _ in range(int(LONGEST_S / _TRICKLE_S)):
            if self.server.go_on.wait(_TRICKLE_S):
                return
            self.wfile.write(b"x")

    def _hang(self) -> None:
        self.server.reached.set()
        self.connection.settimeout(0.02)
        while not self.server.go_on.is_set():
            with suppress(TimeoutError):
                if not self.connection.recv(1):
                    raise ConnectionError


@contextmanager
def handing_out(context: ssl.SSLContext | None = None) -> Iterator[DocumentServer]:
    with serving(DocumentServer(context)) as server:
        try:
            yield server
        finally:
            server.go_on.set()
