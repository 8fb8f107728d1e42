"""compose/ without Docker: each service's command, in its own environment, on this machine's servers.

Only where things are is changed: names of hosts, ports, and paths inside of containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg import sql
from redis import Redis

from compose_stack import COMPOSE, assignments, environment_of, fleet_services, stack
from pecia_workers.local.postgres import EmbeddedPostgres, start_postgres
from pecia_workers.local.wheels import postgres_programs, redis_program
from secured_stores import snippet

WORD = "Quillfeather"
pytestmark = pytest.mark.timeout(600)  # six processes, which all begin with the first test

LONG_RUNNING = ("ingest", "engine", "webhooks", "upkeep", "flower")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def image_environment() -> dict[str, str]:
    """Return what the fleet's image puts into the environment of every process."""
    text = re.sub(r"\\\n\s*", "", (COMPOSE / "Dockerfile").read_text())
    (line,) = re.findall(r"^FROM \S+ AS fleet$.*?^ENV (.*?)$", text, flags=re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"(PECIA_\w+)=(\S+)", line))


def health_check() -> list[str]:
    """Return the program by which Docker asks a container of ours whether it is healthy."""
    (command,) = set(re.findall(r"CMD (\[\"python\".*\])", (COMPOSE / "Dockerfile").read_text()))
    return [str(word) for word in json.loads(command)]


@dataclass
class Stack:
    """The services of compose.yaml, as far as they have been started."""

    place: Path
    secrets: Mapping[str, str]
    services: Mapping[str, Any]
    elsewhere: dict[str, str]
    """What stands for a host, a port or a path of the containers here."""
    ports: Mapping[str, int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def here(self, text: str, name: str = "") -> str:
        """Say it in this machine's terms, for one of the services."""
        for there, here in self.elsewhere.items():
            text = text.replace(there, here)
        return text.replace("9464", str(self.ports.get(name, 0))) if name else text

    def environment(self, name: str) -> dict[str, str]:
        own = {key: str(value) for key, value in self.services[name]["environment"].items()}
        known = {name: value for name, value in os.environ.items() if not name.startswith("PECIA_")}
        given = {key: self.here(value, name) for key, value in (image_environment() | own).items()}
        return known | given | {"PECIA_FLOWER_PORT": str(self.ports["flower"])}

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pecia", *self.services[name].get("command", ()), *arguments]

    def start(self, name: str) -> None:
        with self.log(name).open("w") as log:
            self.processes[name] = subprocess.Popen(
                self.command(name), env=self.environment(name), cwd=self.place, stdout=log, stderr=log
            )

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def is_healthy(self, name: str) -> bool:
        """Ask as Docker would: by the service's own check, or the image's."""
        own = self.services[name].get("healthcheck", {}).get("test")
        words = [self.here(word, name) for word in (own[1:] if own else health_check())]
        return subprocess.run([sys.executable, *words[1:]], capture_output=True, check=False).returncode == 0

    def client(self, *arguments: str, given: bytes = b"") -> str:
        environment = self.environment("client")
        command = self.command("client", *arguments)
        ran = subprocess.run(
            command, input=given, env=environment, cwd=self.place, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr.decode()
        return ran.stdout.decode()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def open_redis(stack_: Stack, programs: Path) -> None:
    """Start Redis by its service's command, a copy of whose files says where things are here."""
    files = stack_.place / "redis"
    shutil.copytree(COMPOSE / "redis", files)
    data = stack_.place / "redis-data"
    data.mkdir()
    ports = {"port 6379": f"port {stack_.ports['redis']}", "dir /data": f"dir {data}"}
    for file in files.iterdir():
        text = file.read_text().replace("/tmp/users.acl", f"{data}/users.acl")  # noqa: S108  the container's
        for there, here in (ports | {"/etc/valkey": str(files)}).items():
            text = text.replace(there, here)
        file.write_text(text)
    service = stack_.services["redis"]
    command = [word.replace("/etc/valkey", str(files)) for word in service["command"]]
    environment = {**service["environment"], "PATH": f"{programs}:{os.environ['PATH']}"}
    with stack_.log("redis").open("w") as log:
        stack_.processes["redis"] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def open_postgres(server: EmbeddedPostgres, service: Mapping[str, Any]) -> None:
    """Do what Postgres's image does on its first start, passwords and roles.sh included."""
    given = {name: str(value) for name, value in service["environment"].items()}
    with psycopg.connect(server.url, autocommit=True) as connection:
        owner, password = sql.Identifier(given["POSTGRES_USER"]), sql.Literal(given["POSTGRES_PASSWORD"])
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(owner, password))
    script = COMPOSE / "postgres" / "roles.sh"
    path = f"{postgres_programs()}:{os.environ['PATH']}"
    environment = {**given, "PATH": path, "PGHOST": str(server.sockets), "PGPORT": "5432"}
    subprocess.run([script], env=environment, check=True)
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"local all pecia,fleet scram-sha-256\n{rules.read_text()}")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def postgres(session_directory: Path) -> Iterator[EmbeddedPostgres]:
    server = start_postgres(session_directory / "compose-postgres", durable=False)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def up(
    session_directory: Path, postgres: EmbeddedPostgres, eventually: Callable[..., Any]
) -> Iterator[Stack]:
    """The whole stack, after `docker compose up --wait`."""
    place = session_directory / "compose"
    place.mkdir()
    variables = environment_of("small", place)
    ports = {name: free_port() for name in ("redis", *LONG_RUNNING)}
    elsewhere = {
        "@postgres:5432/pecia": f"@/pecia?host={postgres.sockets}&port=5432",
        "@redis:6379": f"@127.0.0.1:{ports['redis']}",
        "/var/lib/pecia/documents": str(place / "documents"),
        "/var/spool/pecia": str(place / "spool"),
        "/usr/local/lib/pecia": str(COMPOSE),
        "0.0.0.0": "127.0.0.1",  # noqa: S104  the container's
        "127.0.0.1:5555": f"127.0.0.1:{ports['flower']}",
    }
    secrets = {
        name: variables[name] for name, value in assignments(COMPOSE / ".env.example").items() if not value
    }
    running = Stack(place, secrets, stack(variables)["services"], elsewhere, ports)
    programs = place / "bin"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(redis_program())
    (place / "spool").mkdir()
    with ExitStack() as ending:
        ending.callback(running.end)
        open_postgres(postgres, running.services["postgres"])
        open_redis(running, programs)
        eventually(lambda: redis(running, "health", "any"), what="A word of Redis")
        running.start("migrate")
        assert running.processes["migrate"].wait(240) == 0, running.log("migrate").read_text()
        for name in LONG_RUNNING:
            running.start(name)
        for name in LONG_RUNNING:
            eventually(lambda name=name: running.is_healthy(name), 240, 0.5, what=f"The health of {name}")
        yield running


