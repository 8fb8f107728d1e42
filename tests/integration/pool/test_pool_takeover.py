"""Real workers on real stores: who loses a part cannot end it, who leaves hands over, who dies of a page dies alone."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from pecia import Client, FailureCode, Job, JobState, Lane, ReadDocument
from pecia_workers.queue.lists import connect, held_parts
from tests.shared.chat_server import ChatServerDouble, serving
from tests.shared.forking import Program, Started
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.pictures import encoded, note

DEADLY_WORKER = Path(__file__).with_name("deadly_worker.py")
DEADLY_WIDTH = 77
MAX_DEATHS = 3
HELD_S = 3_600.0
ON_DUTY = "SELECT name FROM workers WHERE capabilities IS NOT NULL"
PARTS = "SELECT state, strikes, deaths FROM parts"


@pytest.fixture
def server() -> Iterator[ChatServerDouble]:
    """An engine whose answers can be held."""
    with serving() as server:
        yield server
        server.behaviour.takes_s = 0.0


def engine_at(server: ChatServerDouble) -> dict[str, str]:
    return {"PECIA_ENGINE": "openai", "PECIA_ENGINE_URL": server.url, "PECIA_ENGINE_TIMEOUT": "PT1H"}


def test_a_worker_that_wakes_up_too_late_can_neither_commit_nor_acknowledge(
    started: Started, client: Client, house: House, printed: bytes, server: ChatServerDouble
) -> None:
    workers = [
        started.worker("engine", "--name", name, **engine_at(server), PECIA_LEASE="5")
        for name in ("w0", "w1")
    ]
    eventually(lambda: len(house.query(ON_DUTY)) == 2, what="the workers")
    server.behaviour.takes_s = HELD_S

    def runner(attempt: int) -> Program:
        """Return the worker that makes this attempt at the only part, as soon as there is one."""
        running = "SELECT actor FROM job_events WHERE state = 'running' AND attempt = %s"
        ((name,),) = eventually(lambda: house.query(running, attempt), what="a runner")
        return next(one for one in workers if f":{one.pid}:" in name)

    job = client.submit(ReadDocument(printed))
    paused = runner(1)

    paused.send_signal(signal.SIGSTOP)
    other = runner(2)
    server.behaviour.takes_s = 0.0
    paused.send_signal(signal.SIGCONT)

    assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED
    eventually(lambda: "taken_for_dead" in started.log(paused))
    assert house.query(
        "SELECT state, attempt, reason, nullif(split_part(actor, ':', 2), '')::int FROM job_events"
        " WHERE job_id = %s AND part_id IS NOT NULL ORDER BY sequence",
        job.id,
    ) == [
        ("running", 1, None, paused.pid),
        ("queued", 1, "worker_lost", None),
        ("running", 2, None, other.pid),
        ("done", 2, None, other.pid),
    ]
    assert house.query("SELECT attempt FROM results") == [(2,)]
    with connect(house.redis_url) as redis:
        eventually(lambda: held_parts(redis) == set(), what="an empty Redis")


@pytest.fixture
def notice(tmp_path: Path) -> Path:
    return tmp_path / "notice"


@pytest.fixture
def doomed(started: Started, notice: Path, server: ChatServerDouble) -> Callable[[str], Program]:
    """Starts workers, whose lease is a minute, on a machine that will be taken away."""
    settings = {
        "PECIA_TERMINATION_NOTICE": str(notice),
        "PECIA_DRAIN_TIMEOUT": "0.5",
        "PECIA_LEASE": "60",
        **engine_at(server),
    }
    return lambda role: started.worker(role, **settings)


def test_an_engine_worker_gives_back_what_it_cannot_finish_and_no_lease_is_waited_for(  # noqa: PLR0917  fixtures
    doomed: Callable[[str], Program],
    notice: Path,
    started: Started,
    client: Client,
    house: House,
    printed: bytes,
    server: ChatServerDouble,
) -> None:
    worker = doomed("engine")
    eventually(lambda: house.query(ON_DUTY), what="the worker")
    server.behaviour.takes_s = HELD_S
    for _ in range(3):
        client.submit(ReadDocument(printed, cache=False))
    eventually(lambda: [state for state, *_ in house.query(PARTS)] == ["running"] * 3)

    notice.touch()

    assert worker.wait(WAIT_S) == 0
    assert house.query(PARTS) == [("queued", 0, 0)] * 3
    with Redis.from_url(house.redis_url) as redis:
        assert redis.llen("read.normal") == 3
    log = started.log(worker)
    assert log.index("termination_notice") < log.index("Warm shutdown")


def test_a_service_ends_when_it_is_told(doomed: Callable[[str], Program], notice: Path, house: House) -> None:
    service = doomed("upkeep")
    eventually(lambda: house.query("SELECT 1 FROM workers"), what="the service")
    notice.touch()
    assert service.wait(WAIT_S) == 0
    assert house.query("SELECT 1 FROM workers WHERE stopped_at IS NULL") == []


def page(number: int, width: int = 60) -> bytes:
    """Draw a page: no two are alike, so that none was read before."""
    return encoded(note(number, width), "PNG")


def test_a_page_that_kills_its_worker_fails_alone(started: Started, client: Client, house: House) -> None:
    """Workers are started again whenever one dies of it."""

    def start() -> Program:
        return started.start(str(DEADLY_WORKER), PECIA_STAGES="read", PECIA_LEASE="PT5S")

    def crashes() -> int:
        worker = started.programs[-1]
        if worker.returncode is not None:
            assert worker.returncode == -signal.SIGKILL, started.log(worker)
            start()
        return len(started.programs) - 1

    def deaths(job: Job[Any]) -> tuple[int, int]:
        ((deaths, attempt),) = house.query("SELECT deaths, attempt FROM parts WHERE job_id = %s", job.id)
        return deaths, attempt

    start()
    neighbours = [client.submit(ReadDocument(page(number))) for number in range(5)]
    poison = client.submit(ReadDocument(page(99, DEADLY_WIDTH)))
    eventually(lambda: crashes() >= 1)
    later = client.submit(ReadDocument(page(5)), priority=Lane.URGENT)

    def over() -> bool:
        crashes()
        return poison.refresh().done and all(job.refresh().done for job in (*neighbours, later))

    eventually(over, interval=0.1)

    assert {job.state for job in (*neighbours, later)} == {JobState.SUCCEEDED}
    assert poison.failure is not None
    assert poison.failure.code is FailureCode.POISONED
    assert crashes() == deaths(poison)[0] == MAX_DEATHS
    assert all(deaths(job)[0] < MAX_DEATHS for job in neighbours)
    assert deaths(later) == (0, 1)
