"""Everything works behind a PgBouncer in transaction mode, and leaves nothing on the connections that others get."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

import pecia_migrations
from pecia import AsyncClient, Client, JobState, ReadDocument
from pecia_schemas.connecting import sqlstate_of
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.storable import REVISION
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.retention import retention_steps
from pecia_workers.local.process import Account, spawn
from pecia_workers.local.servers import EmbeddedPostgres
from pecia_workers.protocol.parts import Done, Finished
from pecia_workers.upkeep.loop import _duties, open_stores
from tests.shared.fixture_types import Picture
from tests.shared.hand_made_pdfs import blank_pdf
from tests.shared.house import House, claimed
from tests.shared.limits import eventually
from tests.shared.synced import synced

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(not _PROGRAM, reason="there is no pgbouncer here: apt-get install pgbouncer"),
]

SERVERS = 3
"""Server connections of the pool. Each transaction gets another than the one before."""
MANY = 12
"""Times that a statement runs on one connection: more than it takes until a driver prepares it."""


@pytest.fixture
def pooled(session_postgres: EmbeddedPostgres, short_path: Path) -> Iterator[Callable[[str], str]]:
    """Returns a database's URL through the pooler."""
    owner = session_postgres.sockets.stat()
    root = os.geteuid() == 0  # as which it refuses to run
    account = Account(name="postgres", uid=owner.st_uid, gid=owner.st_gid) if root else None
    (short_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={session_postgres.sockets} user=postgres\n"
        f"[pgbouncer]\npool_mode = transaction\ndefault_pool_size = {SERVERS}\nserver_round_robin = 1\n"
        f"auth_type = any\nlisten_addr =\nunix_socket_dir = {short_path}\n"
    )
    if account:
        os.chown(short_path, account.uid, account.gid)
    assert _PROGRAM
    pooler = spawn(
        [_PROGRAM, short_path / "pgbouncer.ini"], log=short_path / "log", directory=Path("/"), account=account
    )
    yield lambda url: f"postgresql://anyone@{urlsplit(url).path}?host={short_path}&port=6432"
    pooler.stop()


@pytest.fixture
def pooled_url(pooled: Callable[[str], str], database_url: str) -> str:
    """The test's database through the pooler, which has all its server connections."""
    url = pooled(database_url)
    eventually(lambda: all_are_open(url))
    return url


def all_are_open(url: str) -> bool:
    with suppress(psycopg.OperationalError), ExitStack() as stack:
        for _ in range(SERVERS):
            stack.enter_context(psycopg.connect(url)).execute("SELECT 1")  # in a transaction, each its own
        return True
    return False


def strangers_find(url: str) -> set[tuple[object, ...]]:
    """What others find on the server connections of the pool: time limits, and how many prepared statements."""
    query = (
        "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),"
        " (SELECT count(*) FROM pg_prepared_statements)"
    )
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as stranger:
        return {stranger.execute(query).fetchall()[0] for _ in range(2 * SERVERS)}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_submits_lists_and_cancels(
    pooled_url: str, redis_url: str, payload_url: str, picture: Picture, kind: Any
) -> None:
    opened: Any = kind(pooled_url, redis_url, payload_url)
    with opened if kind is Client else synced(opened) as client:
        jobs = [client.submit(ReadDocument(picture(shade=shade))) for shade in range(MANY)]
        for job in jobs:
            assert job.cancel()
        assert [job.state for job in client.jobs()] == [JobState.CANCELLED] * MANY
    assert strangers_find(pooled_url) == {("0", "0", 0)}


def test_a_worker_claims_and_commits(pooled_url: str, client: Client, scribe: Any, house: House) -> None:
    job = client.submit(ReadDocument(blank_pdf(MANY)))
    scribe.cut(job.id, MANY)
    with psycopg.connect(pooled_url, prepare_threshold=None) as connection:
        rows = connection.execute("SELECT id FROM parts WHERE stage = 'read' ORDER BY ordinal").fetchall()

    async def work(ledger: Ledger) -> None:
        for number, (part,) in enumerate(rows, 1):
            page = Page(number=number, verdict=Verdict.OK, width=10, height=10, engine="test")
            assert await ledger.commit(Finished(part=await claimed(ledger, part), outcome=Done(page)))

    replace(house, database_url=pooled_url).play(work)
    assert job.refresh().state is JobState.SUCCEEDED
    assert strangers_find(pooled_url) == {("0", "0", 0)}


def test_upkeep_does_all_its_steps(pooled_url: str, redis_url: str, client: Client, picture: Picture) -> None:
    expired = client.submit(ReadDocument(picture()), expires=timedelta(milliseconds=1))
    settings = WorkerSettings(database_url=SecretStr(pooled_url), redis_url=SecretStr(redis_url))

    async def keep() -> None:
        async with open_stores(settings) as stores:
            for _ in range(MANY):
                for duty in _duties(stores, settings).values():
                    await duty()
                for step in retention_steps(settings).values():
                    await step(stores.database)

    asyncio.run(keep())
    assert expired.refresh().state is JobState.EXPIRED
    assert strangers_find(pooled_url) == {("0", "0", 0)}


def test_the_tables_are_made_and_kept(pooled: Callable[[str], str], empty_database_url: str) -> None:
    url = pooled(empty_database_url)
    eventually(lambda: all_are_open(url))
    pecia_migrations.upgrade(url)
    assert pecia_migrations.revision_of(url) == REVISION
    assert strangers_find(url) == {("0", "0", 0)}


def test_a_statement_is_ended_by_the_server_in_time(pooled_url: str, house: House) -> None:
    async def sleep(database: AsyncEngine) -> str | None:
        async with database.connect() as connection:
            with pytest.raises(OperationalError) as raised:
                await connection.execute(text("SELECT pg_sleep(60)"))
        return sqlstate_of(raised.value)

    assert replace(house, database_url=pooled_url).ask(sleep, timeout=timedelta(seconds=1)) == "57014"


def test_statements_are_prepared_where_no_pooler_stands_between(house: House) -> None:
    async def prepared(database: AsyncEngine) -> Any:
        for _ in range(MANY):
            async with database.begin() as connection:
                await connection.execute(text("SELECT 1"))
        async with database.begin() as connection:
            return await connection.scalar(text("SELECT count(*) FROM pg_prepared_statements"))

    assert house.ask(prepared, connections=1) == 1
