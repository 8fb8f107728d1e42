"""What holds of batches where they are stored: indexes and buckets."""

import json
from typing import Any

import psycopg
import pytest

from pecia import Client, ReadDocument, Submission
from pecia.records import Listing
from pecia.store import conditions, for_driver, parameters, where
from tests.shared.house import House

LABEL = "Hartwigsen.pdf"
PDF = b"%PDF-1.7"


def submitted(client: Client, batch: str | None = None) -> Any:
    return client.submit_many([Submission(ReadDocument(PDF), label=LABEL)], batch=batch)


def test_the_jobs_of_a_batch_are_found_by_an_index(house: House, client: Client) -> None:
    group = submitted(client, "week")
    with psycopg.connect(house.database_url, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO jobs (id, kind, lane, task, task_digest, client, batch)
               SELECT gen_random_uuid(), 'document.read', 'bulk', '{}', '', 'test', gen_random_uuid()
               FROM generate_series(1, 20000)"""
        )
        connection.execute("VACUUM ANALYZE jobs")
        wanted = conditions(Listing(batch=group.batch), None)
        for query in (
            "SELECT id FROM jobs WHERE {} ORDER BY id DESC LIMIT 100",
            "SELECT count(*) FROM jobs WHERE {}",
        ):
            asked = for_driver("EXPLAIN " + query.format(where(wanted)))
            plan = "\n".join(line for (line,) in connection.execute(asked.encode(), parameters(wanted)))
            assert "jobs_batch_idx" in plan
            assert "Seq Scan" not in plan


@pytest.mark.gate
def test_an_export_goes_below_a_prefix_of_a_bucket(
    client: Client, scribe: Any, s3: Any, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PECIA_SOURCE_OPTIONS", json.dumps(s3_options))
    (job,) = submitted(client, "week")
    scribe.cut(job.id, 1)
    scribe.read(job.id, 0)
    to = "s3://archive/exports/week"
    assert [client.export(to, batch="week", format="markdown").written for _ in range(2)] == [1, 0]
    found = [one["Key"] for one in s3.list_objects_v2(Bucket="archive", Prefix="exports/week/")["Contents"]]
    assert found == ["exports/week/Hartwigsen.md", "exports/week/manifest/000001.jsonl"]
