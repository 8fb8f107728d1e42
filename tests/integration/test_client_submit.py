"""Submitting: what is written, what is published, what a repeated submit returns, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, cast

import psycopg
import pytest
from psycopg.rows import dict_row
from redis import Redis

import pecia_migrations
from pecia import (
    CaptionVideo,
    Client,
    ClientSettings,
    DatabaseUnavailableError,
    DocumentType,
    IdempotencyConflictError,
    InvalidOptionError,
    InvalidSourceError,
    Job,
    JobState,
    Lane,
    NoticeType,
    PayloadStoreUnavailableError,
    ReadDocument,
    Webhook,
)
from pecia_schemas import lengths
from pecia_schemas.cost import page_cost
from pecia_workers.local.postgres import EmbeddedPostgres
from pecia_workers.local.redis import EmbeddedRedis

Picture = Callable[..., bytes]


def rows(database_url: str, query: str, *parameters: Any) -> list[dict[str, Any]]:
    with psycopg.connect(database_url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()


def part_of(database_url: str, job: Job[Any]) -> dict[str, Any]:
    (part,) = rows(database_url, "SELECT * FROM parts WHERE job_id = %s", job.id)
    return part


def test_a_picture_goes_straight_to_its_lane_at_the_price_of_its_pixels(
    client: Client, database_url: str, redis_url: str, picture: Picture
) -> None:
    task = ReadDocument(picture(800, 600), document_type=DocumentType.CHART)
    job = client.submit(task, priority=Lane.URGENT)
    part = part_of(database_url, job)
    cost = page_cost(800, 600, DocumentType.CHART)
    assert (part["stage"], part["ordinal"], part["width"], part["height"]) == ("read", 0, 800, 600)
    assert (part["lane"], part["state"], part["cost"]) == ("urgent", "queued", cost)
    assert part["published_at"] is not None
    with Redis.from_url(redis_url) as redis:
        (message,) = redis.lrange("read.urgent", 0, -1)
        said = {"part": str(part["id"]), "lane": "urgent", "cost": cost, "flow": str(job.id)}
        assert json.loads(message) == said
    assert (job.state, job.progress.total, job.created, job.done) == (JobState.QUEUED, 1, True, False)


def test_the_first_event_names_the_client(database_url: str, redis_url: str, payload_url: str) -> None:
    with Client(
        database_url, redis_url, payload_url, settings=ClientSettings(client_name="ward-7")
    ) as client:
        job = client.submit(ReadDocument(b"%PDF-1.7"))
    (event,) = rows(database_url, "SELECT * FROM job_events")
    assert (event["job_id"], event["state"], event["actor"]) == (job.id, "queued", "client:ward-7")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_picture_on_its_side_is_priced_upright(
    client: Client, database_url: str, picture: Picture, form: str
) -> None:
    job = client.submit(ReadDocument(picture(200, 100, form=form, orientation=6)))
    part = part_of(database_url, job)
    assert (part["width"], part["height"]) == (100, 200)


def test_a_large_picture_is_measured_without_a_warning(
    client: Client, database_url: str, picture: Picture
) -> None:
    large = (10_000, 9_000)  # more than Pillow opens in silence
    part = part_of(database_url, client.submit(ReadDocument(picture(*large))))
    assert (part["stage"], part["width"], part["height"]) == ("read", *large)


@pytest.mark.parametrize(
    "content",
    [b"", b"%PDF-1.7 and so on", b"II*\x00 a TIFF", b"plain text", b"\x89PNG\r\n\x1a\n cut off"],
    ids=["empty", "pdf", "tiff", "unknown", "damaged"],
)
def test_what_the_header_does_not_tell_goes_to_ingest(
    client: Client, database_url: str, redis_url: str, content: bytes
) -> None:
    job = client.submit(ReadDocument(content))
    part = part_of(database_url, job)
    assert (part["stage"], part["cost"], part["width"]) == ("ingest", 1, None)
    assert job.progress.total is None
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("ingest.normal") == 1


def test_a_video_goes_to_ingest(client: Client, database_url: str, picture: Picture) -> None:
    job = client.submit(CaptionVideo(picture()))
    assert part_of(database_url, job)["stage"] == "ingest"
    assert job.kind == "video.caption"


def test_path_bytes_file_and_stream_are_the_same_document(
    client: Client, tmp_path: Path, payload_url: str, picture: Picture
) -> None:
    content = picture()
    path = tmp_path / "scan.png"
    path.write_bytes(content)
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    with path.open("rb") as file, os.fdopen(reader, "rb") as stream:
        sources: list[Any] = [path, str(path), content, io.BytesIO(content), file, stream]
        jobs = [client.submit(ReadDocument(source)) for source in sources]
    assert len({job.id for job in jobs}) == len(sources)
    assert {job.progress.total for job in jobs} == {1}
    name = hashlib.sha256(content).hexdigest()
    assert [path.name for path in Path(payload_url).rglob("*") if path.is_file()] == [name]


def test_a_file_object_is_sent_from_where_it_stands_and_stays_open(
    client: Client, database_url: str, picture: Picture
) -> None:
    content = picture()
    file = io.BytesIO(b"skipped" + content)
    file.seek(len(b"skipped"))
    client.submit(ReadDocument(file))
    (job,) = rows(database_url, "SELECT payload FROM jobs")
    assert job["payload"] == hashlib.sha256(content).hexdigest()
    assert not file.closed


def test_nothing_in_the_rows_tells_the_files_name(
    client: Client, database_url: str, tmp_path: Path, picture: Picture
) -> None:
    path = tmp_path / "miller-anna-1961.png"
    path.write_bytes(picture())
    client.submit(ReadDocument(path))
    told = rows(database_url, "SELECT jobs::text AS job, parts::text AS part FROM jobs, parts")
    assert "miller" not in str(told)


@pytest.mark.parametrize("name", ["missing.png", "."])
def test_an_unreadable_path_is_refused_before_anything_is_written(
    client: Client, database_url: str, payload_url: str, name: str
) -> None:
    with pytest.raises(InvalidSourceError, match="check the path") as refusal:
        client.submit(ReadDocument(Path(payload_url) / name))
    assert "missing" not in str(refusal.value)
    assert rows(database_url, "SELECT id FROM jobs") == []
    assert list(Path(payload_url).rglob("*")) == []


def test_a_file_object_in_text_mode_is_refused(client: Client) -> None:
    with pytest.raises(InvalidSourceError, match="rb"):
        client.submit(ReadDocument(cast("IO[bytes]", io.StringIO("text"))))


def test_a_repeated_key_returns_the_job_that_is_there(
    client: Client, database_url: str, redis_url: str, picture: Picture
) -> None:
    first = client.submit(ReadDocument(picture()), idempotency_key="ward-7/1")
    again = client.submit(ReadDocument(picture()), idempotency_key="ward-7/1")
    assert (again.id, first.created, again.created) == (first.id, True, False)
    assert len(rows(database_url, "SELECT id FROM parts")) == 1
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("read.normal") == 1


@pytest.mark.parametrize("change", ["payload", "option", "lane"])
def test_the_same_key_for_another_task_names_the_job_it_belongs_to(
    client: Client, picture: Picture, change: str
) -> None:
    first = client.submit(ReadDocument(picture()), idempotency_key="key")
    task = ReadDocument(
        picture(shade=9 if change == "payload" else 255), language="en" if change == "option" else None
    )
    lane = Lane.BULK if change == "lane" else Lane.NORMAL
    with pytest.raises(IdempotencyConflictError, match="use another key") as conflict:
        client.submit(task, priority=lane, idempotency_key="key")
    assert conflict.value.existing_job_id == first.id


def test_clients_that_submit_the_same_key_at_once_get_the_same_job(
    client: Client, database_url: str, picture: Picture
) -> None:
    jobs: list[Job[Any]] = []

    def submit() -> None:
        tasks = [ReadDocument(picture(shade=shade)) for shade in range(20)]
        jobs.extend(client.submit_many(tasks, idempotency_prefix="same"))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(jobs), sum(job.created for job in jobs)) == (80, 20)
    assert len(rows(database_url, "SELECT id FROM jobs")) == 20


def test_work_for_later_is_left_to_the_relay(
    client: Client, database_url: str, redis_url: str, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()), not_before=timedelta(hours=1), expires=timedelta(hours=2))
    part = part_of(database_url, job)
    (row,) = rows(database_url, "SELECT not_before, expires_at, now() AS now FROM jobs")
    assert part["published_at"] is None
    assert part["run_at"] == row["not_before"]
    assert row["not_before"] - row["now"] == pytest.approx(timedelta(hours=1), abs=timedelta(minutes=1))
    assert row["expires_at"] - row["not_before"] == pytest.approx(
        timedelta(hours=1), abs=timedelta(seconds=1)
    )
    with Redis.from_url(redis_url) as redis:
        assert redis.keys() == []


def test_a_moment_in_time_is_kept_to_the_microsecond(
    client: Client, database_url: str, picture: Picture
) -> None:
    moment = datetime.now(UTC) + timedelta(days=1)
    client.submit(ReadDocument(picture()), not_before=moment)
    assert rows(database_url, "SELECT not_before FROM jobs") == [{"not_before": moment}]


def test_webhook_and_metadata_are_stored_with_the_job(
    client: Client, database_url: str, picture: Picture
) -> None:
    webhook = Webhook.model_validate({"url": "https://example.org/hook", "events": [NoticeType.FAILED]})
    job = client.submit(ReadDocument(picture()), webhook=webhook, metadata={"ward": "7"})
    client.submit(ReadDocument(picture()), webhook="https://example.org/all")
    client.submit(ReadDocument(picture()))
    first, second, third = rows(database_url, "SELECT webhook, metadata FROM jobs ORDER BY id")
    assert first["webhook"] == {"url": "https://example.org/hook", "events": ["job.failed"]}
    assert first["metadata"] == dict(job.metadata) == {"ward": "7"}
    assert second["webhook"]["events"] == [kind for kind in NoticeType if kind.startswith("job.")]
    assert third["webhook"] is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metadata": {str(n): "" for n in range(65)}}, "at most 64 keys"),
        ({"metadata": {"key": "x" * 513}}, "at most 512 characters"),
        ({"metadata": {"ward": 7}}, "str()"),
        ({"metadata": {"ward": "\0"}}, "NUL"),
        ({"webhook": "not an address"}, "http or https"),
        ({"priority": "now"}, "urgent, normal, bulk"),
        ({"webhook": "https://example.org/" + "x" * 2_048}, "at most 2,048 characters"),
        ({"idempotency_key": ""}, "1 to 512"),
        ({"idempotency_key": "x" * 513}, "1 to 512"),
        ({"not_before": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001  the missing zone is the point
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_a_sentence(
    client: Client, database_url: str, picture: Picture, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        client.submit(ReadDocument(picture()), **options)
    assert sentence in str(refusal.value)
    assert rows(database_url, "SELECT id FROM jobs") == []


def test_the_longest_texts_that_are_taken_can_be_stored(
    database_url: str, redis_url: str, payload_url: str, picture: Picture
) -> None:
    """Of characters that take four bytes each, and of no pattern that would be compressed."""
    text = "".join(chr(0x1F300 + number * 7 % 1_000) for number in range(lengths.IDEMPOTENCY_KEY))
    settings = ClientSettings(client_name=text[: lengths.NAME])
    webhook = "https://example.org/" + secrets.token_urlsafe(lengths.WEBHOOK_URL)
    with Client(database_url, redis_url, payload_url, settings=settings) as client:
        job = client.submit(
            ReadDocument(picture(), adapter="x" * lengths.NAME),
            idempotency_key=text,
            metadata={
                f"{number}{text}"[: lengths.METADATA]: text for number in range(lengths.METADATA_ENTRIES)
            },
            webhook=webhook[: lengths.WEBHOOK_URL],
        )
        assert job.cancel(reason=text[: lengths.REASON])
        client.purge([job], reason=text[: lengths.REASON])


def test_a_reason_that_is_too_long_is_refused_with_a_sentence(client: Client, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    with pytest.raises(InvalidOptionError, match="at most 200 characters"):
        job.cancel(reason="x" * 201)
    with pytest.raises(InvalidOptionError, match="at most 200 characters"):
        client.purge([job], reason="x" * 201)
    assert job.refresh().state is JobState.QUEUED


def test_a_picture_whose_header_claims_an_impossible_width_leaves_the_others_alone(
    client: Client, database_url: str, picture: Picture
) -> None:
    """Its size is not written down: ingest looks inside, and says what is wrong."""
    claiming = bytearray(picture(form="BMP"))
    claiming[18:22] = (2**31 - 1).to_bytes(4, "little")

    group = client.submit_many(
        [ReadDocument(picture()), ReadDocument(bytes(claiming)), ReadDocument(picture())]
    )

    assert [part_of(database_url, job)["stage"] for job in group] == ["read", "ingest", "read"]


def test_with_redis_away_jobs_are_accepted_at_once_and_left_to_the_relay(
    database_url: str, payload_url: str, tmp_path: Path, picture: Picture
) -> None:
    with Client(database_url, f"unix://{tmp_path}/nothing.sock", payload_url) as client:
        began = time.monotonic()
        jobs = [client.submit(ReadDocument(picture(shade=shade))) for shade in range(5)]
        assert time.monotonic() - began < 2
    assert all(job.created for job in jobs)
    assert {row["published_at"] for row in rows(database_url, "SELECT published_at FROM parts")} == {None}


def test_a_client_finds_a_restarted_redis_by_itself(
    database_url: str, payload_url: str, redis_server: Callable[..., EmbeddedRedis], picture: Picture
) -> None:
    redis = redis_server()
    with Client(database_url, redis.url, payload_url) as client:
        client.submit(ReadDocument(picture()))
        redis.kill()
        redis_server(replaces=redis)
        job = client.submit(ReadDocument(picture(shade=1)))
    assert part_of(database_url, job)["published_at"] is not None


def test_a_client_survives_a_restart_of_postgres(
    postgres_server: Callable[..., EmbeddedPostgres], redis_url: str, payload_url: str, picture: Picture
) -> None:
    postgres = postgres_server(durable=True)
    pecia_migrations.upgrade(postgres.url)
    with Client(postgres.url, redis_url, payload_url) as client:
        job = client.submit(ReadDocument(picture()))
        postgres.stop()
        with pytest.raises(DatabaseUnavailableError, match="PECIA_DATABASE_URL"):
            client.submit(ReadDocument(picture()))
        postgres_server(replaces=postgres, durable=True)
        assert job.refresh().state is JobState.QUEUED


def test_a_payload_store_that_cannot_be_written_is_named(
    database_url: str, redis_url: str, tmp_path: Path, picture: Picture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with (
        Client(database_url, redis_url, str(blocked / "payloads")) as client,
        pytest.raises(PayloadStoreUnavailableError, match="PECIA_PAYLOAD_URL"),
    ):
        client.submit(ReadDocument(picture()))
    assert rows(database_url, "SELECT id FROM jobs") == []


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
        print(error)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
print(len(list(client.jobs())), "jobs")
"""


def run_forking(stores: dict[str, str], parent: str) -> str:
    command = [sys.executable, "-c", FORKING, parent]
    return subprocess.run(
        command, env=os.environ | stores, check=True, capture_output=True, text=True, timeout=20
    ).stdout


def test_a_forked_child_submits_over_connections_of_its_own(stores: dict[str, str]) -> None:
    assert run_forking(stores, "looked") == "1 jobs\n"


def test_a_child_forked_after_a_submit_is_told_instead_of_hanging(stores: dict[str, str]) -> None:
    told = run_forking(stores, "submitted")
    assert "after the fork" in told
    assert told.endswith("1 jobs\n")


def test_a_thousand_pictures_are_handed_over_in_under_five_seconds(
    client: Client, redis_url: str, picture: Picture
) -> None:
    contents = [picture(400, 300 + shade, shade=shade % 256) for shade in range(1000)]
    began = time.monotonic()
    group = client.submit_many(ReadDocument(content) for content in contents)
    took = time.monotonic() - began
    assert len(group) == 1000
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("read.normal") == 1000
    assert took < 5, f"it took {took:.1f} s"
