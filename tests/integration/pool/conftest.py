"""Workers as processes, whose parts follow plans that the test writes."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import PartMessage, publish
from pecia_workers.broker import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forking import Program, Programs

_PROGRAM = Path(__file__).with_name("scripted_worker.py")


class Fleet:
    """One Redis, some workers, and a journal of what became of each part."""

    def __init__(
        self, directory: Path, redis_url: str, programs: Programs, eventually: Callable[..., Any]
    ) -> None:
        self.directory = directory
        self.redis_url = redis_url
        self.redis = connect(redis_url)
        self.workers: list[Program] = []
        self._programs = programs
        self.eventually = eventually
        (directory / "plans").mkdir()
        (directory / "journal").touch()

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PECIA_REDIS_URL": self.redis_url,
            "PECIA_LEASE": "PT2S",
            "SCRIPTED_DIRECTORY": str(self.directory),
        }

    def start(self, *arguments: str, **environment: str) -> Program:
        """Start a worker and wait until it consumes."""
        worker = self.launch(*arguments, **environment)
        self.eventually(lambda: " ready." in self.log(worker), what="a worker")
        return worker

    def launch(self, *arguments: str, **environment: str) -> Program:
        return self.launch_program(str(_PROGRAM), *arguments, **environment)

    def launch_program(self, *command: str, **environment: str) -> Program:
        log = self.directory / f"log{len(self.workers)}"
        worker = self._programs.start(*command, environment=self.environment | environment, log=log)
        self.workers.append(worker)
        return worker

    def log(self, worker: Program) -> str:
        return (self.directory / f"log{self.workers.index(worker)}").read_text()

    @property
    def logs(self) -> str:
        return "".join(self.log(worker) for worker in self.workers)

    def plan(self, part: UUID, plan: str) -> None:
        fresh = self.directory / f"{part}.new"
        fresh.write_text(plan)
        fresh.rename(self.directory / "plans" / str(part))

    def send(self, plan: str = "done", lane: Lane = Lane.NORMAL, *, cost: int = 1) -> UUID:
        """Queue a part that will do this."""
        part = uuid4()
        self.plan(part, plan)
        self.publish(part, lane, cost)
        return part

    def publish(self, part: UUID, lane: Lane = Lane.NORMAL, cost: int = 1) -> None:
        publish(self.redis, [PartMessage(part=part, stage=Stage.READ, lane=lane, cost=cost, flow=part)])

    def journal(self, part: UUID | None = None) -> list[dict[str, Any]]:
        lines = (self.directory / "journal").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return [entry for entry in entries if part is None or entry["part"] == str(part)]

    def story(self, part: UUID) -> list[str]:
        return [entry["what"] for entry in self.journal(part)]

    def await_story(self, part: UUID, *story: str) -> None:
        self.eventually(lambda: self.story(part) == list(story), what=f"{story} of {part}")

    def await_settled(self) -> None:
        """Wait until Redis holds no list and no lease."""
        self.eventually(lambda: self.left == [], what="an empty broker")

    @property
    def left(self) -> list[str]:
        patterns = ("read.*", "ingest.*", "caption.*", "pecia:leases", "pecia:leased", "pecia:owners")
        return [
            str(key) for pattern in (*patterns, "pecia:deliveries") for key in self.redis.scan_iter(pattern)
        ]

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.redis.close()


@pytest.fixture
def make_fleet(
    tmp_path: Path, programs: Programs, eventually: Callable[..., Any]
) -> Iterator[Callable[[str], Fleet]]:
    with ExitStack() as stack:

        def make(redis_url: str) -> Fleet:
            fleet = Fleet(tmp_path, redis_url, programs, eventually)
            stack.callback(fleet.end)
            return fleet

        yield make


@pytest.fixture
def fleet(redis_url: str, make_fleet: Callable[[str], Fleet]) -> Fleet:
    return make_fleet(redis_url)
