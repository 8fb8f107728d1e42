"""Health of a worker on real lists and a real database."""

import time
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from redis import Redis

from pecia_schemas.messages import publish
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.database import answers
from pecia_workers.observability.metrics import REGISTRY
from pecia_workers.observability.metrics_page import worker_page
from pecia_workers.queue.lists import connect
from pecia_workers.queue.transport import Capacity, Keeper
from tests.shared.fixture_types import Make
from tests.shared.house import House
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S, eventually
from tests.shared.queueing import messages

QUEUES = ["read.urgent", "read.normal", "read.bulk"]


class Gate:
    """Takes four parts at a time, a hundred tokens."""

    def capacity(self) -> Capacity:
        return Capacity(slots=4, tokens=100, idle=True)

    def dispatch(self) -> None:
        """Begin with nothing."""


@pytest.fixture
def keeper(redis: Redis) -> Keeper:
    return Keeper(redis)


def value(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


def test_a_keeper_tells_what_is_held_and_when_it_moved(keeper: Keeper, redis: Redis) -> None:
    publish(redis, messages(6, cost=20))
    assert not keeper.is_open
    keeper.gate = Gate()
    assert keeper.is_open
    begun, claims, filled = (
        time.monotonic(),
        value("pecia_claims_total"),
        value("pecia_claim_token_fill_ratio_sum"),
    )

    claim = keeper.claim(QUEUES)

    assert keeper.held == 4
    claimed_at = keeper.moved_at
    assert claimed_at >= begun
    assert value("pecia_claims_total") - claims == 1
    assert value("pecia_claim_token_fill_ratio_sum") - filled == pytest.approx(0.8)
    assert value("pecia_parts_held") == 4

    keeper.finish(str(claim.parts[0].part))
    keeper.requeue(str(claim.parts[1].part))
    assert keeper.held == 2
    assert keeper.moved_at > claimed_at
    assert value("pecia_parts_held") == 2


def test_a_claim_that_brings_nothing_is_no_move(keeper: Keeper) -> None:
    keeper.gate = Gate()
    before = keeper.moved_at
    keeper.claim(QUEUES)
    assert keeper.moved_at == before


def status(port: int, path: str) -> int:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as reply:
            return int(reply.status)
    except HTTPError as refusal:
        refusal.close()
        return refusal.code


def settings_with_a_page(redis_url: str, database_url: str) -> WorkerSettings:
    return WorkerSettings.model_validate(
        {"redis_url": redis_url, "database_url": database_url, "metrics_port": free_port()}
    )


def test_a_worker_is_ready_once_it_has_begun_and_while_redis_answers(
    redis_server: Make, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pecia_workers.observability.metrics._HEALTH_EVERY_S", 0.05)
    server = redis_server()
    settings = settings_with_a_page(server.url, database_url)
    with closing(connect(server.url)) as redis:
        keeper = Keeper(redis)
        with worker_page(settings, "engine", keeper, QUEUES) as port:
            assert port
            assert (status(port, "/healthz"), status(port, "/readyz")) == (200, 503)
            keeper.gate = Gate()
            eventually(lambda: status(port, "/readyz") == 200)
            server.kill()
            eventually(lambda: status(port, "/readyz") == 503)
            assert status(port, "/healthz") == 200
            redis_server(replaces=server)
            eventually(lambda: status(port, "/readyz") == 200)


def test_a_worker_that_claims_nothing_of_its_lists_goes_red_until_it_claims(
    house: House, redis: Redis, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pecia_workers.observability.metrics._HEALTH_EVERY_S", 0.05)
    monkeypatch.setattr("pecia_workers.observability.metrics._TIMEOUT_S", 0.5)
    keeper.gate = Gate()
    settings = settings_with_a_page(house.redis_url, house.database_url)
    with worker_page(settings, "engine", keeper, QUEUES) as port:
        assert port
        eventually(lambda: status(port, "/readyz") == 200)
        time.sleep(1)
        assert status(port, "/healthz") == 200
        publish(redis, messages(cost=20))
        eventually(lambda: status(port, "/healthz") == 503)
        assert status(port, "/readyz") == 503
        keeper.claim(QUEUES)
        eventually(lambda: status(port, "/healthz") == 200)


def test_a_killed_postgres_does_not_answer(postgres_server: Make) -> None:
    server = postgres_server()
    url = server.url_of("postgres")
    assert answers(url)
    server.kill()
    assert not answers(url)
