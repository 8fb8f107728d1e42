"""What both kinds of client hear, ask and survive while they wait, on real servers; the rest is their contract's."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from redis import Redis

import pecia_migrations
from pecia import AsyncClient, Client, ClientSettings, Document, Job, JobState, ReadDocument, errors
from tests.shared.fixture_types import Make, Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S
from tests.shared.synced import synced

PDF = b"%PDF-1.7"


@contextmanager
def meanwhile(*steps: Callable[[], Any], pause: float = 0.2) -> Iterator[None]:
    """Runs the steps in another thread, a pause before each, and raises what they raise."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for step in steps:
                time.sleep(pause)
                step()
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def open_client(request: pytest.FixtureRequest, house: House) -> Iterator[Callable[..., Client]]:
    """Opens clients of either kind; they would notice nothing within a test if it were not announced."""
    with ExitStack() as stack:

        def run(*, poll_interval: timedelta = timedelta(minutes=5), **urls: str) -> Client:
            settings = ClientSettings(poll_interval=poll_interval)
            client: Any = request.param(**(house.urls | urls), settings=settings)
            opened: Any = stack.enter_context(synced(client) if request.param is AsyncClient else client)
            return cast("Client", opened)

        yield run


@pytest.mark.parametrize("wait", ["result", "pages", "events", "as_completed"])
def test_a_waiting_client_hears_the_announcement(
    open_client: Make, scribe: Any, picture: Picture, wait: str
) -> None:
    client = open_client()
    job = client.submit(ReadDocument(picture()))
    waiting: Any = client.group([job]) if wait == "as_completed" else job
    with meanwhile(lambda: scribe.read(job.id)):
        found = getattr(waiting, wait)(timeout=WAIT_S)
        assert wait == "result" or list(found)
    assert job.refresh().state is JobState.SUCCEEDED


def test_without_redis_jobs_are_left_to_the_relay_and_a_waiting_client_looks_by_itself(
    open_client: Make, tmp_path: Path, house: House, scribe: Any, picture: Picture
) -> None:
    client = open_client(redis_url=f"unix://{tmp_path}/none.sock", poll_interval=timedelta(milliseconds=100))
    job = client.submit(ReadDocument(picture()))
    assert house.query("SELECT published_at FROM parts") == [(None,)]
    with meanwhile(lambda: scribe.read(job.id)):
        assert job.result(timeout=WAIT_S).text == "text"


def test_a_redis_that_dies_during_the_wait_is_survived(
    open_client: Make, redis_server: Make, picture: Picture, scribe: Any
) -> None:
    redis = redis_server()
    client = open_client(redis_url=redis.url, poll_interval=timedelta(milliseconds=200))
    job = client.submit(ReadDocument(picture()))
    with meanwhile(redis.kill, lambda: scribe.read(job.id)):
        assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED


def test_a_restarted_redis_is_found_again(open_client: Make, redis_server: Make, house: House) -> None:
    redis = redis_server()
    client = open_client(redis_url=redis.url)
    client.submit(ReadDocument(PDF))
    redis.kill()
    redis_server(replaces=redis)
    client.submit(ReadDocument(PDF))
    assert house.query("SELECT count(published_at) FROM parts") == [(2,)]


def test_a_restart_of_postgres_during_the_wait_is_survived(open_client: Make, postgres_server: Make) -> None:
    postgres = postgres_server(durable=True)
    pecia_migrations.upgrade(postgres.url)
    client = open_client(database_url=postgres.url, poll_interval=timedelta(milliseconds=100))
    job = client.submit(ReadDocument(PDF))

    waited: list[Job[Document]] = []
    with meanwhile(lambda: waited.append(job.wait(timeout=WAIT_S)), pause=0):
        postgres.stop()
        with pytest.raises(errors.DatabaseUnavailableError, match="PECIA_DATABASE_URL"):
            client.submit(ReadDocument(PDF))
        # By this thread: a server ends with the thread that started it.
        postgres_server(replaces=postgres, durable=True)
        assert client.job(job.id).cancel()
    assert waited[0].state is JobState.CANCELLED


def test_pages_behind_an_unread_one_stay_in_the_store(client: Client, scribe: Any, house: House) -> None:
    job = client.submit(ReadDocument(PDF))
    scribe.cut(job.id, 3)
    scribe.read(job.id, 2)
    scribe.read(job.id, 1)
    with pytest.raises(errors.JobTimeoutError):
        list(job.pages(timeout=0.2))
    assert house.query("SELECT job_id FROM reads") == []
    scribe.read(job.id, 0)
    assert [page.number for page in job.pages(timeout=WAIT_S)] == [1, 2, 3]


def test_a_cancelled_job_is_announced_to_workers_and_waiters(client: Client, redis_url: str) -> None:
    job = client.submit(ReadDocument(PDF))
    with Redis.from_url(redis_url, decode_responses=True) as redis, redis.pubsub() as pubsub:
        pubsub.subscribe("pecia:cancelled", f"pecia:job:{job.id}")
        job.cancel()
        heard = [pubsub.get_message(timeout=WAIT_S) for _ in range(4)]
    messages = {message["data"] for message in heard if message and message["type"] == "message"}
    assert messages == {str(job.id), "cancelled"}


def test_a_thousand_jobs_wait_on_one_connection(client: Client, redis_url: str, picture: Picture) -> None:
    content = picture()
    group = client.submit_many(ReadDocument(content) for _ in range(1000))
    with Redis.from_url(redis_url) as redis:
        before = redis.info("clients")["connected_clients"]
        for _ in range(3):
            with pytest.raises(errors.JobTimeoutError):
                group.wait(timeout=0.2)
        assert redis.info("clients")["connected_clients"] <= before + 1
    assert group.cancel(reason="test") == 1000
    assert group.wait(timeout=WAIT_S)[999].state is JobState.CANCELLED
    assert group.cancel() == 0


def test_a_job_that_was_deleted_is_no_endless_wait(client: Client, house: House, picture: Picture) -> None:
    job: Job[Document] = client.submit(ReadDocument(picture()))
    house.query("DELETE FROM jobs")
    with pytest.raises(errors.JobNotFoundError):
        job.wait(timeout=WAIT_S)


def test_a_result_of_another_version_is_an_error_that_quotes_nothing(
    client: Client, scribe: Any, house: House, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id, text="Anna Miller, 1961")
    house.query("""UPDATE results SET content = content - 'verdict' || '{"new": "Anna Miller"}'""")
    with pytest.raises(ValidationError) as error:
        job.result(timeout=WAIT_S)
    assert "Anna" not in str(error.value)
