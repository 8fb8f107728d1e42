"""Real workers on real stores: who loses a part cannot end it, and who leaves hands over at once."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixture_types import Eventually
from forking import Program, Programs
from house import House
from limits import WAIT_S
from pecia import Client, Document, DocumentType, Job, JobState, ReadDocument
from pecia_workers.queue.lists import connect, held_parts


class Workers:
    """Engine workers whose pages take some three seconds each."""

    def __init__(self, house: House, stores: dict[str, str], programs: Programs, eventually: Any) -> None:
        usual = {"PECIA_ENGINE": "simulated", "PECIA_DECODE_PROCESSES": "1", "PECIA_LEASE": "5"}
        self.query = house.query
        self._directory = house.spool
        self._environment = os.environ | stores | usual
        self._programs = programs
        self._eventually = eventually
        self.processes: list[Program] = []

    def start(self, number: int = 1, **environment: str) -> list[Program]:
        """Start some and wait until they are on duty."""
        for name in range(number):
            command = ("-m", "pecia", "worker", "engine", "--name", f"w{name}")
            log = self._directory / f"log{name}"
            own = self._environment | environment
            self.processes.append(self._programs.start(*command, environment=own, log=log))
        ready = "SELECT name FROM workers WHERE capabilities IS NOT NULL"
        self._eventually(lambda: len(self.query(ready)) == number, what="the workers")
        return self.processes

    def await_runner(self, attempt: int = 1) -> Program:
        """Return the worker that makes this attempt at the only part, as soon as there is one."""
        running = "SELECT actor FROM job_events WHERE state = 'running' AND attempt = %s"
        ((name,),) = self._eventually(lambda: self.query(running, attempt), what="a runner")
        return next(one for one in self.processes if f":{one.pid}:" in name)

    def log_of(self, process: Program) -> str:
        return (self._directory / f"log{self.processes.index(process)}").read_text()

    def story(self, job: Job[Any]) -> list[tuple[Any, ...]]:
        """What became of its only part: state, attempt, reason, and the process of the worker that said so."""
        return self.query(
            "SELECT state, attempt, reason, nullif(split_part(actor, ':', 2), '')::int FROM job_events"
            " WHERE job_id = %s AND part_id IS NOT NULL ORDER BY sequence",
            job.id,
        )

    def end(self) -> None:
        for process in self.processes:
            process.end()


@pytest.fixture
def workers(
    house: House, stores: dict[str, str], programs: Programs, eventually: Eventually
) -> Iterator[Workers]:
    workers = Workers(house, stores, programs, eventually)
    yield workers
    workers.end()


@pytest.fixture
def submit(client: Client, printed: bytes) -> Callable[[], Job[Document]]:
    return lambda: client.submit(ReadDocument(printed, document_type=DocumentType.LAB_RESULT))


def test_a_worker_that_wakes_up_too_late_can_neither_commit_nor_acknowledge(
    workers: Workers, submit: Callable[[], Job[Document]], redis_url: str, eventually: Eventually
) -> None:
    workers.start(2)
    job = submit()
    paused = workers.await_runner()

    paused.send_signal(signal.SIGSTOP)
    other = workers.await_runner(attempt=2)
    paused.send_signal(signal.SIGCONT)

    assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED
    eventually(lambda: "taken_for_dead" in workers.log_of(paused))
    assert workers.story(job) == [
        ("running", 1, None, paused.pid),
        ("queued", 1, "worker_lost", None),
        ("running", 2, None, other.pid),
        ("done", 2, None, other.pid),
    ]
    assert workers.query("SELECT attempt FROM results") == [(2,)]
    with connect(redis_url) as redis:
        eventually(lambda: held_parts(redis) == set(), what="an empty Redis")
