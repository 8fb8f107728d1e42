"""A fleet that is stopped and started again, and what runs beside it meanwhile: all of it finds the fleet again."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from pecia import AsyncClient, Client, JobState, ReadDocument
from pecia.accounts import Scope
from pecia.configuration import resolve
from pecia.connections import Connections
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Task
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.queue.lists import connect, count_waiting
from tests.shared.canary_reader import CONSTANT, Reader
from tests.shared.chat_server import serving
from tests.shared.fixture_types import Draw
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S, eventually

pytestmark = pytest.mark.gate


@dataclass
class Beside:
    """What was started beside a fleet, before it was started anew."""

    client: Client
    waits: dict[str, Future[JobState]]
    gateway: Client
    listener: subprocess.Popen[str]
    callbacks: str
    review: str


def _start(stack: ExitStack, home: Path, **settings: Any) -> LocalFleet:
    given = {"engine": "simulated:instant", "flower_port": 0, "witness": "none", **settings}
    fleet = stack.enter_context(LocalFleet(home, settings=WorkerSettings(**given), migrate=("/bin/true",)))
    fleet.wait_ready()
    return fleet


def _command(stack: ExitStack, *words: str, **variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pecia", *words],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str], begin: str) -> str:
    """Return what follows `begin` on the first line that the process writes."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = (process.stderr if begin.startswith("Listening") else process.stdout).readline()
    assert line.startswith(begin), line
    return line.removeprefix(begin).strip()


def _waited_for(job_id: str) -> JobState:
    with Client() as client:
        return client.job(job_id).wait(WAIT_S).state


def _awaited(job_id: str) -> JobState:
    async def story() -> JobState:
        async with AsyncClient() as client:
            return (await (await client.job(job_id)).wait(WAIT_S)).state

    return asyncio.run(story())


