"""Submitting: what is written and published, which jobs take turns as one, what a repeat returns, what is refused."""

import json
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from redis import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import (
    CaptionVideo,
    Client,
    ClientSettings,
    DocumentType,
    InvalidOptionError,
    Job,
    JobState,
    Lane,
    ReadDocument,
)
from pecia_schemas import storable
from pecia_schemas.tasks import page_cost
from pecia_workers.ledger.publication import forget_flows
from pecia_workers.queue.bus import Bus
from pecia_workers.upkeep.loop import relay_due
from tests.shared.command import ran
from tests.shared.fixture_types import Picture
from tests.shared.house import House


def part_of(house: House, job: Job[Any]) -> dict[str, Any]:
    (part,) = house.rows("SELECT * FROM parts WHERE job_id = %s", job.id)
    return part


def test_a_picture_is_queued_at_its_pixels_price(client: Client, house: House, picture: Picture) -> None:
    task = ReadDocument(picture(800, 600), document_type=DocumentType.CHART)
    job = client.submit(task, priority=Lane.URGENT)
    part = part_of(house, job)
    cost = page_cost(800, 600, DocumentType.CHART)
    assert (part["stage"], part["ordinal"], part["width"], part["height"]) == ("read", 0, 800, 600)
    assert (part["lane"], part["state"], part["cost"]) == ("urgent", "queued", cost)
    assert part["published_at"] is not None
    with Redis.from_url(house.redis_url) as redis:
        (message,) = redis.lrange("read.urgent", 0, -1)
        said = {"part": str(part["id"]), "lane": "urgent", "cost": cost, "flow": str(job.id)}
        assert json.loads(message) == said
    assert (job.state, job.progress.total, job.created, job.done) == (JobState.QUEUED, 1, True, False)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_picture_is_measured_upright_and_a_large_one_without_a_warning(
    client: Client, house: House, picture: Picture, form: str
) -> None:
    large = (10_000, 9_000)  # more than Pillow opens in silence
    tasks = [ReadDocument(picture(200, 100, form=form, orientation=6)), ReadDocument(picture(*large))]
    parts = [part_of(house, job) for job in client.submit_many(tasks)]
    assert [(part["stage"], part["width"], part["height"]) for part in parts] == [
        ("read", 100, 200),
        ("read", *large),
    ]


@pytest.mark.parametrize(
    "task",
    [
        *map(ReadDocument, (b"", b"II*\x00 a TIFF", b"\x89PNG\r\n\x1a\n cut off")),
        CaptionVideo(b"\x89PNG\r\n\x1a\n"),
    ],
    ids=["empty", "tiff", "damaged", "video"],
)
def test_what_the_header_does_not_tell_goes_to_ingest(client: Client, house: House, task: Any) -> None:
    job = client.submit(task)
    part = part_of(house, job)
    assert (part["stage"], part["cost"], part["width"]) == ("ingest", 1, None)
    assert job.progress.total is None
    with Redis.from_url(house.redis_url) as redis:
        assert redis.llen("ingest.normal") == 1


def test_no_row_tells_the_files_name(client: Client, house: House, tmp_path: Path, picture: Picture) -> None:
    path = tmp_path / "miller-anna-1961.png"
    path.write_bytes(picture())
    client.submit(ReadDocument(path))
    told = house.rows("SELECT jobs::text AS job, parts::text AS part FROM jobs, parts")
    assert "miller" not in str(told)


def test_work_for_later_is_timed_by_the_clock_of_postgres_and_left_to_the_relay(
    client: Client, house: House, picture: Picture
) -> None:
    expires = datetime.now(UTC) + timedelta(days=1)
    job = client.submit(ReadDocument(picture()), not_before=timedelta(hours=1), expires=expires)
    (row,) = house.rows("SELECT created_at, not_before, expires_at FROM jobs")
    assert (row["not_before"] - row["created_at"], row["expires_at"]) == (timedelta(hours=1), expires)
    part = part_of(house, job)
    assert (part["published_at"], part["run_at"]) == (None, row["not_before"])
    with Redis.from_url(house.redis_url) as redis:
        assert redis.keys() == []


