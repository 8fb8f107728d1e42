"""Embedded Postgres and Redis: they start anywhere, come back at the same address, and die with their parent."""

import fcntl
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from pecia_workers.local import servers
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import Account, EmbeddedError, spawn
from pecia_workers.local.servers import (
    EmbeddedPostgres,
    EmbeddedRedis,
    postgres_programs,
    start_postgres,
    start_redis,
)
from tests.shared.fixture_types import Make

pytestmark = pytest.mark.gate


def test_postgres_starts_past_a_strangers_lock_file(postgres_server: Make) -> None:
    server = postgres_server()
    server.kill()
    lock = server.data / "postmaster.pid"
    lines = lock.read_text().splitlines()
    with subprocess.Popen(["sleep", "60"], user=lock.stat().st_uid) as stranger:
        lock.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        try:
            assert postgres_server(replaces=server).alive
        finally:
            stranger.kill()


def test_a_redis_that_is_silent_is_not_ready(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_path / "redis.sock"))
        silent.listen()
        with subprocess.Popen(["true"]) as process:
            server = EmbeddedRedis(popen=process, socket=short_path / "redis.sock", data=short_path)
        assert not server._is_ready()


def test_two_servers_never_share_their_data(redis_server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecia_workers.local.servers.LEAVING_S", 0.1)
    server = redis_server()
    with pytest.raises(
        EmbeddedError, match=f"Another Redis.*{server.pid}.*stop it, or choose another directory"
    ):
        start_redis(server.data)


def test_a_database_whose_making_was_interrupted_is_made_again(short_path: Path) -> None:
    unfinished = short_path / ".data.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18")
    server = start_postgres(short_path / "data", durable=False)
    server.stop()
    assert not unfinished.exists()


def test_what_a_statement_was_about_is_not_logged(postgres_server: Make) -> None:
    server = postgres_server()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE pages (body text CHECK (length(body) < 5))")
        connection.commit()
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("INSERT INTO pages VALUES (%s)", ["Planted words of a patient"])
    server.stop()
    assert "Planted" not in (server.data / "server.log").read_text()


def test_a_full_redis_refuses_rather_than_forgets(short_path: Path) -> None:
    server = start_redis(short_path / "data", durable=False, maxmemory="4mb")
    try:
        with Redis.from_url(server.url) as client:
            with pytest.raises(ResponseError, match="maxmemory"):
                _fill(client)
            assert client.exists("k0")
    finally:
        server.stop()


def _fill(client: Redis) -> None:
    for number in range(1000):
        client.set(f"k{number}", b"x" * 10_000)


def test_nobody_else_can_reach_the_servers(session_postgres: EmbeddedPostgres, redis_server: Make) -> None:
    redis = redis_server(durable=False)
    for directory in (session_postgres.sockets, redis.socket.parent):
        assert directory.stat().st_mode & 0o077 == 0
    with Redis.from_url(redis.url) as client:
        assert client.config_get("port") == {"port": "0"}


@pytest.mark.parametrize("chosen", [False, True], ids=["the temporary directory", "a chosen directory"])
def test_directories_of_the_dead_alone_are_swept(tmp_path: Path, *, chosen: bool) -> None:
    parent = tmp_path if chosen else None
    program = f"""
from pathlib import Path
from pecia_workers.local.home import ScratchDirectory
print(ScratchDirectory.create(*map(Path, {[str(tmp_path)] if chosen else []})).path, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        ScratchDirectory.create(parent).remove()
        assert path.is_dir()
        owner.kill()
    ScratchDirectory.create(parent).remove()
    assert not path.exists()


def test_a_scratch_directory_that_is_being_made_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_first(lock: int, how: int) -> None:
        monkeypatch.undo()
        ScratchDirectory.create(tmp_path).remove()
        fcntl.flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    assert ScratchDirectory.create(tmp_path).path.is_dir()


def test_sockets_stay_short_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("deep%20" * 20)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    scratch = ScratchDirectory.create()
    scratch.remove()
    assert scratch.path.parent != deep


def test_a_program_that_cannot_start_says_so_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert spawn([tmp_path / "missing"], log=log).popen.wait() == 1
    assert "cannot start" in log.read_text()


def test_postgres_never_runs_as_root(session_postgres: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{session_postgres.pid}").stat().st_uid != 0


def test_the_account_of_postgres_must_get_in(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Account(name="stranger", uid=54321, gid=54321)
    monkeypatch.setattr(servers, "_account_for", lambda _: stranger)
    short_path.chmod(0o700)
    with pytest.raises(EmbeddedError, match=r"closed to that account.*--home.*chmod o\+x"):
        start_postgres(short_path / "data", durable=False)


def test_programs_out_of_reach_run_from_a_copy(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = _closed_copy_of_the_wheel(short_path / "closed")
    monkeypatch.setattr(servers, "postgres_programs", lambda: programs)
    copy = servers._programs_for(Account(name="stranger", uid=54321, gid=54321), short_path)
    shutil.rmtree(short_path / "closed")
    answer = subprocess.check_output([copy / "postgres", "--version"], text=True)
    assert answer.startswith("postgres (PostgreSQL)")
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in (copy, *copy.parents[:3]))


def _closed_copy_of_the_wheel(target: Path) -> Path:
    installation = postgres_programs().parent
    package = installation.parent
    target.mkdir(mode=0o700)
    shutil.copytree(installation, target / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, target / libraries.name)
    return target / package.name / installation.name / "bin"
