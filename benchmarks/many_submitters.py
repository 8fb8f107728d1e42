"""Many processes that submit at once and read what comes back: who is not woken, and which connections stay.

Half of the processes use `Client` in threads, half `AsyncClient` on a loop; each submits its tasks one by one and waits
for them by `wait`, `result`, `pages` and `events` in turn. Clients poll only once a minute, so a waiter that returns
sooner was woken by an announcement; one that was not woken within half a minute counts as lost. How late a waiter
wakes is measured from the commit that ended the job, by the clock that client and Postgres share on one machine.

Caveats. A fleet with the instant engine runs beside it on the same cores, so lateness is mostly waiting for a core.
"""

import argparse
import asyncio
import io
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import psycopg
from PIL import Image
from pydantic import SecretStr
from redis import Redis

from harness.report import Report, Table, parser
from harness.servers import fleet
from pecia import AsyncClient, Client, ClientSettings, JobTimeoutError, ReadDocument
from pecia.handles import JobHandle
from pecia_schemas.settings import WorkerSettings

NAME = "submitter"
"""By which Postgres and Redis know the connections of these clients."""

LOOKS_BY_ITSELF = timedelta(seconds=60)
LOST_S = 30.0
AT_ONCE = 5
"""Jobs of one process that are submitted or waited for at a time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of all of them."""

    jobs: int
    lost: int
    """Waiters that were not woken."""
    seconds: float
    late_median_ms: float
    late_p95_ms: float
    late_most_ms: float
    postgres_most: int
    """Connections of the clients at a time."""
    postgres_after: int
    """Connections once the clients are closed, while their processes live."""
    redis_most: int
    redis_after: int


def main() -> None:
    """Run it once, on a fleet of its own, and print what came of it."""
    made = parser(__doc__)
    made.add_argument("--processes", type=int, default=8)
    made.add_argument("--tasks", type=int, default=50, help="of each process")
    made.add_argument(
        "--this-fleet", action="store_true", help="on the fleet that PECIA_* names, not on one of its own"
    )
    arguments = made.parse_args()
    with nullcontext(ClientSettings()) if arguments.this_fleet else _fleet() as settings:
        outcome = _run(_named(settings), arguments.processes, arguments.tasks)
    _report(outcome, arguments).tell(as_json=arguments.json)


@contextmanager
def _fleet() -> Iterator[ClientSettings]:
    with fleet(WorkerSettings(engine="simulated:instant", flower_port=0)) as (started, _, _):
        urls = started.settings
        yield ClientSettings(
            database_url=urls.database_url, redis_url=urls.redis_url, payload_url=urls.payload_url
        )


def _named(settings: ClientSettings) -> ClientSettings:
    """Return the settings of clients whose connections can be told, and that hardly look by themselves."""
    redis_url = settings.redis_url.get_secret_value()
    named = SecretStr(f"{redis_url}{'&' if '?' in redis_url else '?'}client_name={NAME}")
    return settings.model_copy(update={"redis_url": named, "poll_interval": LOOKS_BY_ITSELF})


def _run(settings: ClientSettings, processes: int, tasks: int) -> Outcome:
    context = multiprocessing.get_context("spawn")
    os.environ["PGAPPNAME"] = NAME
    began = time.perf_counter()
    with ProcessPoolExecutor(processes, context) as pool:
        late = [pool.submit(_work, settings, number, tasks) for number in range(processes)]
        most = _watch(settings, late)
        seconds = time.perf_counter() - began
        after = _connections(settings)
    return _outcome([future.result() for future in late], seconds, most, after)


def _watch(settings: ClientSettings, working: list[Future[list[float]]]) -> tuple[int, int]:
    """Return the most connections there are while the processes work."""
    most = (0, 0)
    while not all(future.done() for future in working):
        now = _connections(settings)
        most = max(most[0], now[0]), max(most[1], now[1])
        time.sleep(0.05)
    return most


