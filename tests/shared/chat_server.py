"""A small server that speaks OpenAI's chat API on loopback, and fails as it is told to."""

import base64
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from PIL import Image

from pecia import Document, Job, Page
from tests.shared import http_doubles
from tests.shared.http_doubles import LoopbackServer, QuietHandler

PIXELS_OF_A_TOKEN = 28 * 28


@dataclass
class Fault:
    """What a chat request gets instead of an answer, or in the midst of it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    silent_s: float = 0.0
    """How long nothing is said before."""
    cut_after: int | None = None
    """Pieces of the answer that come before the connection is reset."""
    ends_after: int | None = None
    """Pieces that come before the stream ends as if that were all."""
    error_after: int | None = None
    """Pieces that come before the stream says that it failed with `status`."""


def only_page(job: Job[Document]) -> Page:
    (page,) = job.result(timeout=0).pages
    return page


@dataclass
class Behaviour:
    text: str = "Amoxicillin 500 mg"
    answers: dict[str, str] = field(default_factory=dict)
    """What is written instead, by the words that were sent with the picture."""
    form: str = "{}"
    """What a request with a schema gets instead."""
    finish_reason: str = "stop"
    endings: list[str] = field(default_factory=list)
    """Why the next answers end, if not for `finish_reason`."""
    takes_s: float = 0.0
    """How long an answer takes, spread over its pieces; less, and those under way end."""
    models: tuple[dict[str, Any], ...] = ({"id": "tiny", "max_model_len": 4096},)
    refuses: frozenset[str] = frozenset()
    """Options that make a request a bad one."""
    most_at_a_time: int | None = None
    """Further requests beside so many are answered with 503."""
    most_answer: int | None = None
    """A longer `max_tokens` is refused, as by a server whose context is full."""
    key: str = ""
    has_health: bool = True
    tokenizes: bool = False
    streams: bool = True
    counts: bool = True
    """Whether it tells usage."""
    frame_tokens: int = 10
    """Of the chat template around a prompt."""
    unready: int = 0
    """Looks that find it not ready yet."""
    faults: list[Fault] = field(default_factory=list)
    """Of the next chat requests that ask for more than one token."""

    def read(self, words: str, body: dict[str, Any]) -> str:  # noqa: ARG002  for those who look at the picture
        """Return what is written about a picture that came with these words."""
        return self.answers.get(words, self.text)


class ChatServerDouble(LoopbackServer):
    """Records what it is asked."""

    def __init__(self, behaviour: Behaviour, port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.behaviour = behaviour
        self.asked: list[dict[str, Any]] = []
        self.tokenized: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.looked: list[str] = []
        self.given_up = 0
        """Answers whose reader went away."""
        self.answering = 0
        self.most_answering = 0
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def pages(self) -> list[dict[str, Any]]:
        """Requests that were more than a start's questions."""
        return [body for body in self.asked if body.get("max_tokens") != 1]

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def server_close(self) -> None:
        """Go away as a killed process does: every connection is reset."""
        super().server_close()
        for connection in self.connections:
            _reset(connection)

    def kill(self) -> None:
        self.shutdown()
        self.server_close()


