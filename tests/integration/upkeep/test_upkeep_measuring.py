"""What upkeep shows of the fleet as a whole is what the stores hold."""

from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from pecia_schemas.messages import WINDOW
from pecia_workers.observability.metrics import FLEET
from pecia_workers.upkeep.loop import Measurement, relay
from tests.shared.fixture_types import Make
from tests.shared.limits import eventually

pytestmark = pytest.mark.gate


def shown(name: str, **labels: str) -> float | None:
    return FLEET.get_sample_value(name, labels)


def test_what_waits_and_for_how_long(tables: Any, run: Make, claim_all: Make) -> None:
    tables.add_job(parts=5)
    tables.query("UPDATE parts SET run_at = now() - interval '90 seconds' WHERE ordinal = 3")
    run(relay)
    claim_all(slots=2)
    tables.query("UPDATE parts SET state = 'running', attempt = 1, worker = 'one' WHERE ordinal < 2")

    run(Measurement(window=WINDOW))

    assert shown("pecia_queue_parts", stage="read", lane="normal") == 3
    assert shown("pecia_queue_parts", stage="read", lane="urgent") == 0
    assert shown("pecia_leased_parts") == 2
    assert shown("pecia_queue_oldest_seconds", lane="normal") == pytest.approx(90, abs=60)
    assert shown("pecia_queue_oldest_seconds", lane="bulk") == 0
    assert shown("pecia_unpublished_parts") == 0


def test_backlogs_are_measured_with_their_age_paused_receivers_and_workers_that_beat_are_counted(
    tables: Any, run: Make, redis: Redis
) -> None:
    tables.add_job(parts=3)
    tables.query("UPDATE parts SET run_at = now() - interval '1 minute'")
    tables.query(
        "INSERT INTO discarded_payloads (payload, discarded_at) VALUES ('a', now() - interval '1 hour'), ('b', NULL)"
    )
    redis.lpush("pecia:dead", "strange")
    tables.query(
        """INSERT INTO receivers (receiver, failures, paused_until)
           VALUES ('https://waited.for', 9, now()), ('https://forgotten', 9, now()), ('https://well', 1, NULL)"""
    )
    tables.query(
        """INSERT INTO deliveries (type, url, body)
           VALUES ('webhook.test', 'https://waited.for/hook', '{}'), ('webhook.test', 'https://well/hook', '{}')"""
    )
    tables.add_worker("alive")
    tables.add_worker("silent", silent=timedelta(minutes=5))
    tables.add_worker("gone", stopped=True)

    run(Measurement(window=WINDOW))

    assert shown("pecia_unpublished_parts") == 3
    assert shown("pecia_unpublished_oldest_seconds") == pytest.approx(60, abs=50)
    assert shown("pecia_documents_awaiting_removal") == 1
    assert shown("pecia_documents_awaiting_removal_oldest_seconds") == pytest.approx(3600, abs=60)
    assert shown("pecia_strange_messages") == 1
    assert shown("pecia_paused_receivers") == 1
    assert [shown("pecia_workers_on_duty", role=role) for role in ("engine", "ingest")] == [1, 0]


def test_parts_that_wait_for_room_in_a_list_are_not_behind(tables: Any, run: Make, redis: Redis) -> None:
    tables.add_job(parts=30)
    run(relay)
    tables.query(
        "UPDATE parts SET published_at = NULL, run_at = now() - interval '1 hour' WHERE ordinal < 20"
    )
    redis.ltrim("read.normal", 0, 9)

    run(Measurement(window=20))
    assert shown("pecia_queue_parts", stage="read", lane="normal") == 30
    assert shown("pecia_unpublished_parts") == 0

    run(Measurement(window=21))
    assert shown("pecia_unpublished_parts") == 20


def test_what_waits_for_its_time_is_not_old(tables: Any, run: Make) -> None:
    tables.add_job()
    tables.query("UPDATE parts SET run_at = now() + interval '1 hour'")
    run(Measurement(window=WINDOW))
    assert shown("pecia_queue_oldest_seconds", lane="normal") == 0


def test_it_does_not_look_at_every_round(tables: Any, run: Make) -> None:
    measurement = Measurement(window=WINDOW)
    run(measurement)
    tables.add_job(parts=2)
    run(measurement)
    assert shown("pecia_unpublished_parts") == 0


def test_an_upkeep_without_a_page_looks_for_nobody(settings_for: Make, keeping: Make, tables: Any) -> None:
    before = shown("pecia_measured_timestamp_seconds")
    job_id = tables.add_job()
    with keeping(settings_for()):
        eventually(lambda: tables.parts(job_id)[0]["published_at"])
    assert shown("pecia_measured_timestamp_seconds") == before
    with keeping(settings_for(metrics_port=9464)):
        eventually(lambda: shown("pecia_measured_timestamp_seconds") != before)
