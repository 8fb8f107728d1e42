"""Whatever is sent ends as the table says; no worker dies of it, and none keeps memory of it.

The table is `tests/shared/every_input.py`. All of it goes through one fleet in one run: first what no process may die
of, then what a decoding process is ended for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from pecia import FailureCode, Job, ReadDocument
from pecia_schemas.tasks import Task
from tests.shared.every_input import EVERY_INPUT, Input, Outcome
from tests.shared.fixture_types import Draw, RunFleet
from tests.shared.limits import WAIT_S
from tests.shared.memory import memory_of, processes_of

pytestmark = pytest.mark.gate

KEPT_BYTES = 150 * 10**6
"""What a worker with all its processes may hold more than before: allocators keep some of what is freed."""

LOADED_ONCE = ("PNG, RGB", "PDF of words", "HEIC", "AVIF", "DICOM, secondary capture")
"""Inputs for which a decoding process loads a library that it keeps."""

LIMITS = {
    "max_page_pixels": 4_000_000,
    "max_total_pixels": 2_000_000_000,
    "decode_timeout": 30,
    "decode_memory_bytes": 512 * 1024**2,
    "decode_processes": 2,
}
"""Limits that a bomb reaches soon, and as few processes as show that one goes on without the other."""


TOO_SLOW = Outcome(0, FailureCode.DECODE_TIMEOUT)
"""What a file also comes to that takes all memory, where the machine does not give it fast enough."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How the ingest worker and the engine worker stand at a moment."""

    workers: dict[str, int]
    processes: dict[str, frozenset[int]]
    memory: dict[str, int]

    @classmethod
    def at(cls, fleet: Any) -> Self:
        workers = {name: fleet.pid(name) for name in ("ingest", "engine")}
        return cls(
            workers=workers,
            processes={name: frozenset(processes_of(pid)) for name, pid in workers.items()},
            memory={name: memory_of(pid) for name, pid in workers.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of the whole table, and how the workers stood before, between and after."""

    fleet: Any
    outcomes: dict[str, Outcome]
    looks: tuple[Look, Look, Look]


@pytest.fixture(scope="module")
def run(run_fleet: RunFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("inputs")
    tasks = {row.name: task_of(row, directory) for row in EVERY_INPUT}
    harmless = {row.name: tasks[row.name] for row in EVERY_INPUT if not row.ends_process}
    with run_fleet("inputs", **LIMITS) as fleet:
        warm_up(fleet, tasks)
        before = Look.at(fleet)
        outcomes = read_everything(fleet, harmless)
        between = Look.at(fleet)
        outcomes |= read_everything(
            fleet, {name: task for name, task in tasks.items() if name not in harmless}
        )
        yield Run(fleet=fleet, outcomes=outcomes, looks=(before, between, Look.at(fleet)))


def warm_up(fleet: Any, tasks: dict[str, Task[Any]]) -> None:
    """Have every process load what it loads once."""
    read_everything(fleet, {f"{name}, {again}": tasks[name] for again in range(4) for name in LOADED_ONCE})


def task_of(row: Input, directory: Path) -> Task[Any]:
    content = row.make()
    if isinstance(content, str) or not row.file_name:
        return row.task(content, **row.options)
    (directory / row.file_name).write_bytes(content)
    return row.task(directory / row.file_name, **row.options)


def read_everything(fleet: Any, tasks: dict[str, Task[Any]]) -> dict[str, Outcome]:
    jobs = fleet.client.submit_many(tasks.values()).wait(WAIT_S)
    return {name: outcome_of(job) for name, job in zip(tasks, jobs, strict=True)}


def outcome_of(job: Job[Any]) -> Outcome:
    if job.failure is not None:
        assert job.failure.message.endswith(job.failure.code.advice)
        return Outcome(0, job.failure.code)
    document = job.result(timeout=0)
    codes = {page.failure.code for page in document.failed}
    assert len(codes) <= 1
    outcome = Outcome(len(document.pages), *codes)
    assert job.state is outcome.state
    return outcome


def test_every_input_ends_as_the_table_says(run: Run) -> None:
    wrong = [
        f"{row.name}: {run.outcomes[row.name]}, not {row.expected}"
        for row in EVERY_INPUT
        if not (
            run.outcomes[row.name] == row.expected
            or (row.ends_process and run.outcomes[row.name] == TOO_SLOW)
        )
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_no_process_dies_of_what_can_be_refused_and_no_worker_of_what_its_decoders_die_of(run: Run) -> None:
    before, between, after = run.looks
    assert between.processes == before.processes
    assert after.workers == before.workers
    assert run.fleet.query("SELECT count(*) FROM parts WHERE deaths > 0 OR strikes > 0") == [(0,)]


@pytest.mark.parametrize("worker", ["ingest", "engine"])
def test_memory_returns_to_where_it_was(run: Run, worker: str) -> None:
    held = [look.memory[worker] for look in run.looks]
    assert max(held) - held[0] < KEPT_BYTES, held


def test_a_good_page_is_read_after_all_that(run: Run, drawn: Draw) -> None:
    job = run.fleet.client.submit(ReadDocument(drawn("Read all the same")))
    assert job.result(WAIT_S).text == "Read all the same"
