"""The fleets that a contract is tried on: `fleet` waits for orders, in memory and on real servers."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pecia import AsyncClient, Client
from pecia.testing import FakeFleet
from pecia_workers.local.servers import EmbeddedPostgres, start_redis
from tests.shared.gateways import Gateway, serving
from tests.shared.ready_cluster import TEMPLATE
from tests.shared.real_fleet import RealFleet
from tests.shared.synced import synced

__all__ = ["client", "fleet", "gateway", "real_fleet"]


@pytest.fixture(scope="module")
def real_fleet(session_postgres: EmbeddedPostgres, session_directory: Path) -> Iterator[RealFleet]:
    """One for all tests of a module: to empty it costs a tenth of making another."""
    name = f"contract_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(session_postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
        )
    home = session_directory / name
    home.mkdir()
    redis = start_redis(home, socket_dir=home, durable=False)
    with RealFleet(session_postgres.url_of(name), redis.url, str(home / "payloads")) as fleet:
        yield fleet
    redis.kill()


class Awaited:
    """A fake fleet whose clients are asynchronous, and called as if they were not."""

    def __init__(self, fleet: FakeFleet, stack: ExitStack) -> None:
        self._fleet = fleet
        self._stack = stack

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def client(self, *about: Any, **settings: Any) -> Any:
        return self._stack.enter_context(synced(self._fleet.async_client(*about, **settings)))


@pytest.fixture(scope="module")
def gateway(real_fleet: RealFleet) -> Iterator[Gateway]:
    """One before the real fleet."""
    with serving(real_fleet.settings) as gateway:
        yield gateway


@pytest.fixture(params=["fake", "fake-async", "real", "real-async", "remote", "remote-async"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fleet to be told, whose clients are of either kind."""
    if request.param.startswith("re"):
        real: RealFleet = request.getfixturevalue("real_fleet")
        real.kind = AsyncClient if request.param.endswith("async") else Client
        if request.param.startswith("remote"):
            if request.node.get_closest_marker("operators"):
                pytest.skip("a gateway does not offer it")
            gateway: Gateway = request.getfixturevalue("gateway")
            real.gateway_url, real.api_key = gateway.url, gateway.key(name="test")[1]
        yield real
        real.gateway_url = ""
        real.empty()
        return
    if request.node.get_closest_marker("servers"):
        pytest.skip("a fake fleet does not offer it")
    with FakeFleet(held=True) as fake, ExitStack() as stack:
        yield fake if request.param == "fake" else Awaited(fake, stack)


@pytest.fixture
def client(fleet: Any) -> Client:
    client: Client = fleet.client()
    return client
