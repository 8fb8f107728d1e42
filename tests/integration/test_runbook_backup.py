"""What the runbook has people type, typed: its backup made and brought back, its questions asked, on real servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from redis import Redis
from typer.testing import CliRunner

from pecia import Client, Document, Job, JobNotFoundError, JobState, ReadDocument
from pecia.cli.app import app
from pecia_workers.local.postgres import EmbeddedPostgres
from pecia_workers.local.wheels import postgres_programs
from runbook import Typed, typed

HOME = "/var/lib/pecia"
QUESTIONS = {"audit", "dead list", "doctor", "keys new", "keys status", "list", "purge"}
"""Verbs of the runbook that change nothing as it has them typed, and want nothing but the stores."""


@pytest.fixture
def database_url(database_url: str, session_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The database as it is in its container: called `pecia`, with somebody who is called so too."""
    name = urlsplit(database_url).path.removeprefix("/")
    with psycopg.connect(session_postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE pecia SUPERUSER LOGIN")
        connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO pecia").format(sql.Identifier(name)))
        try:
            yield session_postgres.url_of("pecia")
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'pecia'"
            )
            connection.execute(sql.SQL("ALTER DATABASE pecia RENAME TO {}").format(sql.Identifier(name)))
            connection.execute("DROP ROLE pecia")


@pytest.fixture
def payload_url(tmp_path: Path) -> str:
    path = tmp_path / "documents"
    path.mkdir()
    return str(path)


def parts_of_the_stores(word: str) -> list[str]:
    """Return the lines of the runbook that run `pg_dump`, say, and its neighbour for the documents."""
    section = [one for one in typed() if one.service and one.inside[0] in ("pg_dump", "pg_restore", "tar")]
    wanted = {"backup": ("pg_dump", "--create"), "restore": ("pg_restore", "--extract")}[word]
    return [_outside(one) for one in section if one.inside[0] in wanted or one.inside[1] in wanted]


def _outside(command: Typed) -> str:
    """Return what is typed in a container, for a shell on this machine, with its redirections."""
    program = command.inside[0]
    after = command.line.index(program) + len(program)
    rest = command.line[after:].replace("client ", "", 1) if program == "tar" else command.line[after:]
    return program + rest


@pytest.fixture
def shell(session_postgres: EmbeddedPostgres, tmp_path: Path) -> Callable[[str], None]:
    """Runs a line where the containers' files are."""
    path = f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PGHOST": str(session_postgres.sockets), "PGPORT": "5432"}

    def run(line: str) -> None:
        here = line.replace(HOME, str(tmp_path))
        subprocess.run(["sh", "-c", here], cwd=tmp_path, env=environment, check=True)

    return run


@pytest.fixture
def upkeep(stores: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Starts upkeep as a process."""
    started = []

    def start() -> None:
        command = [sys.executable, "-m", "pecia_workers", "worker", "upkeep"]
        started.append(subprocess.Popen(command, env=os.environ | stores, stderr=subprocess.DEVNULL))

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


@pytest.fixture
def submit(client: Client, picture: Callable[..., bytes]) -> Callable[[int], Job[Document]]:
    return lambda shade: client.submit(ReadDocument(picture(shade=shade)))


def test_what_the_backup_had_is_back(
    submit: Callable[[int], Job[Document]], scribe: Any, shell: Callable[[str], None], payload_url: str
) -> None:
    done, waiting = submit(1), submit(2)
    scribe.read(done.id, text="read before")
    backup = parts_of_the_stores("backup")
    assert [line.split()[0] for line in backup] == ["pg_dump", "tar"]
    for line in backup:
        shell(line)

    scribe.read(waiting.id)
    later = submit(3)
    shutil.rmtree(payload_url)

    restore = parts_of_the_stores("restore")
    assert [line.split()[0] for line in restore] == ["pg_restore", "tar"]
    for line in restore:
        shell(line)

    assert done.refresh().result().text == "read before"
    assert waiting.refresh().state is JobState.QUEUED
    with pytest.raises(JobNotFoundError):
        later.refresh()
    assert sum(path.is_file() for path in Path(payload_url).rglob("*")) == 2


def test_redis_needs_no_backup(
    submit: Callable[[int], Job[Document]],
    upkeep: Callable[[], None],
    redis_url: str,
    eventually: Callable[..., Any],
) -> None:
    with Redis.from_url(redis_url) as redis:
        submit(1)
        assert redis.llen("read.normal") == 1
        redis.flushall()
        upkeep()
        eventually(lambda: redis.llen("read.normal") == 1, timeout=120, what="the part that waited")


def questions() -> list[tuple[str, ...]]:
    found = {one.pecia for one in typed() if one.pecia}
    return sorted(words for words in found if {words[0], " ".join(words[:2])} & QUESTIONS)


def test_every_question_of_the_runbook_is_asked() -> None:
    asked = {" ".join(words) for words in questions()}
    assert {"doctor", "doctor --deep", "dead list", "purge --before 90d --dry-run", "keys status"} <= asked


@pytest.mark.parametrize("words", questions(), ids=" ".join)
def test_a_question_is_answered(words: tuple[str, ...], stores: dict[str, str]) -> None:
    told = CliRunner().invoke(app, words, env=stores)
    nobody_on_duty = 4 if words[0] == "doctor" else 0
    assert told.exit_code == nobody_on_duty, told.output
    assert told.stdout or words[0] in ("audit", "dead", "list")
