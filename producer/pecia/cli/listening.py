"""A receiver of callbacks on this machine: it verifies what comes and hands it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from pecia.errors import WebhookVerificationError
from pecia.webhooks import verify
from pecia_schemas.events import JobNotice

_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One request."""

    delivery: str
    """Its `webhook-id`."""
    notice: JobNotice | None
    """None: it was not signed with the secret, or is too old."""


class Listener(HTTPServer):
    """Answers 204 to what verifies, 401 to what does not, and tells of both, one after the other."""

    def __init__(self, host: str, port: int, secret: str, told: Callable[[Heard], None]) -> None:
        super().__init__((host, port), _Handler)
        self._secret = secret
        self._told = told

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def hear(self, body: bytes, headers: dict[str, str]) -> HTTPStatus:
        """Tell of a request; return what to answer."""
        try:
            notice = verify(body, headers, self._secret)
        except WebhookVerificationError:
            notice = None
        delivery = next((value for name, value in headers.items() if name.lower() == "webhook-id"), "")
        self._told(Heard(delivery=delivery, notice=notice))
        return HTTPStatus.NO_CONTENT if notice else HTTPStatus.UNAUTHORIZED


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # seconds: who connects and says nothing keeps the others waiting
    server: Listener  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= _MOST_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self._answer(self.server.hear(self.rfile.read(length), dict(self.headers)))

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
        """Leave the terminal to what is told."""