def test_the_longest_texts_that_are_taken_can_be_stored(
    database_url: str, redis_url: str, payload_url: str, picture: Picture
) -> None:
    """Of characters that take four bytes each, and of no pattern that would be compressed."""
    text = "".join(chr(0x1F300 + number * 7 % 1_000) for number in range(storable.IDEMPOTENCY_KEY))
    settings = ClientSettings(client_name=text[: storable.NAME])
    webhook = "https://example.org/" + secrets.token_urlsafe(storable.WEBHOOK_URL)
    with Client(database_url, redis_url, payload_url, settings=settings) as client:
        job = client.submit(
            ReadDocument(picture(), adapter="x" * storable.NAME),
            idempotency_key=text,
            metadata={
                f"{number}{text}"[: storable.METADATA]: text for number in range(storable.METADATA_ENTRIES)
            },
            webhook=webhook[: storable.WEBHOOK_URL],
        )
        assert job.cancel(reason=text[: storable.REASON])
        client.purge([job], reason=text[: storable.REASON])


def test_a_reason_that_is_too_long_is_refused_with_a_sentence(client: Client, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    with pytest.raises(InvalidOptionError, match="at most 200 characters"):
        job.cancel(reason="x" * 201)
    with pytest.raises(InvalidOptionError, match="at most 200 characters"):
        client.purge([job], reason="x" * 201)
    assert job.refresh().state is JobState.QUEUED


def test_a_picture_whose_header_claims_an_impossible_width_leaves_the_others_alone(
    client: Client, house: House, picture: Picture
) -> None:
    """Its size is not written down: ingest looks inside, and says what is wrong."""
    claiming = bytearray(picture(form="BMP"))
    claiming[18:22] = (2**31 - 1).to_bytes(4, "little")
    group = client.submit_many(
        [ReadDocument(picture()), ReadDocument(bytes(claiming)), ReadDocument(picture())]
    )
    assert [part_of(house, job)["stage"] for job in group] == ["read", "ingest", "read"]


FORKING = """
import os, sys
from pecia import Client, ConfigurationError, ReadDocument

client = Client()
if sys.argv[1] == "submitted":
    client.submit(ReadDocument(b"of the parent"))
else:
    list(client.jobs())
child = os.fork()
if not child:
    try:
        client.submit(ReadDocument(b"of the child"))
    except ConfigurationError as error:
        print(error, flush=True)  # os._exit writes out no buffer
    client.close()
    os._exit(0)
os.waitpid(child, 0)
print(len(list(client.jobs())), "jobs")
"""


@pytest.mark.parametrize(("parent", "told"), [("looked", ""), ("submitted", "after the fork")])
def test_a_forked_child_submits_over_connections_of_its_own_or_is_told_instead_of_hanging(
    stores: dict[str, str], parent: str, told: str
) -> None:
    ended = ran(sys.executable, "-c", FORKING, parent, env=stores)
    assert told in ended.stdout
    assert ended.stdout.endswith("1 jobs\n"), ended.stderr


@pytest.fixture
def fair_client(house: House) -> Client:
    return Client(**house.urls, settings=ClientSettings(fair_by="ward"))


def flow_of(job: Job[Any], house: House) -> UUID:
    """Return the flow of a job's part, whose message waits."""
    with Redis.from_url(house.redis_url) as redis:
        waiting = [json.loads(message) for message in redis.lrange("read.normal", 0, -1)]
    return next(UUID(one["flow"]) for one in waiting if one["part"] == str(house.part_of(job)))


def test_jobs_of_one_value_take_turns_as_one_after_relay_and_retry_too(
    fair_client: Client, picture: Picture, house: House
) -> None:
    async def relayed(database: AsyncEngine) -> None:
        bus = Bus(house.redis_url)
        await relay_due(database, bus, limit=10)
        await bus.close()

    with fair_client as client, Redis.from_url(house.redis_url) as redis:
        wards = ["north", "south", "north", None]
        task = ReadDocument(picture())
        jobs = [client.submit(task, metadata={"ward": ward} if ward else None) for ward in wards]
        before = [flow_of(job, house) for job in jobs]
        north, south, north_again, alone = before
        assert (north == north_again, alone == jobs[3].id) == (True, True)
        assert len({north, south, alone} | {job.id for job in jobs}) == len(jobs) + 2

        redis.flushall()
        house.query("UPDATE parts SET published_at = NULL")
        house.ask(relayed)
        assert [flow_of(job, house) for job in jobs] == before
        jobs[0].cancel()
        redis.flushall()
        jobs[0].retry()
        assert flow_of(jobs[0], house) == north


def test_a_flow_is_forgotten_after_its_jobs(fair_client: Client, picture: Picture, house: House) -> None:
    """Nothing made of a metadata's value outlives the work."""
    with fair_client as client:
        jobs = [
            client.submit(ReadDocument(picture()), metadata={"ward": ward}) for ward in ("north", "south")
        ]
        jobs[0].cancel()
        assert jobs[0].refresh().state is JobState.CANCELLED

        assert house.ask(forget_flows) == 1
        jobs[1].cancel()
        assert house.ask(forget_flows) == 1
