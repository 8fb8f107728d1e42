"""compose.yaml without Docker: its services as processes of this machine, each by its own command and environment.

Only where things are is changed: names of hosts, ports, and paths inside of containers. With IMAGES=TAG in the
environment (`make images`) those of the fleet run in its images of that tag, by buildah on this machine's network.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from pecia_workers.local import servers
from pecia_workers.local.process import ChildProcess, spawn
from pecia_workers.local.servers import EmbeddedPostgres, redis_program, start_postgres
from tests.shared.collector import Collector
from tests.shared.compose_stack import COMPOSE, assignments, environment_of, fleet_services, stack
from tests.shared.http_doubles import free_port

WORKERS = ("ingest", "engine", "webhooks", "upkeep")
_PECIA = (sys.executable, "-m", "pecia")
_ENTRY_POINTS = {"pecia": _PECIA, "pecia-cpu": _PECIA, "prom/prometheus": ("prometheus",)}
IMAGES = os.environ.get("IMAGES", "")
_BUILDAH = ("env", "--unset=TMPDIR", "buildah", "run", "--isolation", "chroot")
"""TMPDIR is the service's, and no directory of this machine."""
_SERVERS = ("postgres", "redis", "prometheus", "flower", "gateway")


def _image_environment() -> dict[str, str]:
    """Return what the fleet's image puts into the environment of every process."""
    text = re.sub(r"\\\n\s*", "", (COMPOSE / "Dockerfile").read_text())
    (line,) = re.findall(r"^FROM \S+ AS fleet$.*?^ENV (.*?)$", text, flags=re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"(PECIA_\w+)=(\S+)", line))


def _image_health_check() -> list[str]:
    """Return the program by which Docker asks a container of ours whether it is healthy."""
    (command,) = set(re.findall(r"CMD (\[\"python\".*\])", (COMPOSE / "Dockerfile").read_text()))
    return ["CMD", *json.loads(command)]


