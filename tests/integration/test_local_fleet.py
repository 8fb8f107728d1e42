"""The supervisor behind `pecia up`: it keeps what it started alive, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from pydantic import SecretStr
from redis import Redis

from pecia_schemas import running
from pecia_schemas.events import new_secret
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local import fleet as fleet_module
from pecia_workers.local.fleet import LocalFleet, WorkerCommand
from pecia_workers.local.process import EmbeddedError, FleetRunningError, Service, ServiceState, processes_in
from tests.shared.forking import forked_for, templates_of
from tests.shared.limits import WAIT_S, eventually

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("own_templates")]

_NO_FLOWER = WorkerSettings(flower_port=0)
_SLEEPER = WorkerCommand(
    name="sleeper", command=("/bin/sh", "-c", 'cd "$PECIA_PAYLOAD_URL"; sleep 600 & sleep 600')
)
_FORKED = """
import json, os, time
os.chdir(os.environ["PECIA_PAYLOAD_URL"])
print(json.dumps(dict(os.environ)), flush=True)
time.sleep(600)
"""
_SUPERVISOR = """
import sys, time
from pathlib import Path
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet, WorkerCommand

sleeper = WorkerCommand(name="sleeper", command=("/bin/sh", "-c", sys.argv[2]))
forked = [WorkerCommand(name="forked", command=(sys.executable, path), forked=True) for path in sys.argv[3:]]
workers = [sleeper, *forked]
LocalFleet(Path(sys.argv[1]), settings=WorkerSettings(flower_port=0), workers=workers, migrate=["/bin/true"]).start()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def home(short_path: Path, ready_cluster: Callable[[Path], None]) -> Path:
    """Where a fleet is to live: its database is there, without initdb and migrations."""
    home = short_path / "home"
    home.mkdir(mode=0o711)
    ready_cluster(home / "postgres")
    return home


@pytest.fixture(scope="module")
def fleet(session_directory: Path) -> Iterator[LocalFleet]:
    with LocalFleet(session_directory / "fleet", settings=_NO_FLOWER, workers=[_SLEEPER]) as fleet:
        fleet.wait_ready()
        yield fleet


def _unmigrated(home: Path, *workers: WorkerCommand, settings: WorkerSettings = _NO_FLOWER) -> LocalFleet:
    """Return a fleet that brings no tables up to date: Alembic takes longer to start than its servers."""
    return LocalFleet(home, settings=settings, workers=workers, migrate=["/bin/true"])


def _service(fleet: LocalFleet, name: str) -> Service:
    return next(service for service in fleet.services() if service.name == name)


def _kill(fleet: LocalFleet, name: str) -> int:
    pid = _service(fleet, name).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_fleet_says_what_runs_where_and_has_its_tables(fleet: LocalFleet) -> None:
    assert [service.name for service in fleet.services()] == ["postgres", "redis", "sleeper"]
    assert {service.state for service in fleet.services()} == {ServiceState.READY}
    assert _service(fleet, "postgres").where.startswith("postgresql://postgres@/pecia?host=/")
    assert Path(_service(fleet, "sleeper").where).stat().st_mode & 0o777 == 0o600
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


def test_a_dead_worker_is_replaced_and_its_children_end(fleet: LocalFleet) -> None:
    payloads = fleet.home.payloads
    before = set(eventually(lambda: len(found := processes_in(payloads)) == 3 and found))
    restarts = _service(fleet, "sleeper").restarts
    _kill(fleet, "sleeper")
    eventually(lambda: _service(fleet, "sleeper").restarts == restarts + 1)
    eventually(
        lambda: len(after := set(processes_in(payloads))) == 3 and not after & before, what="Its replacement"
    )


@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_a_dead_server_comes_back_as_it_was(fleet: LocalFleet, name: str) -> None:
    with Redis.from_url(fleet.settings.redis_url.get_secret_value()) as client:
        client.set("k", "v")
        eventually(lambda: not client.info("persistence")["aof_buffer_length"])
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
    dead = _kill(fleet, name)
    eventually(lambda: _service(fleet, name).pid not in (dead, None) and _service(fleet, name).restarts)
    eventually(lambda: _service(fleet, name).state is ServiceState.READY)
    with Redis.from_url(fleet.settings.redis_url.get_secret_value()) as client:
        assert client.get("k") == b"v"
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.parametrize(
    ("tries", "timeout", "told"),
    [(None, 0.5, r"broken \((re)?starting: .*broken\.log\)"), (2, 300, r"Not ready after \d+ s: broken")],
    ids=["for a while", "until it has died too often"],
)
def test_a_worker_that_cannot_run_is_tried_again_and_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, tries: int | None, timeout: float, told: str
) -> None:
    if tries:
        monkeypatch.setattr(fleet_module, "_TRIES", tries)
    broken = WorkerCommand(name="broken", command=("/bin/false",))
    with _unmigrated(home, broken) as fleet:
        with pytest.raises(EmbeddedError, match=told):
            fleet.wait_ready(timeout)
        eventually(lambda: _service(fleet, "broken").restarts)


