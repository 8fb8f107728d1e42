"""Whom a stranger may make us call."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpcore2
import pytest

from pecia_workers.outgoing.guard import GuardedBackend, RefusedTargetError
from pecia_workers.outgoing.webhooks import MAX_REPLY_BYTES, Reply, Sender, SendError
from tests.shared.http_doubles import LoopbackServer, QuietHandler, serving
from tests.shared.limits import WAIT_S, eventually
from tests.shared.tls_servers import Authority

LOOPBACK = ("127.0.0.0/8", "::1/128")


def answering(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def answer(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return answer


def post(
    url: str, backend: GuardedBackend, *, timeout_s: float = 5, ssl_context: ssl.SSLContext | None = None
) -> Reply:
    async def story() -> Reply:
        sender = Sender(backend, timeout=timedelta(seconds=timeout_s), connections=1, ssl_context=ssl_context)
        try:
            return await sender.post(url, b"{}", {})
        finally:
            await sender.aclose()

    return asyncio.run(story())


def refusal_of(url: str, backend: GuardedBackend) -> str:
    with pytest.raises(RefusedTargetError) as caught:
        post(url, backend)
    return caught.value.refusal


class Receiver(LoopbackServer):
    """Answers 204 to everything, but for the paths that misbehave."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.hits: list[str] = []

    def url(self, host: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{host}:{self.server_port}{path}"


class Handler(QuietHandler, BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        self.server.hits.append(self.path)
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/endless":
            self.answer(200)
            self.flood()
        else:
            self.answer(302 if self.path == "/redirect" else 204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        self.end_headers()

    def flood(self) -> None:
        try:
            for _ in range(10_000):
                self.wfile.write(b"x" * 10_000)
        except OSError:
            self.server.hits.append("cut")


def test_a_listener_on_this_machine_is_called_at_its_port_alone(receiver: Receiver) -> None:
    let_in = GuardedBackend(listener=receiver.server_port)
    assert post(receiver.url(), let_in).status == 204
    assert post(receiver.url("localhost"), let_in).status == 204
    assert refusal_of(receiver.url(), GuardedBackend()) == "refused_port"
    assert refusal_of(f"http://127.0.0.1:{receiver.server_port + 1}/", let_in) == "refused_port"
    assert refusal_of("http://127.0.0.1/", let_in) == "refused_address"
    assert len(receiver.hits) == 2


OTHERS = ("127.0.0.2", "10.0.0.1", "169.254.169.254", "93.184.216.34", "::ffff:127.0.0.1")


@pytest.mark.parametrize("addresses", [*((one,) for one in OTHERS), ("127.0.0.1", "10.0.0.1")])
def test_a_listeners_port_opens_no_other_address(addresses: tuple[str, ...]) -> None:
    let_in = GuardedBackend(listener=8787, resolve=answering(*addresses))
    assert refusal_of("http://rebound.example:8787/", let_in) == "refused_port"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as server:
        yield server


NUMBERS = ("2130706433", "0x7f000001", "127.1")
"""Old spellings, which resolvers understand."""


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", *NUMBERS, "[::1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]"]
)
def test_no_spelling_of_loopback_is_reached(host: str, receiver: Receiver) -> None:
    assert refusal_of(receiver.url(host), GuardedBackend(ports=())) == "refused_address"
    assert receiver.hits == []


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"),  # the last: carrier-grade NAT
        # Metadata of most clouds, Alibaba's, Oracle's.
        *("169.254.169.254", "100.100.100.200", "192.0.0.192"),
        *("168.63.129.16", "fd00:ec2::254"),  # of Azure's platform, though it looks public, and of Amazon's
        *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),  # mapped, by NAT64, by 6to4
        *("::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"),
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
        *("0.0.0.0", "192.0.0.1", "192.88.99.1", "198.18.0.1", "203.0.113.1"),  # noqa: S104  a target, nothing listens
        *("224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1", "5f00::1"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal_of("http://hook.example/", GuardedBackend(resolve=answering(address))) == "refused_address"


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::1"]
)
def test_a_public_address_is_dialled(address: str) -> None:
    backend = GuardedBackend(resolve=answering(address))
    backend._network = httpcore2.AsyncMockBackend([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert post("http://hook.example/", backend).status == 204


def test_one_private_answer_among_public_ones_refuses_the_name() -> None:
    backend = GuardedBackend(resolve=answering("8.8.8.8", "10.0.0.1"))
    assert refusal_of("http://hook.example/", backend) == "refused_address"


def test_a_name_that_changes_its_answer_is_reached_where_it_was_judged(receiver: Receiver) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return next(answers)

    backend = GuardedBackend(allow=LOOPBACK, ports=(), resolve=rebinding)

    assert post(receiver.url("hook.example"), backend).status == 204
    assert refusal_of(receiver.url("hook.example"), backend) == "refused_address"


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("http://user:password@8.8.8.8/", "refused_userinfo"),
        ("http://8.8.8.8@127.0.0.1/", "refused_userinfo"),
        ("ftp://8.8.8.8/", "refused_scheme"),
        ("file:///etc/passwd", "refused_scheme"),
        ("gopher://8.8.8.8/", "refused_scheme"),
        ("//8.8.8.8/", "refused_scheme"),
        ("http:///path", "refused_url"),
        ("http://8.8.8.8\r\nhost: x/", "refused_url"),
        ("http://8.8.8.8:22/", "refused_port"),
        ("http://0177.0.0.1/", "refused_url"),  # octal
    ],
)
def test_a_target_of_the_wrong_form_is_refused(url: str, refusal: str) -> None:
    assert refusal_of(url, GuardedBackend()) == refusal


@pytest.mark.parametrize("port", [0, 1, 8080])
def test_the_name_behind_a_refused_port_is_not_even_looked_up(port: int) -> None:
    asked: list[str] = []

    async def answer(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ("127.0.0.1",)

    with pytest.raises(RefusedTargetError, match="refused_port"):
        asyncio.run(GuardedBackend(resolve=answer).connect_tcp("hook.example", port))
    assert not asked


def test_no_port_named_admits_every_port_there_is() -> None:
    backend = GuardedBackend(ports=(), resolve=answering("10.0.0.1"))
    assert refusal_of("http://hook.example:2222/", backend) == "refused_address"
    assert refusal_of("http://hook.example:70000/", backend) == "refused_port"


def test_an_allowed_network_is_no_wider_than_it_says() -> None:
    backend = GuardedBackend(allow=("10.1.0.0/16",), resolve=answering("10.2.0.1"))
    assert refusal_of("http://hook.example/", backend) == "refused_address"


def test_a_proxy_in_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert post(receiver.url(), GuardedBackend(allow=LOOPBACK, ports=())).status == 204


def test_a_redirect_is_an_answer(receiver: Receiver) -> None:
    assert post(receiver.url(path="/redirect"), GuardedBackend(allow=LOOPBACK, ports=())).status == 302
    assert receiver.hits == ["/redirect"]


def test_an_endless_reply_is_cut(receiver: Receiver) -> None:
    assert MAX_REPLY_BYTES == 65_536
    assert post(receiver.url(path="/endless"), GuardedBackend(allow=LOOPBACK, ports=())).status == 200
    eventually(lambda: receiver.hits == ["/endless", "cut"])


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_receiver_that_drips_is_left_when_its_time_is_over(drip: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(drip)
                try:
                    while not stop.wait(0.05):
                        connection.sendall(b"x")
                except OSError:
                    return

        stop = threading.Event()
        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(SendError, match="timeout"):
            post(url, GuardedBackend(allow=LOOPBACK, ports=()), timeout_s=0.5)
        stop.set()
        thread.join()


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@contextmanager
def silent_port() -> Iterator[tuple[str, int]]:
    """A server whose queue is full: the kernel answers no further call, as a firewall that drops packets."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        socket.create_connection(server.getsockname()),
    ):
        yield server.getsockname()


@pytest.mark.parametrize("dead_end", [closed_port, silent_port])
def test_an_address_that_does_not_answer_leads_on_to_the_next(
    dead_end: Callable[[], AbstractContextManager[tuple[str, int]]],
) -> None:
    async def dial(port: int) -> str:
        backend = GuardedBackend(allow=LOOPBACK, ports=(), resolve=answering("127.0.0.1", "127.0.0.2"))
        async with asyncio.timeout(WAIT_S):
            stream = await backend.connect_tcp("hook.example", port, timeout=1)
        found = stream.get_extra_info("server_addr")
        await stream.aclose()
        return str(found[0])

    with dead_end() as (_, port), socket.create_server(("127.0.0.2", port)):
        assert asyncio.run(dial(port)) == "127.0.0.2"


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a" * 70 + ".example", "127.0.0.1"])
def test_a_name_without_an_address_and_a_closed_port_are_unreachable(host: str) -> None:
    with closed_port() as (_, port), pytest.raises(SendError, match="unreachable"):
        post(f"http://{host}:{port}/", GuardedBackend(allow=LOOPBACK, ports=()))


@pytest.fixture
def trust(receiver: Receiver, tmp_path: Path) -> ssl.SSLContext:
    """Make the receiver speak TLS as `hook.example`; return the trust in its certificate."""
    authority = Authority(tmp_path)
    receiver.socket = authority.context("hook.example").wrap_socket(receiver.socket, server_side=True)
    return ssl.create_default_context(cafile=str(authority.path))


def test_tls_wants_a_trusted_certificate_for_the_name(receiver: Receiver, trust: ssl.SSLContext) -> None:
    backend = GuardedBackend(allow=LOOPBACK, ports=(), resolve=answering("127.0.0.1"))
    url = f"https://hook.example:{receiver.server_port}/"
    assert post(url, backend, ssl_context=trust).status == 204
    for other, context in ((url.replace("hook", "other"), trust), (url, None)):
        with pytest.raises(SendError, match="tls"):
            post(other, backend, ssl_context=context)
