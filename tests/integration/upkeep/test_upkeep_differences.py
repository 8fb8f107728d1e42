"""`pecia doctor --deep` on a fleet whose stores have been tampered with, and on one that is merely busy."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, LiteralString, Self
from uuid import uuid4

import pytest
from redis import Redis

from pecia.cli import run as pecia
from pecia_schemas.messages import PartMessage, publish
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.protocol.parts import Done, Finished
from pecia_workers.queue.lists import DEAD, QUEUES, Lists
from pecia_workers.upkeep import differences as looking
from pecia_workers.upkeep.differences import Difference, Found, Scene, differences, mend
from pecia_workers.upkeep.loop import relay

pytestmark = pytest.mark.gate

Play = Callable[..., Any]

_PAGE = Page(number=1, verdict=Verdict.OK, width=1, height=1, engine="test")


@pytest.fixture
def play(run: Play, settings: WorkerSettings, payload_url: str) -> Play:
    """Runs something on the scene."""
    payloads = PayloadStore.open(payload_url)
    return lambda what: run(lambda stores: what(Scene(stores=stores, payloads=payloads, settings=settings)))


@pytest.fixture
def look(play: Play) -> Callable[[], Found]:
    """Looks for differences, twice in a fifth of a second."""
    return lambda: play(lambda scene: differences(scene, second_look=timedelta(seconds=0.2)))


def with_payloads(tables: Any, payload_url: str) -> None:
    """Store what the jobs refer to."""
    tables.query("UPDATE jobs SET payload = %s", PayloadStore.open(payload_url).put(b"document").sha256)


@pytest.fixture
def healthy(tables: Any, run: Play, payload_url: str) -> Any:
    """Three queued parts of one job, published, and their document."""
    job_id = tables.add_job(parts=3)
    with_payloads(tables, payload_url)
    run(relay)
    tables.publish_long_ago()
    return job_id


@pytest.mark.usefixtures("healthy")
def test_a_healthy_fleet_has_no_differences(tables: Any, claim_all: Play, look: Callable[[], Found]) -> None:
    held = claim_all(slots=1)
    tables.add_worker("alive")
    tables.query(
        "UPDATE parts SET state = 'running', worker = 'alive', started_at = now(), attempt = 1 WHERE id = %s",
        held[0],
    )
    assert look() == {}


def mended(play: Play, look: Callable[[], Found], found: Found) -> bool:
    play(lambda scene: mend(scene, found))
    return look() == {}


def test_messages_that_are_lost_are_published_again(
    healthy: Any, redis: Redis, play: Play, look: Callable[[], Found], tables: Any
) -> None:
    redis.rpop("read.normal", 2)
    found = look()
    lost = {str(part["id"]) for part in tables.parts(healthy)[:2]}
    assert found == {Difference.LOST_MESSAGES: lost}
    play(lambda scene: mend(scene, found))
    assert redis.llen("read.normal") == 3


def test_parts_of_workers_that_are_gone_run_again(
    healthy: Any, tables: Any, redis: Redis, play: Play, look: Callable[[], Found]
) -> None:
    tables.run_on("dead", healthy)
    redis.flushall()
    found = look()
    assert {kind: len(items) for kind, items in found.items()} == {Difference.ORPHANS: 3}
    play(lambda scene: mend(scene, found))
    assert {part["state"] for part in tables.parts(healthy)} == {"queued"}
    assert redis.llen("read.quarantine") == 3


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE jobs SET done = 2",
        "UPDATE jobs SET failed = 1",
        "UPDATE jobs SET cancelled = 1",
        "UPDATE jobs SET total = 7",
        "UPDATE jobs SET total = NULL",
    ],
)
def test_counters_that_are_wrong_are_counted_anew(
    healthy: Any, tables: Any, play: Play, look: Callable[[], Found], wrong: LiteralString
) -> None:
    tables.query(wrong)

    found = look()

    assert found == {Difference.MISCOUNTED: {healthy}}
    assert mended(play, look, found)
    right = {"state": "queued", "total": 3, "done": 0, "failed": 0, "cancelled": 0}
    assert right.items() <= tables.job(healthy).items()


def test_a_job_that_goes_on_although_its_parts_are_over_ends_and_calls_back(
    tables: Any, play: Play, look: Callable[[], Found], payload_url: str
) -> None:
    job_id = tables.add_job(parts=2, webhook=True)
    with_payloads(tables, payload_url)
    tables.query("UPDATE parts SET state = CASE ordinal WHEN 0 THEN 'done' ELSE 'failed' END")
    found = look()
    assert found == {Difference.MISCOUNTED: {job_id}, Difference.UNENDED: {job_id}}
    assert mended(play, look, found)
    assert tables.job(job_id)["state"] == "partial"
    assert len(tables.notices()) == 1


def test_a_summary_that_waits_for_segments_that_are_over_is_released(
    tables: Any, play: Play, look: Callable[[], Found], payload_url: str
) -> None:
    job_id = tables.add_job(parts=2, stage="caption")
    with_payloads(tables, payload_url)
    tables.query("UPDATE parts SET stage = 'summarize', state = 'held' WHERE ordinal = 1")
    tables.query("UPDATE parts SET state = 'done' WHERE stage = 'caption'")
    tables.query("UPDATE jobs SET done = 1")

    found = look()

    assert found == {Difference.STUCK_SUMMARIES: {job_id}}
    assert mended(play, look, found)
    assert tables.query("SELECT published_at FROM parts WHERE stage = 'summarize'")[0]["published_at"]


@pytest.mark.usefixtures("healthy")
def test_what_was_no_message_is_forgotten(redis: Redis, play: Play, look: Callable[[], Found]) -> None:
    redis.lpush(DEAD, "nonsense", "more nonsense")
    found = look()
    assert {kind: len(items) for kind, items in found.items()} == {Difference.DEAD_MESSAGES: 2}
    assert mended(play, look, found)


@pytest.mark.usefixtures("healthy")
def test_parts_of_another_fleet_are_left_alone(redis: Redis, play: Play, look: Callable[[], Found]) -> None:
    stranger, flow = uuid4(), uuid4()
    publish(redis, [PartMessage(part=stranger, stage=Stage.READ, lane=Lane.BULK, cost=1, flow=flow)])
    found = look()
    assert found == {Difference.STRANGERS: {str(stranger)}}
    assert not mended(play, look, found)
    assert redis.llen("read.bulk") == 1


@pytest.mark.usefixtures("healthy")
def test_a_document_that_is_not_there_is_told_of_each_job_that_needs_it(
    tables: Any, play: Play, look: Callable[[], Found]
) -> None:
    another = tables.add_job()
    tables.query("UPDATE jobs SET payload = %s WHERE id = %s", "ab" * 32, another)
    tables.query("UPDATE parts SET run_at = now() + interval '1 day' WHERE job_id = %s", another)
    found = look()
    assert found == {Difference.MISSING_PAYLOADS: {another}}
    assert not mended(play, look, found)


class BusyWorker:
    """Claims, reads and commits as fast as it goes, for the length of a block; some parts go back to the queue."""

    def __init__(self, settings: WorkerSettings, redis: Redis) -> None:
        self._database_url = settings.database_url.get_secret_value()
        self._lists = Lists(redis)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        self.committed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    async def _work(self) -> None:
        database = open_database(self._database_url)
        ledger = Ledger(database, "busy", announce=_hear)
        numbers = count(1)
        while not self._stopping.is_set():
            claim = self._lists.claim(tuple(QUEUES), worker="busy", number=next(numbers), slots=20)
            asked = [ledger.claim(one.part) for one in claim.parts]
            parts = [part for part in await asyncio.gather(*asked) if part]
            # The last ones: put back to the heads of their lists, they are the first of the next claim, and end there.
            requeued = set(await ledger.requeue([part.id for part in parts[2:][-2:]]))
            self._lists.put_back([one for one in claim.parts if one.part in requeued])
            done = [Finished(part=part, outcome=Done(_PAGE)) for part in parts if part.id not in requeued]
            self.committed += len([one for one in await asyncio.gather(*map(ledger.commit, done)) if one])
        await database.dispose()


def test_a_fleet_that_is_merely_busy_has_no_differences(  # noqa: PLR0917  fixtures
    tables: Any,
    redis: Redis,
    settings: WorkerSettings,
    payload_url: str,
    run: Play,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "GRACE", timedelta())
    tables.add_worker("busy")
    for _ in range(10):
        tables.add_job(parts=60)
    with_payloads(tables, payload_url)
    run(relay)

    second = timedelta(seconds=4)  # longer than a part is on its way from Redis to Postgres
    with BusyWorker(settings, redis) as worker:
        found = [play(lambda scene: differences(scene, second_look=second)) for _ in range(2)]

    assert found == [{}] * 2
    assert worker.committed > 0


@pytest.fixture
def doctor(
    stores: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the doctor, and returns its exit code and what it said last of each subject."""
    for name, value in (stores | {"PECIA_UPKEEP_INTERVAL": "0.1"}).items():
        monkeypatch.setenv(name, value)

    def examine(*options: str) -> tuple[int, dict[str, Any]]:
        code = pecia(["doctor", "--json", *options])
        said = map(json.loads, capsys.readouterr().out.splitlines())
        return code, {one["subject"]: one for one in said}

    return examine


