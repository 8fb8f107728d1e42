"""Redis and Postgres behind TLS and accounts: whom we talk to is verified, and a refusal is one sentence."""

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kombu.connection import Connection
from PIL import Image
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError
from sqlalchemy.exc import OperationalError

from pecia import AsyncClient, Client, DatabaseUnavailableError, JobTimeoutError, ReadDocument
from pecia.aio.connections import AsyncPublisher
from pecia.gateway import bounds
from pecia_schemas.connecting import refusal_of_postgres, refusal_of_redis
from pecia_workers.ledger.database import open_database
from pecia_workers.local.servers import EmbeddedPostgres
from pecia_workers.queue import transport
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import celery_settings, connect
from tests.shared.command import ran, run_pecia
from tests.shared.fixture_types import Make
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded
from tests.shared.secured_stores import SecuredStores, secured
from tests.shared.synced import synced

pytestmark = pytest.mark.gate

WRONG = "Rumpelstiltskin"


@pytest.fixture
def stores(
    tmp_path: Path, redis_server: Make, session_postgres: EmbeddedPostgres, database_url: str
) -> Iterator[SecuredStores]:
    with secured(tmp_path, redis_server(durable=False), session_postgres, database_url) as stores:
        yield stores


def picture() -> bytes:
    return encoded(Image.new("L", (80, 60), 255), "PNG")


def pecia(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "-m", "pecia", *command, env=environment)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_submits_with_its_own_account(stores: SecuredStores, payload_url: str, kind: Any) -> None:
    opened: Any = kind(stores.database_url(), stores.redis_url("client"), payload_url)
    with opened if kind is Client else synced(opened) as client:
        job = client.submit(ReadDocument(picture()))
        with pytest.raises(JobTimeoutError):
            job.wait(timeout=0.5)
        job.cancel()

        assert stores.admin.llen("read.normal") == 1
        assert client.job(job.id).wait(timeout=WAIT_S).done
    assert stores.denied == set()


REFUSED_TO_CLIENTS = (
    ("LRANGE", "read.normal", "0", "-1"),
    ("HGETALL", "pecia:leased"),
    ("LPUSH", "pecia:leases", "x"),
    ("PUBLISH", "/0.celery.pidbox", "x"),
    ("PSUBSCRIBE", "*"),
    ("SCAN", "0"),
)
REFUSED_TO_THE_FLEET = (
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("ACL", "LIST"),
    ("SHUTDOWN",),
    ("GET", "somebody-elses"),
    ("SUBSCRIBE", "somebody-elses"),
)
REFUSED_TO_BOTH = (("FLUSHALL",), ("CONFIG", "GET", "*"), ("MONITOR",))


@pytest.mark.parametrize(
    ("account", "refused"),
    [(("client",), REFUSED_TO_CLIENTS), ((), REFUSED_TO_THE_FLEET)],
    ids=["client", "fleet"],
)
def test_an_account_does_nothing_but_its_work(
    stores: SecuredStores, account: tuple[str, ...], refused: tuple[tuple[str, ...], ...]
) -> None:
    with Redis.from_url(stores.redis_url(*account)) as redis:
        for command in refused + REFUSED_TO_BOTH:
            with pytest.raises(NoPermissionError):
                redis.execute_command(*command)


REDIS_DOORS = {
    "a stranger's certificate": (
        lambda stores: stores.redis_url(trust=stores.stranger),
        "no trusted authority",
    ),
    "no authority named": (lambda stores: stores.redis_url(options="?db=0"), "no trusted authority"),
    "an authority that is not there": (
        lambda stores: stores.redis_url(options="?ssl_ca_certs=/nowhere.pem"),
        "is missing",
    ),
    "an expired certificate": (lambda stores: stores.redis_url(door="expired"), "has expired"),
    "another's certificate": (lambda stores: stores.redis_url(door="elsewhere"), "for another name"),
    "a wrong password": (
        lambda stores: stores.redis_url(password=WRONG),
        "refuses the account or its password",
    ),
}
POSTGRES_DOORS = {
    "a stranger's certificate": (
        lambda stores: stores.database_url(trust=stores.stranger),
        "is signed by no trusted authority",
    ),
    "an expired certificate": (lambda stores: stores.database_url(door="expired"), "has expired"),
    "another's certificate": (lambda stores: stores.database_url(door="elsewhere"), "for another name"),
    "a wrong password": (
        lambda stores: stores.database_url(password=WRONG),
        "refuses the account or its password",
    ),
}
Door = tuple[Callable[[SecuredStores], str], str]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("door", REDIS_DOORS.values(), ids=list(REDIS_DOORS))
def test_no_connection_to_redis_goes_through_a_wrong_door(stores: SecuredStores, door: Door) -> None:
    """Our scripts', the loop's and kombu's, which by itself would verify nothing."""
    url, said = door[0](stores), door[1]

    with pytest.raises((RedisError, OSError)) as ours, connect(url) as redis:
        redis.ping()
    with pytest.raises((RedisError, OSError)):
        asyncio.run(_publish_on(Bus(url)))
    with pytest.raises((RedisError, OSError)), _kombu(url) as connection:
        connection.connect()
    # redis-py does not wait for the peer's goodbye when it is refused: a loop may end before its TLS socket is closed.
    gc.collect()
    assert said in (refusal_of_redis(ours.value, url) or "")