def _connections(settings: ClientSettings) -> tuple[int, int]:
    """Return how many connections the clients have to Postgres and to Redis."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"
    with psycopg.connect(settings.database_url.get_secret_value()) as connection:
        row = connection.execute(query, [NAME]).fetchone()
    with Redis.from_url(settings.redis_url.get_secret_value()) as redis:
        others = [client for client in redis.client_list() if client["id"] != str(redis.client_id())]
        return (row or [0])[0], sum(client["name"] == NAME for client in others)


def _work(settings: ClientSettings, number: int, tasks: int) -> list[float]:
    """Return how late each waiter of one process was. Its client is closed then; the process lives."""
    if number % 2:
        return asyncio.run(_awaited(settings, number, tasks))
    with Client(settings=settings) as client, ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda task: _one(client, number, task), range(tasks)))


def _one(client: Client, number: int, task: int) -> float:
    job = client.submit(_task(number, task))
    try:
        match task % 4:
            case 0:
                job.wait(LOST_S)
            case 1:
                job.result(LOST_S)
            case 2:
                _check(list(job.pages(timeout=LOST_S)))
            case _:
                _check(list(job.events(timeout=LOST_S)))
    except JobTimeoutError:
        return LOST_S
    return _late(time.time(), job.refresh())


async def _awaited(settings: ClientSettings, number: int, tasks: int) -> list[float]:
    turn = asyncio.Semaphore(AT_ONCE)
    async with AsyncClient(settings=settings) as client:

        async def one(task: int) -> float:
            async with turn:
                return await _one_awaited(client, number, task)

        return await asyncio.gather(*map(one, range(tasks)))


async def _one_awaited(client: AsyncClient, number: int, task: int) -> float:
    job = await client.submit(_task(number, task))
    try:
        match task % 4:
            case 0:
                await job.wait(LOST_S)
            case 1:
                await job.result(LOST_S)
            case 2:
                async with aclosing(job.pages(timeout=LOST_S)) as pages:
                    _check([page async for page in pages])
            case _:
                async with aclosing(job.events(timeout=LOST_S)) as events:
                    _check([event async for event in events])
    except JobTimeoutError:
        return LOST_S
    return _late(time.time(), await job.refresh())


def _check(read: list[Any]) -> None:
    if not read:
        message = "a reader ended without anything"
        raise RuntimeError(message)


def _late(now: float, job: JobHandle[Any]) -> float:
    return max(0.0, now - job.finished_at.timestamp()) if job.finished_at else LOST_S


def _task(number: int, task: int) -> ReadDocument:
    """Return a picture that no other task has."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (number, task % 256, task // 256)).save(file, "PNG")
    return ReadDocument(file.getvalue())


def _outcome(
    late: list[list[float]], seconds: float, most: tuple[int, int], after: tuple[int, int]
) -> Outcome:
    everyone = sorted(one for process in late for one in process)
    woken = [one for one in everyone if one < LOST_S] or [LOST_S]
    return Outcome(
        jobs=len(everyone),
        lost=sum(one >= LOST_S for one in everyone),
        seconds=seconds,
        late_median_ms=statistics.median(woken) * 1000,
        late_p95_ms=woken[int(len(woken) * 0.95)] * 1000,
        late_most_ms=woken[-1] * 1000,
        postgres_most=most[0],
        postgres_after=after[0],
        redis_most=most[1],
        redis_after=after[1],
    )


def _report(outcome: Outcome, arguments: argparse.Namespace) -> Report:
    rows = [
        ["waiters that were not woken", f"{outcome.lost}"],
        ["woken after the commit, median, ms", f"{outcome.late_median_ms:,.0f}"],
        ["p95, ms", f"{outcome.late_p95_ms:,.0f}"],
        ["most, ms", f"{outcome.late_most_ms:,.0f}"],
        ["connections to Postgres, most and after", f"{outcome.postgres_most} and {outcome.postgres_after}"],
        ["connections to Redis, most and after", f"{outcome.redis_most} and {outcome.redis_after}"],
    ]
    title = f"{arguments.processes} processes, {outcome.jobs} jobs in {outcome.seconds:.1f} s"
    return Report(tables=[Table(headings=("", "all"), rows=rows, title=title)], figures=asdict(outcome))


if __name__ == "__main__":
    main()
