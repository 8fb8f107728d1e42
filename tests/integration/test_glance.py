"""What `pecia up` shows of the jobs is what Postgres has of them."""

from __future__ import annotations

import psycopg
from sqlalchemy import create_engine

from pecia_schemas.database import sqlalchemy_url
from pecia_workers.ledger.glance import MOST, Glance, glance

_JOBS = """
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, finished_at)
    SELECT gen_random_uuid(), 'document.read', 'normal', %s, '{}', '', '', gen_random_uuid(), 'test',
           now() - CAST(%s AS interval)
    FROM generate_series(1, %s)
"""
_PARTS = """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, state, cost, engine, finished_at)
    SELECT gen_random_uuid(), id, 'read', 0, 'normal', 'done', 1, 'cpu', finished_at FROM jobs WHERE state = 'succeeded'
"""


def look(database_url: str) -> Glance:
    engine = create_engine(sqlalchemy_url(database_url))
    try:
        with engine.connect() as connection:
            return glance(connection)
    finally:
        engine.dispose()


def test_open_jobs_are_counted_and_what_ended_in_the_last_minute(database_url: str) -> None:
    ended = [("succeeded", 3), ("partial", 1), ("failed", 1), ("cancelled", 1)]
    with psycopg.connect(database_url) as connection:
        for state, number in [("queued", 2), ("running", 1)]:
            connection.execute(_JOBS, [state, None, number])
        for state, number in ended:
            connection.execute(_JOBS, [state, "0 s", number])
            connection.execute(_JOBS, [state, "61 s", number])
        connection.execute(_PARTS)

    assert look(database_url) == Glance(queued=2, running=1, done=3, failed=2, parts=3)


def test_no_more_open_jobs_are_counted_than_a_glance_takes(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(_JOBS, ["queued", None, MOST + 1])

    assert look(database_url).queued == MOST
