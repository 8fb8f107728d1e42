"""The auditor of a soak sees every kind of broken promise; one that never complains would prove nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import psycopg
import pytest
from redis import Redis
from tests.soak.auditor import Auditor, Finding, keys_left
from tests.soak.observer import Observer
from tests.soak.producer import Accepted
from tests.soak.receiver import Call
from tests.soak.workload import Order, Shape

from pecia import DocumentType, JobNotice, Lane, NoticeType, Progress
from pecia_schemas import JobState
from pecia_schemas.events import NoticeData

pytestmark = pytest.mark.gate

JOB, PART, DELIVERY = (UUID(int=number) for number in (1, 2, 3))
NOW = datetime.now(UTC)

AT_REST = f"""
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, total, done)
    VALUES ('{JOB}', 'document.read', 'normal', 'succeeded', '{{}}', '', '', 'order-0', 'soak', 1, 1);
    INSERT INTO parts (id, job_id, stage, ordinal, lane, state, cost, attempt)
    VALUES ('{PART}', '{JOB}', 'read', 0, 'normal', 'done', 1, 2);
    INSERT INTO results (part_id, job_id, ordinal, attempt, content) VALUES ('{PART}', '{JOB}', 0, 2, '{{}}');
    INSERT INTO job_events (job_id, part_id, state, actor) VALUES ('{JOB}', '{PART}', 'done', 'soak');
    INSERT INTO deliveries (id, job_id, type, url, body, state)
    VALUES ('{DELIVERY}', '{JOB}', 'job.succeeded', '', '{{}}', 'delivered');
"""  # noqa: S608  constants


@pytest.fixture
def auditor(database_url: str) -> Iterator[Auditor]:
    """An auditor before a fleet that has kept every promise to one job of one page."""
    change(database_url, AT_REST)
    observer = Observer(database_url)
    yield Auditor(observer)
    observer.close()


def change(database_url: str, statements: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(statements.encode())


def accepted(*, pages: int = 1, shape: Shape = Shape.PICTURE, job_id: UUID = JOB) -> Accepted:
    order = Order(
        number=0,
        shape=shape,
        pages=pages,
        lane=Lane.NORMAL,
        document_type=DocumentType.MIXED,
        cancelled=False,
    )
    return Accepted(order=order, job_id=job_id, at=NOW)


def call(*, delivery: UUID = DELIVERY, state: JobState = JobState.SUCCEEDED) -> Call:
    data = NoticeData(
        job_id=JOB,
        kind="document.read",
        state=state,
        lane=Lane.NORMAL,
        progress=Progress(total=1, done=1, failed=0, cancelled=0),
        created_at=NOW,
        finished_at=NOW,
    )
    return Call(str(delivery), JobNotice(type=NoticeType.of(state), timestamp=NOW, data=data))


def broken(findings: list[Finding]) -> set[str]:
    return {finding.promise for finding in findings if not finding.kept}


def test_nothing_is_held_against_a_fleet_that_kept_its_promises(auditor: Auditor) -> None:
    findings = [
        *auditor.judge_jobs([accepted()]),
        *auditor.judge_parts(),
        *auditor.judge_callbacks([call(), call()], forged=0),
    ]
    assert broken(findings) == set()
    assert len(findings) == 10


@pytest.mark.parametrize(
    ("damage", "promise"),
    [
        ("DELETE FROM results", "one result for each part that is done, of its last attempt"),
        ("UPDATE results SET attempt = 1", "one result for each part that is done, of its last attempt"),
        ("UPDATE parts SET state = 'failed'", "one result for each part that is done, of its last attempt"),
        ("DELETE FROM job_events", "every part was committed once"),
        (
            f"INSERT INTO job_events (job_id, part_id, state, actor) VALUES ('{JOB}', '{PART}', 'done', 'other')",  # noqa: S608
            "every part was committed once",
        ),
        ("UPDATE jobs SET done = 2", "every job's counters equal its parts"),
        ("UPDATE jobs SET total = 2", "every job's counters equal its parts"),
    ],
)
def test_it_sees_what_is_wrong_with_parts(
    auditor: Auditor, database_url: str, damage: str, promise: str
) -> None:
    change(database_url, damage)
    assert promise in broken(auditor.judge_parts())


def test_it_sees_a_lost_job(auditor: Auditor) -> None:
    assert "every accepted job is there" in broken(auditor.judge_jobs([accepted(job_id=UUID(int=9))]))


def test_it_sees_a_job_that_nobody_was_told_of(auditor: Auditor) -> None:
    assert broken(auditor.judge_jobs([])) == {"no job is there twice, or unknown to its producer"}


def test_it_sees_a_job_that_is_not_over(auditor: Auditor, database_url: str) -> None:
    change(database_url, "UPDATE jobs SET state = 'running'")
    assert "every job is over" in broken(auditor.judge_jobs([accepted()]))


@pytest.mark.parametrize(
    ("damage", "one"),
    [
        ("UPDATE jobs SET state = 'failed'", accepted()),
        ("UPDATE jobs SET state = 'cancelled'", accepted()),
        ("", accepted(pages=2)),
        ("", accepted(shape=Shape.DAMAGED)),
    ],
    ids=["failed", "cancelled by nobody", "short of a page", "read though damaged"],
)
def test_it_sees_an_end_that_a_document_does_not_deserve(
    auditor: Auditor, database_url: str, damage: str, one: Accepted
) -> None:
    change(database_url, damage)
    assert broken(auditor.judge_jobs([one])) == {"every job ended as its document deserves"}


@pytest.mark.parametrize(
    "calls",
    [[], [call(delivery=UUID(int=8))], [call(), call(delivery=UUID(int=8))], [call(state=JobState.FAILED)]],
    ids=["none", "another id", "two ids", "another end"],
)
def test_it_sees_a_callback_that_did_not_come_as_promised(auditor: Auditor, calls: list[Call]) -> None:
    assert broken(auditor.judge_callbacks(calls, forged=0)) == {
        "every callback came, with the truth and under one id"
    }


@pytest.mark.parametrize("damage", ["UPDATE deliveries SET state = 'dead'", "DELETE FROM deliveries"])
def test_it_sees_a_callback_that_was_given_up(auditor: Auditor, database_url: str, damage: str) -> None:
    change(database_url, damage)
    assert "every job has one callback, and it was delivered" in broken(
        auditor.judge_callbacks([call()], forged=0)
    )


def test_it_sees_a_forged_call(auditor: Auditor) -> None:
    assert broken(auditor.judge_callbacks([call()], forged=1)) == {"every call was signed"}


def test_it_sees_any_key_in_redis_but_celerys_own(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.sadd("_kombu.binding.celery.pidbox", "worker")
        assert keys_left(redis) == []
        redis.set("anything:else", "left")
        assert keys_left(redis) == ["anything:else"]
