"""A Redis that answers and takes no writes is an outage: every connection to it ends, and new ones reach the master."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from pecia_schemas import redis_connections
from pecia_schemas.redis_connections import connect, connect_async
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import FleetApp
from pecia_workers.queue import transport
from pecia_workers.queue.lists import QUEUES
from pecia_workers.queue.transport import Capacity, Keeper
from tests.shared.failover import RedisPair, redis_pair
from tests.shared.fixture_types import Make
from tests.shared.limits import WAIT_S, eventually


@pytest.fixture
def pair(short_path: Path) -> Iterator[RedisPair]:
    with redis_pair(short_path) as pair:
        yield pair


@pytest.fixture
def _checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are pinged after a moment, not after five seconds."""
    monkeypatch.setattr(redis_connections, "HEALTH_CHECK_S", 0.3)


def write(redis: Redis) -> Any:
    return redis.set("key", 1)


def run_script(redis: Redis) -> Any:
    return redis.eval("return redis.call('SET', KEYS[1], 1)", 1, "key")


def write_on_pipeline(redis: Redis) -> Any:
    with redis.pipeline(transaction=False) as pipe:
        pipe.get("key")
        pipe.set("key", 1)
        return pipe.execute()


@pytest.mark.parametrize("use", [write, run_script, write_on_pipeline])
def test_a_write_that_a_former_master_refuses_is_made_at_the_new_one(
    pair: RedisPair, use: Callable[[Redis], Any]
) -> None:
    with connect(pair.url) as redis:
        use(redis)
        pair.fail_over()
        use(redis)
        assert pair.servers[1].get("key") == b"1"
        eventually(lambda: not pair.left_behind())


async def test_so_it_is_on_a_loop(pair: RedisPair) -> None:
    redis = connect_async(pair.url)
    await redis.set("key", 1)
    pair.fail_over()
    await redis.eval("return redis.call('SET', KEYS[1], 2)", 1, "key")
    assert pair.servers[1].get("key") == b"2"
    await asyncio.to_thread(eventually, lambda: not pair.left_behind())
    await redis.aclose()


async def test_so_it_is_on_a_unix_socket(pair: RedisPair) -> None:
    redis = connect_async(f"unix://{pair.socket}")
    await redis.set("key", 1)
    pair.fail_over()
    with pytest.raises(RedisConnectionError):
        await redis.set("key", 2)
    await redis.aclose()


async def test_a_redis_that_stands_still_is_given_up_on_a_loop(redis_server: Make) -> None:
    server = redis_server()
    redis = connect_async(server.url)
    os.kill(server.pid, signal.SIGSTOP)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(RedisError):
            await redis.get("key")
    await redis.aclose()


def test_one_refusal_ends_every_connection_of_the_process(pair: RedisPair) -> None:
    with connect(pair.url) as writer, connect(pair.url) as reader:
        writer.set("key", "old")
        assert reader.get("key") == b"old"
        pair.fail_over()
        writer.set("key", "new")
        assert reader.get("key") == b"new"
        eventually(lambda: not pair.left_behind())


@pytest.mark.usefixtures("_checked_often")
def test_a_connection_that_only_reads_finds_the_new_master(pair: RedisPair) -> None:
    with connect(pair.url) as redis:
        assert redis.get("key") is None
        pair.fail_over()
        pair.servers[1].set("key", "new")
        eventually(lambda: redis.get("key"))


@pytest.mark.usefixtures("_checked_often")
def test_a_subscriber_hears_the_new_master(pair: RedisPair) -> None:
    with connect(pair.url) as redis, redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("news")
        pair.fail_over()

        def hears() -> bool:
            pair.servers[1].publish("news", "good")
            return pubsub.get_message(timeout=0.1) is not None

        eventually(hears)


@pytest.mark.usefixtures("_checked_often")
async def test_so_does_one_on_a_loop(pair: RedisPair) -> None:
    redis = connect_async(pair.url)
    async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("news")
        await pubsub.get_message(timeout=0.1)
        pair.fail_over()
        message = None
        while message is None:
            await asyncio.to_thread(pair.servers[1].publish, "news", "good")
            message = await pubsub.get_message(timeout=0.1)
    await redis.aclose()


@pytest.mark.usefixtures("_checked_often")
def test_flower_hears_the_events_at_the_new_master(pair: RedisPair) -> None:
    app, heard = FleetApp(WorkerSettings(redis_url=SecretStr(pair.url))), Event()

    def listen() -> None:
        """Go on after an error, as Flower does."""
        while not heard.is_set():
            with app.connection_for_read() as connection, suppress(*connection.connection_errors):
                handlers = {"*": lambda _: heard.set()}
                app.events.Receiver(connection, handlers=handlers).capture(
                    limit=1, timeout=None, wakeup=False
                )

    def is_heard() -> bool:
        with app.connection_for_write() as connection, app.events.Dispatcher(connection) as events:
            events.send("task-started", uuid="a part")
        return heard.wait(0.1)

    Thread(target=listen, daemon=True).start()
    eventually(lambda: "psubscribe" in [client["cmd"] for client in pair.servers[0].client_list()])
    pair.fail_over()
    eventually(is_heard)


def test_a_subscription_by_the_old_protocol_is_checked_by_ping_alone(pair: RedisPair) -> None:
    with connect(f"{pair.url}?protocol=2") as redis, redis.pubsub() as pubsub:
        pubsub.subscribe("news")
        pubsub.get_message(timeout=WAIT_S)
        pubsub.ping()
        assert (pubsub.get_message(timeout=WAIT_S) or {}).get("type") == "pong"


class OpenGate:
    def capacity(self) -> Capacity:
        return Capacity(slots=3, tokens=None, idle=True)

    def dispatch(self) -> None:
        pass


def test_redis_serves_as_far_as_what_claims_reaches_it(
    pair: RedisPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_AWAY_AFTER_S", 1)
    first, _ = pair.servers
    with connect(pair.url) as redis:
        keeper = Keeper(redis)
        keeper.gate = OpenGate()

        def look() -> bool:
            keeper.tend()
            return keeper.redis_serves

        assert look()
        first.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
        with pytest.raises(RedisConnectionError):
            keeper.claim(tuple(QUEUES))
        eventually(lambda: not look())
        first.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
        keeper.claim(tuple(QUEUES))
        assert look()
        first.config_set("maxmemory", 1)
        keeper.claim(tuple(QUEUES))
        eventually(lambda: not look(), what="a Redis that takes nothing new")