@pytest.fixture(scope="module")
def own_state(session_directory: Path) -> Iterator[Path]:
    """Where the fleets of these tests announce themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(session_directory / "restart-state"))
        yield session_directory


@pytest.fixture(scope="module")
def beside(own_state: Path, ready_cluster: Callable[[Path], None], drawn: Draw) -> Iterator[Beside]:
    """A fleet that was started anew, and what has been beside it all the time."""
    home, port = own_state / "restarted", free_port()
    home.mkdir(mode=0o711)
    ready_cluster(home / "postgres")
    with ExitStack() as stack:
        with ExitStack() as former:
            _start(former, home, webhook_listener=port)
            client = stack.enter_context(Client())
            later = ReadDocument(drawn("Later"))
            jobs = [str(client.submit(later, not_before=timedelta(days=1)).id) for _ in range(2)]
            threads = stack.enter_context(ThreadPoolExecutor(len(jobs)))
            waits = {
                "client": threads.submit(_waited_for, jobs[0]),
                "asyncio": threads.submit(_awaited, jobs[1]),
            }
            connections = Connections(resolve())
            stack.callback(connections.close)
            _, key = connections.access.add(
                tenant="clinic",
                name="app",
                scopes=tuple(Scope),
                lanes=tuple(Lane),
                pages_per_day=None,
                pages_in_flight=None,
                expires_at=None,
            )
            url = _line(
                _command(stack, "gateway", PECIA_GATEWAY_PORT=str(free_port()), PYTHONUNBUFFERED="1"),
                "Gateway: ",
            )
            gateway = stack.enter_context(Client(url, api_key=key))
            eventually(lambda: _answers(gateway), what="The gateway")
            listener = _command(stack, "webhook", "listen", "--count", "1", "--json")
            callbacks = _line(listener, "Listening on ")
            review = _line(_command(stack, "review"), "Review: ")
            eventually(lambda: httpx2.get(f"{review}api/pages").status_code == 200)
        _start(stack, home, webhook_listener=port)
        for job in jobs:
            client.job(job).cancel()
        yield Beside(client, waits, gateway, listener, callbacks, review)


def _answers(client: Client) -> bool:
    return list(client.jobs()) == []


@pytest.mark.parametrize("which", ["client", "asyncio"])
def test_a_client_that_waits_goes_on_waiting(beside: Beside, which: str) -> None:
    assert beside.waits[which].result(WAIT_S) is JobState.CANCELLED


def test_a_client_reads_on(beside: Beside, drawn: Draw) -> None:
    assert beside.client.submit(ReadDocument(drawn("Again"))).wait(WAIT_S).state is JobState.SUCCEEDED


def test_a_gateway_serves_on(beside: Beside, drawn: Draw) -> None:
    assert beside.gateway.submit(ReadDocument(drawn("Through it"))).wait(WAIT_S).state is JobState.SUCCEEDED


def test_a_listener_gets_the_callbacks_of_the_new_fleet(beside: Beside, drawn: Draw) -> None:
    job = beside.client.submit(ReadDocument(drawn("Called back")), webhook=beside.callbacks)
    received, _ = beside.listener.communicate(timeout=WAIT_S)
    notice = json.loads(received)
    assert (notice["type"], notice["data"]["job_id"]) == ("job.succeeded", str(job.id))


def test_a_review_goes_on(beside: Beside) -> None:
    assert httpx2.get(f"{beside.review}api/pages").status_code == 200


def test_pages_since_the_last_good_canary_are_read_again(
    own_state: Path, ready_cluster: Callable[[Path], None], drawn: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that wait for their canary when the fleet is stopped; and not by a model that fails its first."""
    home = own_state / "canaries"
    home.mkdir(mode=0o711)
    monkeypatch.setenv("PECIA_HOME", str(home))  # the other tests' fleet runs too
    ready_cluster(home / "postgres")
    reader, waits, goes_on = Reader(), threading.Event(), threading.Event()
    held, again = list[str](), list[str]()

    def hold(truth: str, _: str) -> str:
        if truth.startswith("Page"):
            held.append(truth)
        elif reader.canaries > 1:  # the first is that of the start
            waits.set()
            goes_on.wait(WAIT_S)
        return truth

    def fail_first(truth: str, _: str) -> str:
        if truth.startswith("Page"):
            again.append(truth)
        return CONSTANT if reader.canaries == before + 1 else truth

    reader.fault = hold
    with serving(reader) as model, ExitStack() as stack:
        settings = {"engine": "openai", "engine_url": model.url, "canary_every": 20, "cache": False}
        with ExitStack() as former:
            _start(former, home, drain_timeout=timedelta(seconds=1), **settings)
            client = stack.enter_context(Client())
            pages = [f"Page {number}" for number in range(3)]
            jobs = client.submit_many(ReadDocument(drawn("A page"), instructions=page) for page in pages)
            assert waits.wait(WAIT_S)
        before, reader.fault = reader.canaries, fail_first
        goes_on.set()
        fleet = _start(stack, home, **settings)
        assert [job.result(WAIT_S).pages[0].text for job in jobs] == pages
        assert held
        assert sorted(again) == pages
        assert reader.canaries > before + 1
        with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
            assert connection.execute("SELECT DISTINCT strikes, deaths FROM parts").fetchall() == [(0, 0)]


@pytest.fixture
def deep_home(
    short_path: Path, ready_cluster: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A home that is too deep for sockets: they lie in the temporary directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(short_path))
    home = short_path / ("deep" * 20)
    home.mkdir(mode=0o711)
    ready_cluster(home / "postgres")
    return home


async def test_a_fleet_that_comes_back_elsewhere_is_found_by_both_clients(
    deep_home: Path, drawn: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stores() -> LocalFleet:
        given = WorkerSettings(flower_port=0)
        return LocalFleet(deep_home, settings=given, workers=(), migrate=("/bin/true",))

    async def both_submit(*calls: Callable[[Task[Any]], Awaitable[object]]) -> None:
        """Submit until a message arrives: a Redis that failed is left alone for some seconds."""
        task = ReadDocument(drawn("Moved"))
        with connect(fleet.settings.redis_url.get_secret_value()) as redis:
            for submit in calls:
                before = count_waiting(redis).total()
                async with asyncio.timeout(WAIT_S):
                    while count_waiting(redis).total() == before:
                        await submit(task)

    with stores() as fleet:
        former = fleet.settings.redis_url
        client, awaited = Client(), AsyncClient()
        submits = (lambda task: asyncio.to_thread(client.submit, task), awaited.submit)
        await both_submit(*submits)
    monkeypatch.setattr(tempfile, "tempdir", str(deep_home.parent))
    with stores() as fleet:
        assert fleet.settings.redis_url != former
        await both_submit(*submits)
        client.close()
        await awaited.close()
