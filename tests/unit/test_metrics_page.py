"""What a process serves beside its work."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from http_doubles import free_port
from limits import WAIT_S
from pecia_workers.metrics import Condition
from pecia_workers.metrics_page import serve_page


@dataclass
class Told:
    alive: Condition = field(default_factory=lambda: Condition(ok=True, reason="working"))
    willing: Condition = field(default_factory=lambda: Condition(ok=False, reason="starting"))

    def live(self) -> Condition:
        return self.alive

    def ready(self) -> Condition:
        return self.willing


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@pytest.fixture
def port() -> Iterator[int]:
    counted, other = CollectorRegistry(), CollectorRegistry()
    Counter("parts", "Parts.", registry=counted).inc(3)
    Counter("claims", "Claims.", registry=other).inc()
    with serve_page("127.0.0.1", free_port(), Told(), [counted, other]) as served:
        assert served is not None
        yield served


def test_metrics_are_those_of_all_collectors(port: int) -> None:
    status, text = get(port, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert status == 200
    assert families["parts"].samples[0].value == 3
    assert "claims" in families


def test_health_and_readiness_are_told_by_the_status(port: int) -> None:
    assert get(port, "/healthz") == (200, "working\n")
    assert get(port, "/readyz") == (503, "starting\n")


@pytest.mark.parametrize("path", ["/", "/metrics/../etc/passwd", "/admin"])
def test_there_is_nothing_else_and_nothing_can_be_sent(port: int, path: str) -> None:
    assert get(port, path)[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405


def test_several_processes_of_a_machine_share_a_setting_and_their_pages_end_with_them() -> None:
    first = free_port()
    with ExitStack() as stack:
        ports = [stack.enter_context(serve_page("127.0.0.1", first, Told(), [])) for _ in range(3)]
        assert len(set(ports)) == 3
        assert all(port and get(port, "/healthz")[0] == 200 for port in ports)
    with pytest.raises(OSError, match="refused"):
        get(first, "/healthz")


def test_a_page_that_cannot_be_served_stops_no_work() -> None:
    with capture_logs() as logs, serve_page("192.0.2.1", 9464, Told(), []) as port:
        assert port is None
    assert [line["event"] for line in logs] == ["metrics_page_unavailable"]


def test_a_caller_that_says_nothing_keeps_no_other_out(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):
        assert get(port, "/healthz")[0] == 200