@dataclass
class RunningStack:
    """The services of compose.yaml, as far as they have been started."""

    place: Path
    services: Mapping[str, Any]
    secrets: Mapping[str, str]
    ports: Mapping[str, int]
    processes: dict[str, ChildProcess] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    """Of services that run in an image."""

    @classmethod
    def prepare(cls, place: Path, collector: Collector) -> Self:
        """Return the stack of a small fleet that traces, of which nothing runs yet."""
        for name in ("bin", "spool", "redis-data", "prometheus-data"):
            (place / name).mkdir(parents=True)
        for name in ("redis", "prometheus"):
            shutil.copytree(COMPOSE / name, place / name)
        (place / "bin" / "python").symlink_to(sys.executable)
        (place / "bin" / "valkey-server").symlink_to(redis_program())
        (place / "bin" / "valkey-cli").symlink_to(
            redis_program().with_name(redis_program().name.replace("server", "cli"))
        )
        variables = environment_of("small", place) | {"PECIA_TRACING": "true"}
        secrets = [name for name, value in assignments(COMPOSE / ".env.example").items() if not value]
        ports = {name: free_port() for name in (*WORKERS, *_SERVERS)} | {"collector": collector.server_port}
        running = cls(place, stack(variables)["services"], {name: variables[name] for name in secrets}, ports)
        if IMAGES:
            running.open_containers()
        return running

    def open_containers(self) -> None:
        for name in ("documents", "spool"):
            (self.place / name).mkdir(exist_ok=True)
            os.chown(self.place / name, 10_001, 10_001)
        for name, service in fleet_services({"services": self.services}).items():
            image = f"localhost/{service['image'].partition(':')[0]}:{IMAGES}"
            made = subprocess.run(["buildah", "from", image], capture_output=True, text=True, check=True)
            self.containers[name] = made.stdout.strip()

    def inside(self, name: str, words: Sequence[str]) -> list[str]:
        """Return what runs a command in a service's container, or the command itself where it has none."""
        if name not in self.containers:
            return list(words)
        given = self.given(name)
        mounted = {"documents": "/var/lib/pecia/documents", "spool": "/var/spool/pecia"}
        volumes = [f"--volume={self.place / here}:{there}" for here, there in mounted.items()]
        variables = [f"--env={variable}={value}" for variable, value in given.items()]
        return [*_BUILDAH, *volumes, *variables, self.containers[name], "--", *words]

    def here(self, text: str, name: str) -> str:
        """Say it in this machine's terms, for one of the services."""
        elsewhere = {
            "@postgres:5432": f"@127.0.0.1:{self.ports['postgres']}",
            "@redis:6379": f"@127.0.0.1:{self.ports['redis']}",
            "valkey-cli ": f"valkey-cli -p {self.ports['redis']} ",
            "collector:4318": f"127.0.0.1:{self.ports['collector']}",
            "127.0.0.1:5555": f"127.0.0.1:{self.ports['flower']}",
            "127.0.0.1:8780": f"127.0.0.1:{self.ports['gateway']}",
            "127.0.0.1:9090": f"127.0.0.1:{self.ports['prometheus']}",
            "0.0.0.0": "127.0.0.1",  # noqa: S104  the container's
            "9464": str(self.ports.get(name, 0)),
            "/etc/valkey": f"{self.place}/redis",
            "/etc/prometheus": f"{self.place}/prometheus",
            "path=/prometheus": f"path={self.place}/prometheus-data",
        }
        if name not in self.containers:
            elsewhere |= {
                "/var/lib/pecia/documents": f"{self.place}/documents",
                "/var/spool/pecia": f"{self.place}/spool",
                "/usr/local/lib/pecia": str(COMPOSE),
            }
        for there, here in elsewhere.items():
            text = text.replace(there, here)
        return text

    def given(self, name: str) -> dict[str, str]:
        """Return the environment that a service is given beside the machine's."""
        own = {key: str(value) for key, value in self.services[name].get("environment", {}).items()}
        given = {key: self.here(value, name) for key, value in (_image_environment() | own).items()}
        return given | {f"PECIA_{one.upper()}_PORT": str(self.ports[one]) for one in ("flower", "gateway")}

    def environment(self, name: str) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith("PECIA_")}
        return known | self.given(name) | {"PATH": f"{self.place}/bin:{os.environ['PATH']}"}

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return what a service runs: its image's entry point, its command, and what else it is told."""
        words = [self.here(word, name) for word in self.services[name].get("command", ())]
        image = self.services[name]["image"].partition(":")[0]
        entry = ("pecia",) if name in self.containers else _ENTRY_POINTS.get(image, ())
        return self.inside(name, [*entry, *words, *arguments])

    def start(self, name: str, *arguments: str) -> None:
        program, *rest = self.command(name, *arguments)
        whole = shutil.which(program, path=self.environment(name)["PATH"])
        assert whole, f"{program} is not installed"
        self.processes[name] = spawn(
            [whole, *rest], log=self.log(name), environment=self.environment(name), directory=self.place
        )

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def is_healthy(self, name: str) -> bool:
        """Ask as Docker would: by the service's own check, or the image's."""
        check = self.services[name].get("healthcheck", {}).get("test") or _image_health_check()
        kind, *words = [self.here(word, name) for word in check]
        environment = self.environment(name) | {"PGPORT": str(self.ports["postgres"])}
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else self.inside(name, words)
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    def pecia(self, name: str, *arguments: str, given: bytes = b"") -> str:
        """Return what the command says in a container of that service."""
        program = ("pecia",) if name in self.containers else _PECIA
        ran = subprocess.run(
            self.inside(name, [*program, *arguments]),
            input=given,
            env=self.environment(name),
            cwd=self.place,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout.decode()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        if self.containers:
            subprocess.run(["buildah", "rm", *self.containers.values()], capture_output=True, check=True)


def start_redis_of(running: RunningStack) -> None:
    """Start Redis, with files that say where things are here."""
    data = running.place / "redis-data"
    changes = {
        "port 6379": f"port {running.ports['redis']}",
        "dir /data": f"dir {data}",
        "/tmp/users.acl": f"{data}/users.acl",  # noqa: S108  the container's
        "/etc/valkey": str(running.place / "redis"),
    }
    for file in (running.place / "redis").iterdir():
        text = file.read_text()
        for there, here in changes.items():
            text = text.replace(there, here)
        file.write_text(text)
    running.start("redis")


def start_postgres_of(running: RunningStack) -> None:
    """Start Postgres as its image does: first to make the database and its roles, then by its command."""
    data = running.place / "postgres-data"
    first = start_postgres(data, durable=False)
    try:
        _make_roles(first, running.environment("postgres"))
    finally:
        first.stop()
    (data / "pg_hba.conf").write_text("local all all trust\nhost all all all scram-sha-256\n")
    home = servers.prepare(data, durable=False)
    _, *told = running.command("postgres")
    where = {
        "port": running.ports["postgres"],
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
    }
    placed = [word for name, value in where.items() for word in ("-c", f"{name}={value}")]
    running.processes["postgres"] = spawn(
        [home.programs / "postgres", "-D", data, *placed, *told],
        log=running.log("postgres"),
        environment=servers.ENVIRONMENT,
        directory=Path("/"),
        account=home.account,
        orphan_signal=signal.SIGINT,
    )
    (running.place / "bin" / "pg_isready").symlink_to(home.programs / "pg_isready")


def _make_roles(server: EmbeddedPostgres, given: Mapping[str, str]) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        owner, password = sql.Identifier(given["POSTGRES_USER"]), sql.Literal(given["POSTGRES_PASSWORD"])
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(owner, password))
    path = f"{servers.prepare(server.data, durable=False).programs}:{given['PATH']}"
    environment = {**given, "PATH": path, "PGHOST": str(server.sockets), "PGPORT": "5432"}
    subprocess.run([COMPOSE / "postgres" / "roles.sh"], env=environment, check=True)


def start_prometheus_of(running: RunningStack) -> None:
    """Start Prometheus, told the processes where Docker's DNS would name containers."""
    file = running.place / "prometheus" / "prometheus.yml"
    targets = ", ".join(f'"127.0.0.1:{running.ports[name]}"' for name in WORKERS)
    found = r"    dns_sd_configs:\n(?:      .*\n)+"
    file.write_text(re.sub(found, f"    static_configs: [{{targets: [{targets}]}}]\n", file.read_text()))
    running.start("prometheus", f"--web.listen-address=127.0.0.1:{running.ports['prometheus']}")
