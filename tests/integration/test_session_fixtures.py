"""What the test session promises to every test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from redis import Redis

from pecia_workers.local.process import processes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.gate

_TESTS = Path(__file__).parents[1]
_HANGING_TEST = """
import pathlib, time

def test_that_hangs(session_postgres, redis_server, session_directory):
    redis = redis_server()
    pathlib.Path("servers").write_text(f"{session_postgres.data}\\n{redis.data}")
    pathlib.Path("ready").touch()
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def left() -> Iterator[list[psycopg.Connection[Any]]]:
    """Sessions that tests have left open."""
    sessions: list[psycopg.Connection[Any]] = []
    yield sessions
    for session in sessions:
        session.close()


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_gets_a_migrated_database_without_rows_and_sessions(
    database_url: str, left: list[psycopg.Connection[Any]], run: int
) -> None:
    session = psycopg.connect(database_url, autocommit=True)
    left.append(session)
    assert session.execute("SELECT count(*) FROM receivers").fetchone() == (0,)
    sessions = session.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    assert sessions.fetchone() == (1,)
    session.execute("INSERT INTO receivers (receiver, failures) VALUES ('leftover', %s)", [run])


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_gets_an_empty_redis(redis_url: str, run: int) -> None:
    with Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("leftover", run)


def test_no_setting_of_the_caller_reaches_the_tests() -> None:
    assert [name for name in os.environ if name.startswith("PECIA_")] == []


def test_eventually_fails_with_a_sentence(eventually: Callable[..., Any]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"The moon did not come true within 0\.05 s"):
        eventually(lambda: False, timeout=0.05, what="The moon")


def test_a_killed_session_leaves_no_server_behind(
    tmp_path: Path, request: pytest.FixtureRequest, eventually: Callable[..., Any]
) -> None:
    cache = request.config.rootpath / request.config.getini("cache_dir")
    (tmp_path / "conftest.py").write_text((_TESTS / "conftest.py").read_text())
    (tmp_path / "test_hanging.py").write_text(_HANGING_TEST)
    session = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", "test_hanging.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(_TESTS / "shared")},
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually((tmp_path / "ready").exists)
        directories = [Path(line) for line in (tmp_path / "servers").read_text().splitlines()]
        assert all(processes_in(directory) for directory in directories)
    finally:
        session.send_signal(signal.SIGKILL)
        session.wait()
    eventually(
        lambda: not any(processes_in(directory) for directory in directories), what="The end of the servers"
    )
