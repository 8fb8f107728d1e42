"""A fleet of the version before dies; a new one ends all that it left in both stores."""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from PIL import Image
from redis import Redis

from pecia import Client, Document, Job, ReadDocument
from pecia_schemas.messages import marker, rest_name
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.states import JobState
from pecia_workers.queue.lists import EARLIER
from pecia_workers.upkeep.differences import Difference, Scene, differences, mend
from pecia_workers.upkeep.loop import open_stores
from tests.shared.fixture_types import Eventually, Picture
from tests.shared.forking import Started
from tests.shared.house import House
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded

QUEUE = "read.normal"


@pytest.fixture
def submit(client: Client, picture: Picture) -> Callable[..., Job[Document]]:
    """Submits a picture, or several as one document, which is to be cut."""

    def submit_pages(*shades: int, **options: Any) -> Job[Document]:
        if len(shades) == 1:
            return client.submit(ReadDocument(picture(shade=shades[0])), **options)
        first, *others = (Image.open(io.BytesIO(picture(shade=shade))).convert("RGB") for shade in shades)
        content = encoded(first, "PDF", save_all=True, append_images=others)
        return client.submit(ReadDocument(content), **options)

    return submit_pages


@pytest.fixture
def finish(started: Started, eventually: Eventually) -> Callable[..., None]:
    """Starts workers of this version, with a short lease, and waits until they have done these jobs."""

    def start_and_wait(*jobs: Job[Any]) -> None:
        for role in ("upkeep", "ingest", "engine"):
            started.worker(role, PECIA_LEASE="PT8S")
        eventually(lambda: all(job.refresh().state is JobState.SUCCEEDED for job in jobs), timeout=2 * WAIT_S)

    return start_and_wait


class OldFleet:
    """What a worker has written when its machine dies that leased its parts in Redis."""

    name = "engine@gone:7:abcdef"

    def __init__(self, house: House, redis: Redis) -> None:
        self._house = house
        self._redis = redis
        house.query(
            "INSERT INTO workers (name, role, stages, host, pid) VALUES (%s, 'engine', '{read}', 'gone', 7)",
            self.name,
        )

    def lose(self, job: Job[Any]) -> tuple[UUID, str]:
        """Take the part's message out of its list, and return both."""
        part = self._house.part_of(job)
        (message,) = [str(raw) for raw in self._redis.lrange(QUEUE, 0, -1) if str(part) in str(raw)]
        self._redis.lrem(QUEUE, 1, message)
        return part, message

    def lease(self, job: Job[Any]) -> None:
        """Hold the part in Redis, before it is begun in Postgres."""
        part, message = self.lose(job)
        self._redis.hset("pecia:leased", str(part), f"{QUEUE}\n{message}")
        self._redis.zadd("pecia:leases", {str(part): self._redis.time()[0]})
        self._redis.hset("pecia:owners", str(part), "gone:7:abcdef")

    def take(self, job: Job[Any]) -> None:
        """Take the part by a numbered call, before it is begun in Postgres."""
        part, message = self.lose(job)
        self._redis.hset(f"pecia:taken:{self.name}", mapping={"#": 7, str(part): f"7 0 {QUEUE} {message}"})
        self._redis.sadd("pecia:takers", self.name)

    def run(self, job: Job[Any]) -> None:
        """Begin what was leased."""
        self.lease(job)
        self._house.query(
            "UPDATE parts SET state = 'running', worker = %s, attempt = 1, started_at = now() WHERE job_id = %s",
            self.name,
            job.id,
        )
        self._house.query("UPDATE jobs SET state = 'running', started_at = now() WHERE id = %s", job.id)

    def put_apart(self, job: Job[Any]) -> None:
        """Move the part to quarantine: a worker died on it. Its message does not say so."""
        part, message = self.lose(job)
        self._redis.lpush("read.quarantine", message)
        self._redis.hset("pecia:deliveries", str(part), 1)
        self._house.query("UPDATE parts SET deaths = 1, attempt = 1 WHERE id = %s", part)

    def stand_behind(self, job: Job[Any]) -> None:
        """Let the part wait behind a turn of its job."""
        _, message = self.lose(job)
        self._redis.lpush(QUEUE, marker(job.id))
        self._redis.rpush(rest_name(QUEUE, job.id), message)
        self._redis.hdel(f"pecia:standing:{QUEUE}", str(job.id))


@pytest.fixture
def old(house: House, redis: Redis) -> OldFleet:
    return OldFleet(house, redis)


def test_all_that_the_release_before_left_is_done(
    house: House,
    old: OldFleet,
    scribe: Any,
    submit: Callable[..., Job[Document]],
    finish: Callable[..., None],
) -> None:
    done, waiting, behind, leased, running, suspect, unpublished, lost = map(submit, range(8))
    taken = submit(17)
    later = submit(16, not_before=timedelta(seconds=2))
    uncut, cut = submit(9, 10, 11), submit(12, 13, 14)
    scribe.read(done.id, text="read before")
    scribe.cut(cut.id, 3)
    old.lose(lost)
    old.stand_behind(behind)
    old.lease(leased)
    old.take(taken)
    old.run(running)
    old.put_apart(suspect)
    house.query("UPDATE parts SET published_at = NULL WHERE job_id = %s", unpublished.id)
    house.query("UPDATE parts SET published_at = published_at - interval '1 minute'")

    finish(waiting, behind, leased, taken, running, suspect, unpublished, lost, later, uncut, cut)

    assert done.refresh().result().text == "read before"
    deaths = house.query("SELECT job_id, deaths FROM parts WHERE deaths > 0 ORDER BY job_id")
    assert deaths == sorted([(running.id, 1), (suspect.id, 1)])
    assert len(house.query("SELECT part_id FROM results")) == 10 + 6


async def test_keys_of_the_release_before_are_found_and_forgotten(house: House, redis: Redis) -> None:
    keys = {*EARLIER, "pecia:taken:engine@gone:7:abcdef"}
    for key in keys:
        redis.hset(key, "part", "message")
    settings = house.settings()
    async with open_stores(settings) as stores:
        scene = Scene(stores=stores, payloads=PayloadStore.open(house.payload_url), settings=settings)
        found = await differences(scene, second_look=timedelta())

        assert found == {Difference.EARLIER_KEYS: frozenset(keys)}
        await mend(scene, found)
        assert await differences(scene, second_look=timedelta()) == {}
