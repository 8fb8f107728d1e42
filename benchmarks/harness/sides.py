"""Who is compared: each side hands over jobs and works them off in its own way, on the same servers.

What a side does stands in its program in `rivals/`, with what was chosen for it and why.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from redis import Redis

from harness.servers import Servers
from pecia_workers.local.process import ChildProcess, spawn

RIVALS = Path(__file__).parents[1] / "rivals"
ENVIRONMENT = RIVALS.parents[1] / ".venv-bench"
TICKS = os.sysconf("SC_CLK_TCK")

_HANDED_OVER_S = 300
_ROWS: LiteralString = (
    "CREATE TABLE bench_rows (job uuid NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
)
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do it."""

    name: str
    program: str
    package: str
    """The distribution whose version counts."""
    is_rival: bool = True
    """Whether it runs in the rivals' environment, not in this one."""
    finished: LiteralString = "SELECT job::text, extract(epoch FROM at)::float8 FROM bench_rows"
    """Which jobs have their row, and since when."""

    @property
    def python(self) -> Path:
        """The interpreter it runs on."""
        rivals = Path(os.environ.get("BENCH_RIVALS_PYTHON", ENVIRONMENT / "bin" / "python"))
        return rivals if self.is_rival else Path(sys.executable)

    @property
    def is_there(self) -> bool:
        """Whether it can run on this machine."""
        return self.python.exists()


PECIA = Side(
    name="Pecia",
    program="with_pecia.py",
    package="pecia",
    is_rival=False,
    finished="SELECT id::text, extract(epoch FROM finished_at)::float8 FROM jobs WHERE state = 'succeeded'",
)
CELERY = Side(name="Celery", program="with_celery.py", package="celery", is_rival=False)
BATCHES = Side(name="celery-batches", program="with_batches.py", package="celery-batches")
DRAMATIQ = Side(name="dramatiq", program="with_dramatiq.py", package="dramatiq")
PROCRASTINATE = Side(name="procrastinate", program="with_procrastinate.py", package="procrastinate")
TASKIQ = Side(name="taskiq", program="with_taskiq.py", package="taskiq")


def add_sides(parser: argparse.ArgumentParser, sides: Sequence[Side]) -> None:
    """Have a benchmark asked for some of its sides."""
    names = [side.name for side in sides]
    parser.add_argument(
        "--sides", nargs="+", choices=names, default=names, help="beside Pecia, which is always one"
    )


def that_run(sides: Sequence[Side], names: Collection[str]) -> tuple[list[Side], list[str]]:
    """Return Pecia and those of the named sides that can run here, and what to say of the others."""
    asked = [side for side in sides if side is PECIA or side.name in names]
    absent = [side.name for side in asked if not side.is_there]
    notes = [f"Left out: {', '.join(absent)}: `make bench` installs them."] if absent else []
    return [side for side in asked if side.is_there], notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What jobs and workers are like; zeros: work takes no time, and the rest is as best for throughput."""

    slots: int = 0
    work_s: float = 0
    lease_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """When a program began to hand over, by the clock that Postgres goes by too, and how long it took."""

    began: float
    seconds: float


class Trial:
    """One side with an empty Redis and a database of its own."""

    def __init__(self, side: Side, database_url: str, environment: dict[str, str], log: Path) -> None:
        self.side = side
        self.database_url = database_url
        self.redis_url = environment["PECIA_REDIS_URL"]
        self.database = psycopg.connect(database_url, autocommit=True)
        self._environment = environment
        self._log = log
        self._children: list[ChildProcess] = []

    def prepare(self) -> None:
        """Make what the side needs in its stores."""
        self.database.execute(_ROWS)
        if self.side.is_rival:
            self._run("prepare")

    def hand_over(self, jobs: int) -> HandedOver:
        """Have so many jobs handed over by a process of their own; returns when they are."""
        return HandedOver(**json.loads(self._run("many", str(jobs))))

    @contextmanager
    def urgent(self) -> Iterator[Callable[[], tuple[str, float]]]:
        """Have a process ready that hands over an urgent job a call, and tells its name and when that began."""
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                self._command("urgent"),
                cwd=RIVALS,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            try:
                yield partial(_hand_over_one, process)
            finally:
                process.kill()

    def start_worker(self) -> ChildProcess:
        """Start what works jobs off."""
        worker = spawn(self._command("work"), log=self._log, environment=self._environment, directory=RIVALS)
        self._children.append(worker)
        return worker

    def finished(self) -> list[tuple[str, float]]:
        """Return each row that is there: the job, and when."""
        return self.database.execute(self.side.finished).fetchall()

    def await_rows(self, least: int, timeout_s: float) -> list[tuple[str, float]]:
        """Return the rows as soon as there are so many, or those that there are once the timeout has passed."""
        deadline = time.monotonic() + timeout_s
        query = sql.SQL("SELECT count(*) FROM ({}) AS finished").format(sql.SQL(self.side.finished))
        while time.monotonic() < deadline:
            row = self.database.execute(query).fetchone()
            if row and row[0] >= least:
                break
            if self._children and not self._children[-1].alive:
                message = f"the worker of {self.side.name} ended:\n{self._log.read_text()[-2000:]}"
                raise RuntimeError(message)
            time.sleep(0.05)
        return self.finished()

    def close(self) -> None:
        """End everything."""
        for child in self._children:
            child.kill()
        self.database.close()

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            self._command(*words),
            cwd=RIVALS,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_HANDED_OVER_S,
            check=False,
        )
        if done.returncode:
            message = f"{self.side.program} {' '.join(words)} failed:\n{done.stderr[-2000:]}"
            raise RuntimeError(message)
        return done.stdout

    def _command(self, *words: str) -> list[str]:
        return [str(self.side.python), self.side.program, *words]


def _hand_over_one(process: subprocess.Popen[str]) -> tuple[str, float]:
    assert process.stdin is not None  # noqa: S101  both are pipes
    assert process.stdout is not None  # noqa: S101
    process.stdin.write("\n")
    process.stdin.flush()
    told: dict[str, Any] = json.loads(process.stdout.readline())
    return told["job"], told["began"]


@contextmanager
def trial(servers: Servers, side: Side, conditions: Conditions) -> Iterator[Trial]:
    """Set one side up, and take it away again."""
    name = f"trial_{next(_numbers)}"
    with Redis.from_url(servers.redis_url) as redis:
        redis.flushall()
    with psycopg.connect(servers.database_url, autocommit=True) as administrator:
        administrator.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(servers.template)
            )
        )
    url = servers.url_of(name)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PECIA_")},
        "BENCH_DATABASE_URL": url,
        "BENCH_REDIS_URL": servers.redis_url,
        "BENCH_SLOTS": str(conditions.slots),
        "BENCH_WORK_S": str(conditions.work_s),
        "BENCH_LEASE_S": str(conditions.lease_s),
        "PECIA_DATABASE_URL": url,
        "PECIA_REDIS_URL": servers.redis_url,
        "PECIA_PAYLOAD_URL": servers.payload_url,
        "C_FORCE_ROOT": "1",
    }
    made = Trial(side, url, environment, servers.directory / f"{name}.log")
    try:
        made.prepare()
        yield made
    finally:
        made.close()
        with psycopg.connect(servers.database_url, autocommit=True) as administrator:
            administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def cpu_seconds(session: int) -> float:
    """Return what the processes of a session, and those of their children that have ended, have computed."""
    total = 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if entry.name.isdigit():
                fields: list[Any] = (entry / "stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) if int(fields[3]) == session else 0
    return total / TICKS