def test_an_engine_that_its_settings_cannot_run_ends_the_wait_at_its_first_exit_with_its_reason(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "_TRIES", 10**6)
    settings = WorkerSettings(flower_port=0, engine="vllm", model=str(home))
    with (
        LocalFleet(home / "fleet", settings=settings) as fleet,
        pytest.raises(EmbeddedError, match=r"engine \(.*\n.*cannot start: EngineUnavailableError: "),
    ):
        fleet.wait_ready(WAIT_S)


def test_a_fleet_that_shall_stop_is_not_waited_for(home: Path) -> None:
    never = WorkerCommand(name="never", command=("/bin/sleep", "600"), ready=lambda: False)
    with _unmigrated(home, never) as fleet:
        fleet.wait_ready(300, unless=lambda: True)
        assert _service(fleet, "never").state is ServiceState.STARTING


def test_a_stopped_fleet_lets_its_workers_finish_before_the_stores_go_and_leaves_nothing(home: Path) -> None:
    program = (
        "import os, signal, time, redis\n"
        "def last(*_):\n"
        "    time.sleep(0.3)\n"
        "    print('redis' if redis.Redis.from_url(os.environ['PECIA_REDIS_URL']).ping() else '', flush=True)\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, last)\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    log = home / "logs/polite.log"
    polite = WorkerCommand(
        name="polite", command=(sys.executable, "-c", program), ready=lambda: "up" in log.read_text()
    )
    with _unmigrated(home, polite, _SLEEPER) as fleet:
        fleet.wait_ready()
        sockets = Path(fleet.settings.redis_url.get_secret_value().partition("://")[2]).parent
    assert log.read_text().split() == ["up", "redis"]
    assert {service.state for service in fleet.services()} == {ServiceState.STOPPED}
    assert _processes_of(fleet.home.path) == []
    assert not sockets.exists()


def test_a_home_has_one_supervisor(fleet: LocalFleet) -> None:
    with pytest.raises(FleetRunningError, match=rf"process {os.getpid()}\).*--home"):
        LocalFleet(fleet.home.path, settings=_NO_FLOWER, workers=[]).start()
    assert {service.state for service in fleet.services()} == {ServiceState.READY}


def test_of_supervisors_that_start_in_one_home_at_once_one_begins_and_the_others_name_it(home: Path) -> None:
    fleets = [_unmigrated(home) for _ in range(4)]
    with ThreadPoolExecutor(len(fleets)) as threads:
        errors = [start.exception() for start in [threads.submit(fleet.start) for fleet in fleets]]
    try:
        assert errors.count(None) == 1
        assert {type(error) for error in errors} == {type(None), FleetRunningError}
        named = f"A fleet already runs in {home} (process {os.getpid()})"
        assert all(named in str(error) for error in errors if error)
        fleets[errors.index(None)].wait_ready()
    finally:
        for fleet in fleets:
            fleet.stop()


def test_a_supervisor_that_is_suspended_or_killed_or_stopping_is_told_from_one_that_runs(home: Path) -> None:
    slow = WorkerCommand(
        name="slow",
        command=(
            "/bin/sh",
            "-c",
            f"trap 'until rm {home}/go; do sleep 0.1; done; exit' TERM; sleep 600 & wait",
        ),
    )
    command = [sys.executable, "-c", _SUPERVISOR, str(home), "sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        supervisor.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, supervisor.pid, os.WSTOPPED)
        with pytest.raises(FleetRunningError, match=f"suspended.*kill -CONT {supervisor.pid}"):
            _unmigrated(home).start()
        supervisor.kill()
    with _unmigrated(home, slow) as fleet, ThreadPoolExecutor(1) as thread:
        fleet.wait_ready()
        stopping = thread.submit(fleet.stop)
        eventually(lambda: (home / "fleet.lock").read_text().endswith("stopping"))
        with pytest.raises(FleetRunningError, match=rf"still stopping \(process {os.getpid()}\)"):
            _unmigrated(home).start()
        (home / "go").touch()
        stopping.result()
    with _unmigrated(home) as fleet:
        fleet.wait_ready()


def test_given_stores_are_used_and_not_started(home: Path, stores: dict[str, str]) -> None:
    given = WorkerSettings(
        database_url=SecretStr(stores["PECIA_DATABASE_URL"]),
        redis_url=SecretStr(stores["PECIA_REDIS_URL"]),
        payload_url=stores["PECIA_PAYLOAD_URL"],
        flower_port=0,
    )
    with _unmigrated(home, settings=given) as fleet:
        assert fleet.settings == given
        assert {service.state for service in fleet.services()} == {ServiceState.EXTERNAL}
        assert not (fleet.home.path / "postgres" / "postmaster.pid").exists()


def test_a_given_password_is_not_shown(home: Path) -> None:
    given = _NO_FLOWER.with_stores(
        database_url="postgresql://u:planted@db.example:5432/pecia",
        redis_url="redis://:planted@r.example/0",
        payload_url="",
    )
    with _unmigrated(home, settings=given) as fleet:
        assert [service.where for service in fleet.services()] == [
            "postgresql://db.example:5432/pecia",
            "redis://r.example/0",
        ]


def test_a_fleet_keeps_a_signing_secret_in_its_home_and_calls_one_port_of_this_machine(home: Path) -> None:
    secrets: list[str] = []
    for _ in range(2):
        with _unmigrated(home) as fleet:
            note = running.find(str(home))
            assert note.webhook_listener == fleet.settings.webhook_listener == 8787
            assert note.webhook_secret == fleet.settings.webhook_secret.get_secret_value()
            secrets.append(note.webhook_secret)
            assert fleet.home.webhook_secret.stat().st_mode & 0o777 == 0o600
    assert secrets[0] == secrets[1]
    assert WorkerSettings(webhook_secret=SecretStr(secrets[0])).webhook_secret


def test_what_the_settings_say_about_callbacks_is_kept_to(home: Path) -> None:
    given = WorkerSettings(flower_port=0, webhook_secret=SecretStr(new_secret()), webhook_listener=0)
    with _unmigrated(home, settings=given) as fleet:
        assert (fleet.settings.webhook_secret, fleet.settings.webhook_listener) == (given.webhook_secret, 0)
        assert not fleet.home.webhook_secret.exists()


def test_a_failed_migration_stops_the_start_and_says_why(home: Path) -> None:
    broken = ["/bin/sh", "-c", "echo no such revision; exit 1"]
    fleet = LocalFleet(home, settings=_NO_FLOWER, workers=[], migrate=broken)
    with pytest.raises(EmbeddedError, match=r"could not be brought up to date(.|\n)*no such revision"):
        fleet.start()
    assert _processes_of(fleet.home.path) == []


def test_nothing_survives_a_killed_supervisor(home: Path, short_path: Path) -> None:
    forked = short_path / "forked.py"
    forked.write_text(_FORKED)
    command = [sys.executable, "-c", _SUPERVISOR, str(home), _SLEEPER.command[-1], str(forked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        eventually(
            lambda: len(processes_in(home / "payloads")) == 4,
            what="The forked worker, the other and its two children",
        )
        family = {*_children_of(supervisor.pid), *forked_for(supervisor.pid), *_processes_of(home)}
        assert len(family) >= len(
            ("postgres", "redis", "janitor", "template", "forked", "worker", "its two", "children")
        )
        supervisor.kill()
    eventually(
        lambda: not any(_runs(pid) for pid in family) and not _processes_of(home),
        what="The end of everything",
    )
    with _unmigrated(home) as fleet:
        fleet.wait_ready()


def test_a_forked_worker_has_an_environment_of_its_own(
    home: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PECIA_ENGINE", "not the fleet's")
    names = ("one", "other")
    workers = [_forked(short_path, name=name, environment={"ITS_NAME": name}) for name in names]
    with _unmigrated(home, *workers) as fleet:
        logs = [home / f"logs/{name}.log" for name in names]
        eventually(lambda: all(log.exists() and log.read_text().endswith("}\n") for log in logs))
        told = [json.loads(log.read_text()) for log in logs]
        assert [one["ITS_NAME"] for one in told] == ["one", "other"]
        assert {one["PECIA_REDIS_URL"] for one in told} == {fleet.settings.redis_url.get_secret_value()}
        assert not any("PECIA_ENGINE" in one for one in told)


def test_forked_workers_start_again_though_what_forked_them_was_killed(home: Path, short_path: Path) -> None:
    with _unmigrated(home, _forked(short_path)) as fleet:
        fleet.wait_ready()
        (template,) = templates_of()
        former = _service(fleet, "forked").pid
        assert forked_for() == [former]
        os.kill(template, signal.SIGKILL)
        eventually(lambda: _service(fleet, "forked").restarts == 1, what="A new start")
        eventually(lambda: _service(fleet, "forked").state is ServiceState.READY)
        assert not _runs(former or 0)
    assert _processes_of(fleet.home.path) == []


def _forked(
    directory: Path, *, name: str = "forked", environment: dict[str, str] | None = None
) -> WorkerCommand:
    script = directory / "forked.py"
    script.write_text(_FORKED)
    return WorkerCommand(
        name=name, command=(sys.executable, str(script)), environment=environment or {}, forked=True
    )


def _processes_of(home: Path) -> list[int]:
    """Every process that works in a directory of the home."""
    directories = home / "postgres", home / "redis", home / "payloads"
    return [pid for directory in directories for pid in processes_in(directory)]


def _children_of(parent: int) -> list[int]:
    return [child.pid for child in psutil.Process(parent).children()]


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