@pytest.fixture
def staffed(tables: Any) -> None:
    """Somebody of each role is on duty."""
    for role in ("ingest", "engine", "webhooks", "upkeep"):
        tables.add_worker(role)
        # Seen for as long as the test takes, on a machine however busy.
        tables.query("UPDATE workers SET role = name, seen_at = now() + interval '1 hour'")


@pytest.mark.usefixtures("healthy", "staffed")
def test_the_doctor_repairs_what_it_finds_when_it_is_told_to(
    redis: Redis, doctor: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    assert doctor("--deep")[0] == 0
    redis.rpop("read.normal")

    code, said = doctor("--deep")
    assert (code, said["lost messages"]["ok"]) == (1, False)
    assert said["lost messages"]["detail"].startswith("1: parts are queued in Postgres and have no message")
    assert said["dead messages"] == {"subject": "dead messages", "ok": True, "detail": "none"}

    assert doctor("--repair")[0] == 1, "it repairs though nobody said yes"
    assert redis.llen("read.normal") == 2

    code, said = doctor("--repair", "--yes")
    assert (code, said["lost messages"]["ok"]) == (0, True)
    assert redis.llen("read.normal") == 3


@pytest.mark.usefixtures("healthy", "staffed")
def test_the_doctor_sees_the_relay_and_the_callbacks_fall_behind_and_leaves_nothing_in_the_store(
    tables: Any, doctor: Callable[..., tuple[int, dict[str, Any]]], payload_url: str
) -> None:
    before = set(Path(payload_url).rglob("*"))
    assert doctor()[0] == 0
    assert {file for file in set(Path(payload_url).rglob("*")) - before if file.is_file()} == set()
    tables.query(
        "UPDATE parts SET published_at = NULL, run_at = now() - interval '2 minutes' WHERE ordinal = 0"
    )
    tables.query(
        "INSERT INTO deliveries (job_id, type, url, body, next_at) "
        "SELECT id, 'job.failed', '', '{}', now() - interval '3 minutes' FROM jobs"
    )

    code, said = doctor()

    assert code == 4
    for check, text, least_s in (
        ("relay", r"1 parts wait to be published, the oldest for (\d+) s: .*", 120),
        ("callbacks", r"1 are due, the oldest for (\d+) s: .*", 180),
    ):
        seen = re.fullmatch(text, said[check]["detail"])
        assert seen
        assert int(seen[1]) >= least_s


async def _hear(_jobs: Any) -> None:
    """Nobody listens."""
