"""What `pecia up` shows of the jobs is what Postgres has of them."""

from sqlalchemy.ext.asyncio import AsyncEngine

from house import House
from pecia_workers.ledger.standing import MOST_JOBS, Glance, glance

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


def look(house: House) -> Glance:
    async def ask(database: AsyncEngine) -> Glance:
        async with database.connect() as connection:
            return await connection.run_sync(glance)

    return house.ask(ask)


def test_open_jobs_are_counted_and_what_ended_in_the_last_minute(house: House) -> None:
    for state, number in [("queued", 2), ("running", 1)]:
        house.query(_JOBS, state, None, number)
    for state, number in [("succeeded", 3), ("partial", 1), ("failed", 1), ("cancelled", 1)]:
        house.query(_JOBS, state, "0 s", number)
        house.query(_JOBS, state, "61 s", number)
    house.query(_PARTS)
    assert look(house) == Glance(queued=2, running=1, done=3, failed=2, parts=3)


def test_no_more_open_jobs_are_counted_than_a_glance_takes(house: House) -> None:
    house.query(_JOBS, "queued", None, MOST_JOBS + 1)
    assert look(house).queued == MOST_JOBS
