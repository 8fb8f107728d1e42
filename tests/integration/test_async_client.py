"""The asynchronous client on its loop: nothing blocks it, and whoever is cancelled leaves nothing behind."""

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from pecia import AsyncClient, AsyncJob, ClientSettings, JobState, ReadDocument, errors
from pecia.aio.connections import AsyncConnections
from pecia.handles import assemble
from tests.shared.command import ran
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually, until

PDF = b"%PDF-1.7"


class Refusing(ThreadPoolExecutor):
    """A loop's executor that lets nobody in."""

    def submit(self, work: Callable[..., Any], /, *_args: Any, **_options: Any) -> Any:
        message = f"{work} was to run in a thread"
        raise AssertionError(message)


@asynccontextmanager
async def serving(stores: dict[str, str], **settings: Any) -> AsyncIterator[AsyncClient]:
    """A client that would notice nothing within a test if it were not told."""
    patient: dict[str, Any] = {"poll_interval": timedelta(minutes=5)} | settings
    async with AsyncClient(*stores.values(), settings=ClientSettings(**patient)) as client:
        yield client
        await at_rest(client)


async def at_rest(client: AsyncClient) -> None:
    """Fail if the client still holds a connection for somebody who has left."""
    connections = client._open()

    def held() -> tuple[int, int]:
        of_redis = connections.bus.redis.connection_pool._in_use_connections
        return connections._database._engine.pool.checkedout(), len(of_redis)  # type: ignore[attr-defined]

    # What is being closed when its owner is cancelled again is closed later.
    await until(lambda: held() == (0, 0))


async def soon(step: Callable[[], Any], *, after: float = 0.2) -> Any:
    """Run a step of the fleet in a thread, a little later."""
    await asyncio.sleep(after)
    return await asyncio.to_thread(step)


async def test_waiting_needs_no_thread(stores: dict[str, str], scribe: Any, picture: Picture) -> None:
    async def everything_else(client: AsyncClient, one: AsyncJob[Any], other: AsyncJob[Any]) -> None:
        await one.result()
        assert [page.number async for page in one.pages()] == [1]
        assert len([told async for told in one.events()]) > 2
        assert len([job async for job in client.jobs()]) == 2
        await client.usage(by="lane")
        await other.cancel()
        await (await other.retry()).hint()
        with pytest.raises(errors.JobTimeoutError):
            await client.group([one, other]).wait(timeout=0.1)
        await client.purge([one, other])
        assert len([entry async for entry in client.audit()]) > 2

    async with serving(stores) as client:
        one, other = [await client.submit(ReadDocument(picture(shade=shade))) for shade in range(2)]
        waiting = asyncio.create_task(one.result(timeout=WAIT_S))
        await soon(lambda: scribe.read(one.id))
        await waiting
        before = {thread.name for thread in threading.enumerate()}
        asyncio.get_running_loop().set_default_executor(Refusing())
        await everything_else(client, one, other)
        assert {thread.name for thread in threading.enumerate()} <= before


