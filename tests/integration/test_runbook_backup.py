"""The backup of the runbook, made and brought back as it has people type it, on real servers."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

import pecia_migrations
from pecia import Client, Document, Job, JobNotFoundError, JobState, ReadDocument
from pecia_workers.local.servers import EmbeddedPostgres, postgres_programs
from tests.shared.compose_stack import COMPOSE
from tests.shared.fixture_types import Picture
from tests.shared.forking import Started
from tests.shared.limits import eventually
from tests.shared.runbook import RUNBOOK, Typed, typed
from tests.shared.snippets import blocks

pytestmark = pytest.mark.gate

HOME = "/var/lib/pecia"


@pytest.fixture
def postgres(postgres_server: Callable[..., EmbeddedPostgres]) -> EmbeddedPostgres:
    """Postgres as it is in its container: a database `pecia`, its owner of that name, and the role of the fleet."""
    server = postgres_server()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE pecia SUPERUSER LOGIN")
    given = {"POSTGRES_USER": "pecia", "POSTGRES_DB": "pecia", "FLEET_DATABASE_PASSWORD": "any"}
    subprocess.run([COMPOSE / "postgres" / "roles.sh"], env=programs_of(server) | given, check=True)
    pecia_migrations.upgrade(server.url.replace("postgres@", "pecia@"))
    return server


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> str:
    return postgres.url.replace("postgres@", "fleet@")


def programs_of(server: EmbeddedPostgres) -> dict[str, str]:
    """Return an environment in which `psql` and its like are found, and find the server."""
    path = f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PGHOST": str(server.sockets), "PGPORT": "5432"}


@pytest.fixture
def payload_url(tmp_path: Path) -> str:
    path = tmp_path / "documents"
    path.mkdir()
    return str(path)


def backup_and_restore() -> list[list[str]]:
    """Return what is typed to make a backup, and to bring it back, in the containers of Postgres and of a client."""
    (section,) = re.findall("^## Backup and restore$(.*?)^## ", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    in_containers = [one for one in typed() if one.service and not one.pecia]
    return [[_outside(one) for one in in_containers if one.line in block] for block in blocks(section, "sh")]


def _outside(command: Typed) -> str:
    """Return it for a shell on this machine, with what it reads from or writes to."""
    redirection = re.search(r" [<>] \S+$", command.line)
    return shlex.join(command.inside) + (redirection[0] if redirection else "")


@pytest.fixture
def shell(postgres: EmbeddedPostgres, tmp_path: Path) -> Callable[[str], None]:
    """Runs a line where the containers' files are."""

    def run(line: str) -> None:
        here = line.replace(HOME, str(tmp_path))
        subprocess.run(["sh", "-c", here], cwd=tmp_path, env=programs_of(postgres), check=True)

    return run


@pytest.fixture
def submit(client: Client, picture: Picture) -> Callable[[int], Job[Document]]:
    return lambda shade: client.submit(ReadDocument(picture(shade=shade)))


def test_what_the_backup_had_is_back_and_the_fleet_goes_on(
    submit: Callable[[int], Job[Document]],
    scribe: Any,
    shell: Callable[[str], None],
    payload_url: str,
    postgres: EmbeddedPostgres,
) -> None:
    backup, restore = backup_and_restore()
    done, waiting = submit(1), submit(2)
    scribe.read(done.id, text="read before")
    for line in backup:
        shell(line)

    scribe.read(waiting.id)
    later = submit(3)
    with psycopg.connect(postgres.url) as newer_version:
        newer_version.execute("CREATE TABLE newer (job_id uuid REFERENCES jobs)")
    shutil.rmtree(payload_url)
    for line in restore:
        shell(line)

    assert done.refresh().result().text == "read before"
    assert waiting.refresh().state is JobState.QUEUED
    with pytest.raises(JobNotFoundError):
        later.refresh()
    assert sum(path.is_file() for path in Path(payload_url).rglob("*")) == 2
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT to_regclass('newer')").fetchone() == (None,)

    pecia_migrations.upgrade(postgres.url.replace("postgres@", "pecia@"))
    for job in (waiting, submit(4)):
        scribe.read(job.id, text="read after")
        assert job.refresh().result().text == "read after"


def test_redis_needs_no_backup(
    submit: Callable[[int], Job[Document]], started: Started, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as redis:
        submit(1)
        assert redis.llen("read.normal") == 1
        redis.flushall()
        started.worker("upkeep")
        eventually(lambda: redis.llen("read.normal") == 1, what="the part that waited")