def serving(behaviour: Behaviour | None = None, port: int = 0) -> AbstractContextManager[ChatServerDouble]:
    """Run a server until the block ends, or it was killed."""
    return http_doubles.serving(ChatServerDouble(behaviour or Behaviour(), port))


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServerDouble  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        self.server.looked.append(self.path)
        if behaviour.unready:
            behaviour.unready -= 1
            self._reply(503, b"loading")
        elif self.path == "/health" and behaviour.has_health:
            self._reply(200, b"")
        elif self.path == "/v1/models":
            models = json.dumps({"object": "list", "data": behaviour.models}).encode()
            self._reply(200, models) if self._let_in() else self._reply(401, b"")
        else:
            self._reply(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.headers.append(dict(self.headers))
        if not self._let_in():
            self._reply(401, b"")
        elif self.path == "/tokenize" and self.server.behaviour.tokenizes:
            self.server.tokenized.append(body)
            self._reply(200, json.dumps({"count": self._prompt_tokens(body)}).encode())
        elif self.path == "/v1/chat/completions":
            self._chat(body)
        else:
            self._reply(404, b"")

    def _let_in(self) -> bool:
        key = self.server.behaviour.key
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def _chat(self, body: dict[str, Any]) -> None:
        server, behaviour = self.server, self.server.behaviour
        fault = Fault()
        with server.lock:
            server.asked.append(body)
            if body.get("max_tokens") != 1 and behaviour.faults:
                fault = behaviour.faults.pop(0)
        time.sleep(fault.silent_s)
        if fault.status != 200 and fault.error_after is None:
            self._reply(fault.status, fault.body, fault.headers)
        elif self._is_bad(body):
            self._reply(400, json.dumps(body).encode())
        elif not behaviour.streams:
            self._reply(200, json.dumps({"choices": []}).encode(), {"Content-Type": "application/json"})
        else:
            with self._counted() as there_is_room:
                if there_is_room:
                    self._stream(body, fault)
                else:
                    self._reply(503, b"")

    @contextmanager
    def _counted(self) -> Iterator[bool]:
        server, most = self.server, self.server.behaviour.most_at_a_time
        with server.lock:
            server.answering += 1
            server.most_answering = max(server.most_answering, server.answering)
            there_is_room = most is None or server.answering <= most
        yield there_is_room
        with server.lock:
            server.answering -= 1

    def _is_bad(self, body: dict[str, Any]) -> bool:
        behaviour = self.server.behaviour
        context = behaviour.models[0].get("max_model_len", 10**6)
        too_long = behaviour.most_answer is not None and body.get("max_tokens", 0) > behaviour.most_answer
        too_long = too_long or self._prompt_tokens(body) > context
        return bool(behaviour.refuses & body.keys()) or too_long

    def _stream(self, body: dict[str, Any], fault: Fault) -> None:
        behaviour = self.server.behaviour
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        text = behaviour.form if "response_format" in body else self._text(body)
        pieces = text.split(" ")[: body.get("max_tokens")]
        try:
            for number, piece in enumerate(pieces):
                if number == fault.cut_after:
                    _reset(self.connection)
                    return
                if number == fault.ends_after:
                    break
                if number == fault.error_after:
                    self._event({"error": {"code": fault.status, "message": fault.body.decode()}})
                    break
                began = time.monotonic()
                while time.monotonic() - began < behaviour.takes_s / len(behaviour.text.split(" ")):
                    time.sleep(0.05)
                self._event({"choices": [{"delta": {"content": piece + " " * (number < len(pieces) - 1)}}]})
            else:
                self._end(body, len(pieces))
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.given_up += 1
            self.close_connection = True

    def _text(self, body: dict[str, Any]) -> str:
        parts = [part for message in body["messages"] for part in message["content"]]
        words = "".join(part["text"] for part in parts if isinstance(part, dict) and "text" in part)
        return self.server.behaviour.read(words, body)

    def _end(self, body: dict[str, Any], pieces: int) -> None:
        behaviour = self.server.behaviour
        reason = behaviour.endings.pop(0) if behaviour.endings else behaviour.finish_reason
        self._event({"choices": [{"delta": {}, "finish_reason": reason}]})
        if behaviour.counts:
            prompt = self._prompt_tokens(body)
            details = {"cached_tokens": 16}
            usage = {"prompt_tokens": prompt, "completion_tokens": pieces, "prompt_tokens_details": details}
            self._event({"choices": [], "usage": usage})

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(content)}\n\n".encode())

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _prompt_tokens(self, body: dict[str, Any]) -> int:
        message = body["messages"][-1]  # after a system message, if there is one
        return self.server.behaviour.frame_tokens + sum(_tokens(part) for part in message["content"])


def picture_of(part: dict[str, Any]) -> Image.Image:
    _, _, encoded = part["image_url"]["url"].partition(";base64,")
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def _tokens(part: dict[str, Any]) -> int:
    """Return what the server takes words for, or a picture by its size."""
    if part["type"] == "text":
        return len(part["text"].split())
    width, height = picture_of(part).size
    return -(-width * height // PIXELS_OF_A_TOKEN)


def _reset(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already