def redis(running: Stack, user: str, password: str) -> bool:
    """Return whether Redis lets this account in."""
    with Redis(port=running.ports["redis"], username=user, password=password) as client:
        try:
            return bool(client.ping())
        except Exception:  # noqa: BLE001  not there yet, or refused
            return False


def test_every_process_of_the_fleet_runs() -> None:
    variables = dict.fromkeys(assignments(COMPOSE / ".env.example"), "given")
    services = fleet_services(stack(variables))
    assert services.keys() == {*LONG_RUNNING, "migrate", "client"}


def test_every_worker_comes_to_take_work(up: Stack, eventually: Callable[..., Any]) -> None:
    for name in ("ingest", "engine", "webhooks", "upkeep"):
        page = f"http://127.0.0.1:{up.ports[name]}/readyz"
        eventually(
            lambda page=page: httpx2.get(page).status_code == 200, 240, 0.2, what=f"Readiness of {name}"
        )


def test_a_document_goes_through_and_is_seen(
    up: Stack, drawn: Callable[..., bytes], eventually: Callable[..., Any]
) -> None:
    assert WORD in up.client("read", "-", "--wait", given=drawn(WORD))

    flower = f"http://127.0.0.1:{up.ports['flower']}"
    assert httpx2.get(f"{flower}/tasks").status_code == 401
    user = ("pecia", up.secrets["PECIA_FLOWER_PASSWORD"])
    eventually(lambda: httpx2.get(f"{flower}/api/tasks", auth=user).json(), 30, what="A task in Flower")
    page = f"http://127.0.0.1:{up.ports['engine']}/metrics"
    assert re.search(r"^pecia_pages_read_total\{.*\} 1\.0$", httpx2.get(page).text, re.MULTILINE)


def test_redis_and_postgres_let_in_who_has_the_password(up: Stack, postgres: EmbeddedPostgres) -> None:
    assert redis(up, "client", up.secrets["REDIS_CLIENT_PASSWORD"])
    assert not redis(up, "client", "wrong")
    assert not redis(up, "default", "")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url.replace("postgres@", "fleet:wrong@"))


def test_redis_has_the_accounts_of_the_security_page_and_one_for_its_health() -> None:
    script = (COMPOSE / "redis" / "start.sh").read_text()
    told = [re.sub(r">\S+", ">", line) for line in script.splitlines() if line.startswith("user ")]
    page = [re.sub(r">\S+", ">", line) for line in snippet("text").splitlines()]
    assert [line for line in told if line not in page] == [
        "user health on nopass resetchannels resetkeys -@all +ping"
    ]
    assert set(page) < set(told)


def test_redis_keeps_what_it_is_told(up: Stack) -> None:
    password = up.secrets["REDIS_FLEET_PASSWORD"]
    with Redis(port=up.ports["redis"], username="fleet", password=password) as client:
        told: Any = client.info()
    assert told["aof_enabled"] == 1
    assert told["maxmemory_policy"] == "noeviction"
    assert told["maxmemory"] == 256 * 2**20


def test_postgres_knows_what_it_is_told_and_writes_no_row_into_its_log(
    up: Stack, postgres: EmbeddedPostgres
) -> None:
    command = up.services["postgres"]["command"]
    server = postgres_programs() / "postgres"
    told = {
        name: subprocess.check_output(
            [server, "-C", name, "-D", postgres.data, *command[1:]], text=True
        ).strip()
        for name in ("max_connections", "log_min_messages", "log_min_error_statement", "log_error_verbosity")
    }
    assert told == {
        "max_connections": "100",
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }


def test_tables_that_come_later_are_the_fleets_too(up: Stack) -> None:
    owner = up.environment("migrate")["PECIA_DATABASE_URL"]
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE later (n int)")
    with psycopg.connect(up.environment("upkeep")["PECIA_DATABASE_URL"], autocommit=True) as fleet:
        fleet.execute("INSERT INTO later VALUES (1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            fleet.execute("DROP TABLE later")


def test_no_log_tells_a_secret(up: Stack) -> None:
    logs = {path.name: path.read_text() for path in up.place.glob("*.log")}
    assert len(logs) == len(LONG_RUNNING) + 2
    assert [name for name, log in logs.items() if any(secret in log for secret in up.secrets.values())] == []


def test_every_process_ends_by_itself_within_its_time(up: Stack) -> None:
    began = time.monotonic()
    ending = {name: up.processes.pop(name) for name in LONG_RUNNING}
    for process in ending.values():
        process.send_signal(signal.SIGTERM)
    assert {name: process.wait(45) for name, process in ending.items()} == dict.fromkeys(LONG_RUNNING, 0)
    assert time.monotonic() - began < 45
