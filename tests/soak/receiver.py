"""A receiver of callbacks that is sometimes rude: it keeps every call and answers some with an error."""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from pecia import webhooks
from pecia.errors import WebhookVerificationError
from pecia_schemas.events import JobNotice

_RUDE = 0.1
"""Share of the calls that get an error."""
_MOST_ERRORS = 1
"""Errors for one callback: each costs the fleet a longer wait."""


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    notice: JobNotice


class Receiver(ThreadingHTTPServer):
    """Listens on a free port of loopback until its block ends."""

    daemon_threads = True

    def __init__(self, *, secret: str, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.calls: list[Call] = []
        self.errors = 0
        self.forged = 0
        """Calls whose signature or body was not the fleet's."""
        self._secret = secret
        self._random = random.Random(seed)  # noqa: S311  a plan, no secret
        self._errors: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        """Keep a call; return the status to answer it with."""
        with self._lock:
            try:
                notice = webhooks.verify(body, headers, self._secret)
            except WebhookVerificationError:
                self.forged += 1
                return 400
            call = Call(headers["webhook-id"], notice)
            if self._errors[call.id] < _MOST_ERRORS and self._random.random() < _RUDE:
                self._errors[call.id] += 1
                self.errors += 1
                return 503
            self.calls.append(call)
            return 204


class _Answering(BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.server.take(body, headers))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""