async def test_a_long_result_is_put_together_in_a_thread(
    stores: dict[str, str], scribe: Any, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(*about: Any) -> Any:
        threads.append(threading.current_thread())
        return assemble(*about)

    monkeypatch.setattr("pecia.aio.job._MANY", 0)
    monkeypatch.setattr("pecia.aio.job.assemble", noted)
    async with serving(stores) as client:
        job = await client.submit(ReadDocument(picture()))
        await soon(lambda: scribe.read(job.id))
        await job.result(timeout=WAIT_S)
    assert [thread is threading.current_thread() for thread in threads] == [False]


def test_statements_run_in_the_loops_thread(stores: dict[str, str], scribe: Any, picture: Picture) -> None:
    threads: set[str] = set()

    def note(*_: Any) -> None:
        threads.add(threading.current_thread().name)

    async def work() -> None:
        async with serving(stores) as client:
            group = await client.submit_many(ReadDocument(picture(shade=shade)) for shade in range(3))
            event.remove(Engine, "before_cursor_execute", note)  # the fleet's are its own
            for job in group:
                await soon(lambda job=job: scribe.read(job.id), after=0)  # type: ignore[misc]
            event.listen(Engine, "before_cursor_execute", note)
            await group.results(timeout=WAIT_S)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        asyncio.run(work())
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert threads == {threading.main_thread().name}


async def test_the_loop_goes_on_while_postgres_lets_a_statement_wait(
    stores: dict[str, str], database_url: str, picture: Picture
) -> None:
    async with serving(stores) as client:
        job = await client.submit(ReadDocument(picture()))
        with psycopg.connect(database_url) as holder:
            holder.execute("SELECT FROM jobs FOR UPDATE")
            waiting = asyncio.create_task(job.cancel())
            beats = 0
            while beats < 20 and not waiting.done():
                await asyncio.sleep(0.01)
                beats += 1
            assert not waiting.done()
        assert await waiting
        assert beats == 20


class CancelledAt:
    """Runs a coroutine and cancels its task in the n-th of its waits, as `Task.cancel` does, so many times in a row."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], wait: int, times: int) -> None:
        self._coroutine, self._cancelled_in = coroutine, range(wait, wait + times)
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        answer: Any = None
        while True:
            try:
                waiting = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield from self._pass_on(steps, waiting)

    def _pass_on(self, steps: Generator[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
        self.waits += 1
        if self.waits in self._cancelled_in:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        while True:
            try:
                return (yield waiting)
            except BaseException as error:  # noqa: BLE001  handed on to whom it is for
                waiting = steps.throw(error)


async def cancel_everywhere(operation: Callable[[], Coroutine[Any, Any, Any]], times: int) -> int:
    """Run an operation as often as it waits, cancelled in another of its waits each time; return how often."""
    for wait in range(1, 500):
        run = CancelledAt(operation(), wait, times)

        async def drive(run: CancelledAt = run) -> Any:
            return await run

        task = asyncio.create_task(drive())
        await asyncio.wait([task])
        if not task.cancelled():
            assert run.waits < wait, "a cancellation was swallowed"
            return wait
    pytest.fail("it never ends")


async def waiting(_client: AsyncClient, job: AsyncJob[Any]) -> None:
    with pytest.raises(errors.JobTimeoutError):
        await job.wait(timeout=0.02)


async def reading_pages(_client: AsyncClient, job: AsyncJob[Any]) -> None:
    with pytest.raises(errors.JobTimeoutError):
        _ = [page async for page in job.pages(timeout=0.02)]


async def submitting(client: AsyncClient, _job: AsyncJob[Any]) -> None:
    await client.submit(ReadDocument(PDF), metadata={"of": "the sweep"})


async def cancelling_another(client: AsyncClient, _job: AsyncJob[Any]) -> None:
    await (await client.submit(ReadDocument(PDF), metadata={"of": "the sweep"})).cancel()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("operation", [waiting, reading_pages, submitting, cancelling_another])
async def test_whoever_is_cancelled_in_any_wait_leaves_no_connection_and_no_half_done_job(
    operation: Callable[..., Any], times: int, picture: Picture, house: House
) -> None:
    async with serving(house.urls) as client:
        job = await client.submit(ReadDocument(picture()))

        async def one() -> None:
            await at_rest(client)
            await operation(client, job)

        assert await cancel_everywhere(one, times) > 5
        await at_rest(client)
        assert (await job.refresh()).state is JobState.QUEUED
        assert await client.submit(ReadDocument(PDF)), "the client is as good as new"
    query = """
        SELECT jobs.state = parts.state AND EXISTS (SELECT FROM job_events WHERE job_id = jobs.id)
        FROM jobs LEFT JOIN parts ON parts.job_id = jobs.id
    """
    assert set(house.query(query)) == {(True,)}
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
    # Postgres hears of a query that was given up a moment after the client.
    eventually(lambda: house.query(others) == [(1,)], what="the end of all queries")


async def test_a_stream_left_early_gives_its_connection_back(stores: dict[str, str], scribe: Any) -> None:
    async with serving(stores) as client:
        job = await client.submit(ReadDocument(PDF))
        await soon(lambda: scribe.cut(job.id, 2), after=0)
        await soon(lambda: scribe.read(job.id, 0), after=0)
        async for page in job.pages(timeout=WAIT_S):
            assert page.number == 1
            break
        async for told in job.events(timeout=WAIT_S):
            assert told.state == "queued"
            break
        gc.collect()
        await asyncio.sleep(0.1)


async def test_tasks_may_come_from_an_async_generator(stores: dict[str, str], picture: Picture) -> None:
    async def arriving() -> AsyncIterator[ReadDocument]:
        for shade in range(4):
            await asyncio.sleep(0)
            yield ReadDocument(picture(shade=shade))

    async with serving(stores) as client:
        first = await client.submit_many(arriving(), idempotency_prefix="scanner")
        again = await client.submit_many(arriving(), idempotency_prefix="scanner")
        assert [job.id for job in first] == [job.id for job in again]
        assert [job.created for job in (*first, *again)] == [True] * 4 + [False] * 4


def test_a_client_belongs_to_its_loop_until_it_is_closed(stores: dict[str, str]) -> None:
    client = AsyncClient(*stores.values())

    async def ask(then: Callable[[], Awaitable[Any]]) -> None:
        _ = [job async for job in client.jobs()]
        await then()

    async def elsewhere() -> None:
        await asyncio.to_thread(refused)

    def refused() -> None:
        for call in (client.usage, client.close):
            with pytest.raises(errors.WrongLoopError, match="a client in each loop"):
                asyncio.run(call())

    async def both() -> None:
        await elsewhere()
        await client.close()

    asyncio.run(ask(both))
    asyncio.run(ask(client.close))


FORKING = """
import asyncio, os
from pecia import AsyncClient, WrongLoopError

async def count(client):
    return len([job async for job in client.jobs()])

async def parent(client):
    print(await count(client), "jobs")
    child = os.fork()
    if not child:
        os._exit(in_child(client))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    print(await count(client), "jobs again, child", os.waitstatus_to_exitcode(status))
    await client.close()

def in_child(client):
    try:
        asyncio.run(count(client))
    except WrongLoopError:
        async def own():
            async with AsyncClient() as mine:
                return await count(mine)
        return asyncio.run(own())
    return 1

asyncio.run(parent(AsyncClient()))
"""


def test_a_forked_child_is_told_to_make_a_client_of_its_own(stores: dict[str, str]) -> None:
    run = ran(sys.executable, "-c", FORKING, env=stores)
    assert (run.stdout, run.stderr) == ("0 jobs\n0 jobs again, child 0\n", "")


async def test_who_moves_a_job_is_the_client_that_asks_not_the_one_before() -> None:
    settings = ClientSettings().with_stores(
        database_url="postgresql://127.0.0.1:1/none", redis_url="redis://127.0.0.1:1", payload_url="/nowhere"
    )
    connections = AsyncConnections(settings)
    before = connections.transitions._actor
    try:
        north, south = (connections.seen_by(f"{tenant}/key", tenant) for tenant in ("north", "south"))
        assert north.transitions._actor == "client:north/key"
        assert connections.transitions._actor == before
        assert north.bus is south.bus is connections.bus
    finally:
        await connections.close()
