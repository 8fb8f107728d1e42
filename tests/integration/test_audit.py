"""Who was handed a result is written down, once for each call, in the transaction that read it."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pecia.accounts
from pecia import Client, ClientSettings, Job, JobFailedError, ReadDocument
from pecia_schemas.failures import FailureCode
from tests.shared.command import ran
from tests.shared.fixture_types import Make, Picture

pytestmark = pytest.mark.gate

PAGE = (Path(__file__).parents[2] / "docs" / "retention.md").read_text()


@pytest.fixture
def open_client(database_url: str, redis_url: str, payload_url: str) -> Iterator[Callable[..., Client]]:
    """Opens clients by their name."""
    opened: list[Client] = []

    def run(name: str, **changes: Any) -> Client:
        stores = {"database_url": database_url, "redis_url": redis_url, "payload_url": payload_url}
        opened.append(
            Client(settings=ClientSettings.model_validate(stores | changes | {"client_name": name}))
        )
        return opened[-1]

    yield run
    for client in opened:
        client.close()


@pytest.fixture
def ward(open_client: Callable[..., Client]) -> Client:
    return open_client("ward-3")


@pytest.fixture
def read(ward: Client, scribe: Any) -> Job[Any]:
    """A document of two pages that has been read."""
    job = ward.submit(ReadDocument(b"%PDF-1.7"))
    scribe.cut(job.id, 2)
    scribe.read(job.id, 0)
    scribe.read(job.id, 1)
    return job.refresh()


def trail(reader: Client, **which: Any) -> list[tuple[str, str]]:
    return [(entry.actor, entry.action) for entry in reader.audit(**which)]


def test_pages_are_noted_before_the_first_of_them_is_handed_out(ward: Client, scribe: Any) -> None:
    job = ward.submit(ReadDocument(b"%PDF-1.7"))
    scribe.cut(job.id, 2)
    scribe.read(job.id, 0)
    next(job.pages())
    assert trail(ward, job=job) == [("client:ward-3", "pages")]


def test_looking_at_a_job_is_no_reading(ward: Client, scribe: Any, picture: Picture) -> None:
    job = ward.submit(ReadDocument(picture()))
    scribe.fail(job.id, code=FailureCode.DAMAGED)
    job.refresh()
    job.usage()
    list(job.events())
    list(ward.jobs())
    with pytest.raises(JobFailedError):
        job.result()
    with pytest.raises(JobFailedError):
        list(job.pages())

    assert trail(ward) == []


def test_the_trail_is_newest_first(read: Job[Any], ward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pecia.accounts, "_PAGE", 2)
    for _ in range(3):
        read.result()
    ward.purge([read])
    ward.purge([ward.submit(ReadDocument(b"another"))])
    entries = list(ward.audit())
    assert [entry.action for entry in entries] == ["erased", "erased", "result", "result", "result"]
    assert [entry.at for entry in entries] == sorted((entry.at for entry in entries), reverse=True)


def test_what_the_page_shows_from_python_and_psql_runs_as_it_stands(
    read: Job[Any], ward: Client, stores: dict[str, str], database_url: str
) -> None:
    ward.submit(ReadDocument(b"of a patient"), metadata={"patient": "4711"})
    read.result()
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    queries, _ = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)

    ended = ran(sys.executable, "-c", snippet, env=stores)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(" 0 erased\n")
    with psycopg.connect(database_url) as connection:
        reads, erasures = (
            connection.execute(query.encode()).fetchall() for query in queries.strip().split(";\n")
        )
    assert reads == []
    assert [row[2] for row in erasures] == ["request 2026-17"]


def test_an_application_whose_role_is_set_up_as_the_page_says_cannot_change_the_trail(
    read: Job[Any], ward: Client, open_client: Make, database_url: str
) -> None:
    _, revoking = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    name = f"application_{os.getpid()}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN".encode())
        owner.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}".encode()
        )
        owner.execute(revoking.replace("application", name).encode())
    try:
        url = database_url.replace("postgres@", f"{name}@")
        application = open_client(name, database_url=url)
        application.job(read.id).result()
        application.purge([read])

        assert trail(ward) == [(f"client:{name}", "erased"), (f"client:{name}", "result")]
        with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM reads")
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute(f"DROP OWNED BY {name}".encode())
            owner.execute(f"DROP ROLE {name}".encode())
