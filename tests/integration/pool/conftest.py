"""Workers as processes, whose parts follow plans that the test writes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from pecia_schemas.messages import PartMessage, publish
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage
from pecia_workers.app import FleetApp
from pecia_workers.queue.lists import connect, count_waiting
from tests.shared.forking import Program, Programs, Started
from tests.shared.limits import eventually

_PROGRAM = Path(__file__).with_name("scripted_worker.py")


class Fleet:
    """One Redis, some workers, and a journal of what became of each part."""

    def __init__(self, directory: Path, redis_url: str, programs: Programs) -> None:
        self.directory = directory
        self.redis_url = redis_url
        self.redis = connect(redis_url)
        own = {"PECIA_REDIS_URL": redis_url, "SCRIPTED_DIRECTORY": str(directory)}
        self._started = Started(programs, directory, own)
        self.launch_program, self.log = self._started.start, self._started.log
        self._sent: dict[UUID, PartMessage] = {}
        (directory / "plans").mkdir()
        (directory / "journal").touch()

    def start(self, *arguments: str, **environment: str) -> Program:
        """Start a worker and wait until it consumes."""
        worker = self.launch(*arguments, **environment)
        eventually(lambda: " ready." in self.log(worker), what="a worker")
        return worker

    def launch(self, *arguments: str, **environment: str) -> Program:
        return self.launch_program(str(_PROGRAM), *arguments, **environment)

    @property
    def logs(self) -> str:
        return "".join(map(self.log, self._started.programs))

    def plan(self, part: UUID, plan: str) -> None:
        fresh = self.directory / f"{part}.new"
        fresh.write_text(plan)
        fresh.rename(self.directory / "plans" / str(part))

    def send(self, plan: str = "done", lane: Lane = Lane.NORMAL, *, cost: int = 1) -> UUID:
        part = uuid4()
        self.plan(part, plan)
        self.publish(part, lane, cost)
        return part

    def hold(self, count: int = 1, **about: Any) -> list[UUID]:
        """Send parts that wait for `finish`, and return them once a worker runs them."""
        parts = [self.send("wait", **about) for _ in range(count)]
        for part in parts:
            self.await_story(part, "run")
        return parts

    def finish(self, *parts: UUID) -> None:
        for part in parts:
            self.plan(part, "done")

    def publish(self, part: UUID, lane: Lane = Lane.NORMAL, cost: int = 1) -> None:
        self._sent[part] = PartMessage(part=part, stage=Stage.READ, lane=lane, cost=cost, flow=part)
        publish(self.redis, [self._sent[part]])

    def journal(self, part: UUID | None = None) -> list[dict[str, Any]]:
        lines = (self.directory / "journal").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return [entry for entry in entries if part is None or entry["part"] == str(part)]

    def story(self, part: UUID) -> list[str]:
        return [entry["what"] for entry in self.journal(part)]

    def await_story(self, part: UUID, *story: str) -> None:
        eventually(lambda: self.story(part) == list(story), what=f"{story} of {part}")

    def await_settled(self) -> None:
        """Wait until nothing waits in Redis."""
        eventually(lambda: not any(count_waiting(self.redis).values()), what="an empty broker")

    @property
    def left(self) -> list[str]:
        """The lists in which something waits."""
        return [str(key) for key in self.redis.scan_iter("read.*")]

    def reap(self, worker: Program) -> None:
        """Kill a worker, and do what judge and relay do then: what it ran comes again, as suspects."""
        worker.end()
        last = {UUID(entry["part"]): entry for entry in self.journal()}
        publish(
            self.redis,
            [
                replace(self._sent[part], deaths=entry["deaths"] + 1)
                for part, entry in last.items()
                if (entry["what"], entry["pid"]) == ("run", worker.pid)
            ],
        )

    def end(self) -> None:
        self._started.end()
        self.redis.close()


@pytest.fixture
def make_fleet(tmp_path: Path, programs: Programs) -> Iterator[Callable[[str], Fleet]]:
    with ExitStack() as stack:

        def make(redis_url: str) -> Fleet:
            fleet = Fleet(tmp_path, redis_url, programs)
            stack.callback(fleet.end)
            return fleet

        yield make


@pytest.fixture
def fleet(redis_url: str, make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(redis_url)


@pytest.fixture
def console(fleet: Any) -> Iterator[FleetApp]:
    """An operator's application on the fleet's Redis."""
    app = FleetApp(WorkerSettings(redis_url=fleet.redis_url))
    yield app
    app.close()