async def _publish_on(bus: Bus) -> None:
    try:
        await bus._redis.ping()
    finally:
        await bus.close()


def _kombu(url: str) -> Connection:
    transport.install()
    settings = celery_settings(url)
    return Connection(settings["broker_url"], ssl=settings["broker_use_ssl"])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("door", POSTGRES_DOORS.values(), ids=list(POSTGRES_DOORS))
def test_no_wrong_door_leads_to_postgres(stores: SecuredStores, payload_url: str, door: Door) -> None:
    """The fleet's, a client's, and that of a verb which needs Postgres alone."""
    url, said = door[0](stores), door[1]

    async def look() -> None:
        database = open_database(url)
        try:
            async with database.connect():
                """Nobody comes here."""
        finally:
            await database.dispose()

    with pytest.raises(OperationalError) as fleets:
        asyncio.run(look())
    assert said in (refusal_of_postgres(fleets.value, url) or "")
    with Client(url, stores.redis_url("client"), payload_url) as client:
        with pytest.raises(DatabaseUnavailableError, match=said) as caught:
            list(client.jobs())
        assert WRONG not in str(caught.value)
    ran = run_pecia("migrate", env={"PECIA_DATABASE_URL": url})
    assert (ran.returncode, ran.stderr.count("\n")) == (4, 1)
    assert said in ran.stderr
    assert WRONG not in ran.stderr


def test_a_client_whom_redis_alone_refuses_is_served_and_warned_once(
    stores: SecuredStores, payload_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = stores.redis_url("client", WRONG)
    with caplog.at_level(logging.WARNING), Client(stores.database_url(), url, payload_url) as client:
        jobs = [client.submit(ReadDocument(picture())) for _ in range(2)]
        client._open().bus._rests_until = 0
        jobs[0].cancel()

    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("pecia.")]
    assert len(warnings) == 1
    assert "refuses the account or its password: correct PECIA_REDIS_URL" in warnings[0]
    assert WRONG not in caplog.text


async def test_a_gateway_counts_requests_with_the_account_of_clients(
    stores: SecuredStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_PATIENCE_S", WAIT_S)  # a busy machine is no Redis without an answer
    bus = AsyncPublisher(
        lambda: stores.redis_url("client"), connect_timeout=timedelta(seconds=WAIT_S), window=1
    )
    rate, key = bounds.SharedRate(bus, 0.01), uuid4()
    try:
        assert [await rate.take(key) for _ in range(2)] == [True, False]
    finally:
        await bus.close()
    assert not stores.denied


@pytest.mark.parametrize("command", [("worker", "upkeep"), ("up",), ("doctor",)])
def test_a_fleets_verb_ends_with_a_sentence_for_each_server_that_refuses(
    stores: SecuredStores, payload_url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    ran = pecia(
        *command,
        PECIA_DATABASE_URL=stores.database_url(WRONG),
        PECIA_REDIS_URL=stores.redis_url(door="expired"),
        PECIA_PAYLOAD_URL=payload_url,
        PECIA_HOME=str(tmp_path / "home"),
        COLUMNS="200",
    )

    told = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 4, told
    assert "shows a certificate that has expired: renew it." in told
    assert "refuses the account or its password: correct PECIA_DATABASE_URL." in told
    assert "Traceback" not in told
    assert WRONG not in told
