"""A page that kills its worker, in a real fleet: it fails as poisoned, and nobody fails with it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixture_types import Eventually
from forking import Program, Programs
from house import House
from pecia import Client, FailureCode, Job, JobState, Lane, ReadDocument
from pictures import encoded, note

PROGRAM = Path(__file__).with_name("deadly_worker.py")
DEADLY_WIDTH = 77
MAX_DEATHS = 3


class Workers:
    """Engine workers, started again whenever one dies."""

    def __init__(self, environment: dict[str, str], programs: Programs, log: Path) -> None:
        self._environment = os.environ | environment
        self._programs = programs
        self._log = log
        self.crashes = 0
        self.process = self._start()

    def _start(self) -> Program:
        return self._programs.start(str(PROGRAM), environment=self._environment, log=self._log)

    def tend(self) -> None:
        if self.process.returncode is not None:
            assert self.process.returncode == -signal.SIGKILL, self._log.read_text()
            self.crashes += 1
            self.process = self._start()


@pytest.fixture
def workers(stores: dict[str, str], programs: Programs, tmp_path: Path) -> Iterator[Workers]:
    settings = {"PECIA_ENGINE": "simulated:instant", "PECIA_STAGES": "read", "PECIA_LEASE": "PT2S"}
    workers = Workers(stores | settings, programs, tmp_path / "log")
    yield workers
    workers.process.end()


def page(number: int, width: int = 60) -> bytes:
    """Draw a page: no two are alike, so that none was read before."""
    return encoded(note(number, width), "PNG")


def deaths(house: House, job: Job[Any]) -> tuple[int, int]:
    ((deaths, attempt),) = house.query("SELECT deaths, attempt FROM parts WHERE job_id = %s", job.id)
    return deaths, attempt


def test_a_page_that_kills_its_worker_fails_alone(
    client: Client, workers: Workers, house: House, eventually: Eventually
) -> None:
    pages = [page(number) for number in range(6)]
    neighbours = [client.submit(ReadDocument(content)) for content in pages[:5]]
    poison = client.submit(ReadDocument(page(99, DEADLY_WIDTH)))

    def crashed(times: int) -> bool:
        workers.tend()
        return workers.crashes >= times

    eventually(lambda: crashed(1))
    later = client.submit(ReadDocument(pages[5]), priority=Lane.URGENT)

    def over() -> bool:
        workers.tend()
        return poison.refresh().done and all(job.refresh().done for job in (*neighbours, later))

    eventually(over, interval=0.1)

    assert {job.state for job in (*neighbours, later)} == {JobState.SUCCEEDED}
    assert poison.failure is not None
    assert poison.failure.code is FailureCode.POISONED
    assert workers.crashes == MAX_DEATHS
    assert deaths(house, poison)[0] == MAX_DEATHS
    assert all(deaths(house, job)[0] < MAX_DEATHS for job in neighbours)
    assert deaths(house, later) == (0, 1)
