"""How the gateway and the review are served: what a connection may send, before and in a request, and for how long."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pecia.gateway import bounds, protocol
from pecia.gateway.app import make_app
from pecia.gateway.bounds import BoundedBodies
from pecia.gateway.identity import GatewayConfiguration
from pecia.gateway.problems import ProblemError
from pecia.review.app import Work, review_of
from tests.shared.gateways import listening
from tests.shared.limits import WAIT_S, eventually

GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
ENDLESS = 64 * 1024**2
"""More than sockets hold on both sides: a server that reads it all has no bound."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body."""
    assert scope["type"] in ("http", "lifespan")
    if scope["type"] == "http":
        body = await Request(scope, receive).body()
        await Response(str(len(body)))(scope, receive, send)


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer before anything of the body is read."""
    if scope["type"] == "http":
        await Response("no", 403)(scope, receive, send)


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more than sockets hold."""
    if scope["type"] == "http":
        await Response(bytes(ENDLESS))(scope, receive, send)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        yield connection


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the server closes."""
    received = b""
    try:
        while fresh := connection.recv(65536):
            received += fresh
    except ConnectionResetError:
        pass
    return received


def code_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


def sent(connection: socket.socket, chunk: bytes) -> int:
    """Send it again and again until the server takes no more; return how many bytes that were."""
    total = 0
    try:
        while total < ENDLESS:
            connection.sendall(chunk)
            total += len(chunk)
    except OSError:
        pass
    return total


@pytest.mark.parametrize(
    ("begun", "chunk"),
    [(GET, b"X-a: y\r\n" * 8000), (GET + b"X: ", b"x" * 65536), (b"GET /", b"x" * 65536)],
    ids=["many", "one", "line"],
)
def test_headers_without_end_end_the_connection(begun: bytes, chunk: bytes) -> None:
    with listening(echo) as port:
        with connected(port) as connection:
            connection.sendall(begun)
            assert sent(connection, chunk) < ENDLESS
        with connected(port) as connection:
            connection.sendall(begun + chunk * 2)
            assert code_of(all_of(connection)) == (431, "too_large")


def test_a_head_that_is_not_finished_in_time_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with listening(echo) as port:
        with connected(port) as connection:
            assert all_of(connection) == b""

        def answered() -> bytes:
            with connected(port) as connection, suppress(BrokenPipeError):
                connection.sendall(GET)
                return all_of(connection)
            return b""

        # Where the time was over before the first byte came, the server says nothing.
        assert code_of(eventually(answered)) == (408, "too_slow")


def test_what_comes_after_an_answer_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
    with listening(BoundedBodies(refuse, lambda _: 10**6)) as port, connected(port) as connection:
        connection.sendall(POST)
        answer = all_of(connection)
    assert b"403 Forbidden" in answer
    assert b"connection: close" in answer


@pytest.mark.parametrize("first", [b"", b"x" * 1000], ids=["empty", "begun"])
def test_a_body_that_stalls_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: bytes
) -> None:
    unreached = GatewayConfiguration().with_stores(
        database_url="postgresql://x/x", redis_url="redis://x", payload_url=str(tmp_path)
    )
    monkeypatch.setattr(bounds, "IDLE_S", 0.1)
    monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
    with listening(make_app(unreached, review_of(Work(), "token"))) as port, connected(port) as connection:
        path = b"/review/token/api/pages/0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11/1"
        head = POST.replace(b"/ ", path + b" ", 1)[:-2] + b"Content-Type: application/json\r\n\r\n"
        connection.sendall(head + first)
        assert code_of(all_of(connection)) == (408, "too_slow")


async def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "IDLE_S", 0.5)

    async def trickle() -> Any:
        await asyncio.sleep(0.1)  # never idle for long
        return {"type": "http.request", "body": b"x", "more_body": True}

    body = bounds.Body({"type": "http", "headers": [(b"content-length", b"1000000")]}, trickle, 10**6)

    async def read() -> None:
        while True:
            await body.receive()

    with pytest.raises(ProblemError) as refused:
        await read()
    assert refused.value.code == "too_slow"


def test_who_does_not_read_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_S", 0.1)
    ended = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await large(scope, receive, send)
        if scope["type"] == "http":
            await receive()  # the body
            await receive()  # the end of the connection
            ended.set()

    with listening(app) as port, connected(port) as connection:
        connection.sendall(GET + b"\r\n")
        assert ended.wait(WAIT_S)
        assert len(all_of(connection)) < ENDLESS


def test_connections_beyond_those_that_are_served_are_told_to_come_later() -> None:
    with listening(echo, connections=1) as port, connected(port) as first, connected(port) as second:
        second.sendall(GET + b"\r\n")
        answer = all_of(second)
        assert code_of(answer) == (503, "busy")
        assert b"retry-after: " in answer
        first.sendall(GET + b"Connection: close\r\n\r\n")
        assert b"200 OK" in all_of(first)


def test_few_requests_wait_behind_another_on_a_connection() -> None:
    with listening(echo) as port, connected(port) as connection:
        connection.sendall((GET + b"\r\n") * 1000)
        assert all_of(connection).count(b"200 OK") <= 2


def test_an_upgrade_is_answered_as_a_request() -> None:
    with listening(echo) as port, connected(port) as connection:
        connection.sendall(GET + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b"200 OK" in all_of(connection)


def test_what_is_no_request_is_answered_and_not_logged() -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign, assignment]
    with listening(echo) as port, connected(port) as connection:
        logging.getLogger("uvicorn.error").addHandler(handler)
        connection.sendall(b"\x16\x03\x01" * 10 + b"\r\n\r\n")
        assert code_of(all_of(connection)) == (400, "no_request")
    logging.getLogger("uvicorn.error").removeHandler(handler)
    assert not said
