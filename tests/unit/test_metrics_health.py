"""A process is healthy while it moves, or has a good reason not to; and the page on which it says so."""

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

from pecia_workers.observability.metrics import Condition, Liveness, WorkerHealth
from pecia_workers.observability.metrics_page import serve_page
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S

HOLD_LIMIT_S = 315.0


@dataclass
class Surroundings:
    """A worker, its lists and the stores, as the test says."""

    now: float = 1000.0
    held: int = 0
    moved_at: float = 1000.0
    is_open: bool = True
    waiting: int | None = 0
    database: bool = True

    def health(self) -> WorkerHealth:
        return WorkerHealth(
            self,
            backlog=lambda: self.waiting,
            database_answers=lambda: self.database,
            hold_limit_s=HOLD_LIMIT_S,
            clock=lambda: self.now,
        )

    def pass_time(self, health: WorkerHealth, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 5
            health.look()


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


def test_a_worker_with_nothing_to_do_is_healthy_for_ever(around: Surroundings) -> None:
    health = around.health()
    around.pass_time(health, 100_000)
    assert health.live().ok
    assert health.ready().ok
    around.waiting = 1
    around.pass_time(health, 30)
    assert health.live().ok, "the long rest was counted"


def test_a_worker_that_claims_nothing_of_what_waits_is_not_until_it_moves(around: Surroundings) -> None:
    health = around.health()
    around.waiting = 3
    around.pass_time(health, 55)
    assert health.live().ok
    around.pass_time(health, 15)
    assert not health.live().ok
    assert not health.ready().ok
    around.moved_at = around.now
    around.pass_time(health, 5)
    assert health.live().ok


def test_one_long_part_has_all_the_time_that_parts_have(around: Surroundings) -> None:
    health = around.health()
    around.held = 1
    around.pass_time(health, HOLD_LIMIT_S)
    assert health.live().ok
    around.pass_time(health, 70)
    assert not health.live().ok


def test_a_busy_worker_behind_which_others_wait_is_healthy(around: Surroundings) -> None:
    health = around.health()
    around.held, around.waiting = 8, 1000
    for _ in range(100):
        around.pass_time(health, 60)
        around.moved_at = around.now
        assert health.live().ok


@pytest.mark.parametrize("away", ["redis", "postgres"])
def test_a_worker_is_not_blamed_for_a_store_that_is_away(around: Surroundings, away: str) -> None:
    health = around.health()
    around.held = 2
    around.waiting, around.database = (None, True) if away == "redis" else (5, False)
    around.pass_time(health, 10_000)
    assert health.live().ok
    assert health.ready().ok is (away == "postgres")

    around.waiting, around.database = 5, True
    around.pass_time(health, 60)
    assert health.live().ok, "it was given no time to go on"


def test_a_worker_that_starts_for_an_hour_is_healthy_and_not_ready(around: Surroundings) -> None:
    health = around.health()
    around.is_open, around.waiting = False, 1000
    around.pass_time(health, 3600)
    assert health.live().ok
    assert not health.ready().ok

    around.is_open = True
    around.pass_time(health, 30)
    assert health.live().ok, "the time before the start was counted"
    assert health.ready().ok


def test_a_service_is_healthy_while_it_comes_round() -> None:
    now = 0.0
    pulse = Liveness(lambda: now)
    assert pulse.live().ok
    assert not pulse.ready().ok

    pulse.beat()
    assert pulse.ready().ok
    now = 301.0
    assert not pulse.live().ok
    assert not pulse.ready().ok
    pulse.beat()
    assert pulse.live().ok


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


def test_the_page_tells_the_metrics_of_all_collectors_and_health_by_the_status(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):  # a caller that says nothing keeps no other out
        status, text = get(port, "/metrics")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert (status, families["parts"].samples[0].value) == (200, 3)
        assert "claims" in families
        assert get(port, "/healthz") == (200, "working\n")
        assert get(port, "/readyz") == (503, "starting\n")


def test_there_is_nothing_else_and_nothing_can_be_sent(port: int) -> None:
    assert {get(port, path)[0] for path in ("/", "/metrics/../etc/passwd", "/admin")} == {404}
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
