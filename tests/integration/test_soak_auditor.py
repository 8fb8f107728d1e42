"""The auditor of a soak sees every kind of broken promise; one that never complains would prove nothing."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis import Redis

from pecia import DocumentType, JobNotice, Lane, NoticeType, Progress
from pecia_schemas.events import NoticeData
from pecia_schemas.states import JobState
from tests.soak.auditor import Auditor, Finding, judge_logs, keys_left
from tests.soak.observer import Observer
from tests.soak.producer import Accepted, Order, Shape
from tests.soak.receiver import Call

pytestmark = pytest.mark.gate

JOB, PART, DELIVERY = (UUID(int=number) for number in (1, 2, 3))
NOW = datetime.now(UTC)

AT_REST = f"""
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, total, done)
    VALUES ('{JOB}', 'document.read', 'normal', 'succeeded', '{{}}', '', '', 'order-0', 'soak', 1, 1);
    INSERT INTO parts (id, job_id, stage, ordinal, lane, state, cost, attempt, deaths)
    VALUES ('{PART}', '{JOB}', 'read', 0, 'normal', 'done', 1, 2, 1);
    INSERT INTO results (part_id, job_id, ordinal, attempt, content) VALUES ('{PART}', '{JOB}', 0, 2, '{{}}');
    INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason) VALUES
        ('{JOB}', '{PART}', 'running', 'struck', 1, NULL), ('{JOB}', '{PART}', 'queued', 'upkeep', 1, 'worker_lost'),
        ('{JOB}', '{PART}', 'running', 'other', 2, NULL), ('{JOB}', '{PART}', 'done', 'other', 2, NULL);
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


NO_RESULT = "one result for each part that is done, of its last attempt"
NO_COMMIT = "every part was committed once"
NO_COUNT = "every job's counters equal its parts"
NO_END = "every job ended as its document deserves"
NO_CALLBACK = "every callback came, with the truth and under one id"
NO_DELIVERY = "every job has one callback, and it was delivered"
READ_AGAIN = "nothing finished was begun again"
BURIED = "no worker that lived was taken for dead"


def told(state: str, *, attempt: int = 2, reason: str = "NULL") -> str:
    """Return what adds an event of the part."""
    return (
        "INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)"  # noqa: S608
        f" VALUES ('{JOB}', '{PART}', '{state}', 'other', {attempt}, {reason})"
    )


def judged(
    auditor: Auditor,
    *jobs: Accepted,
    calls: tuple[Call, ...] = (call(),),
    forged: int = 0,
    struck: tuple[str, ...] = ("struck", "another"),
) -> list[Finding]:
    return [
        *auditor.judge_jobs(jobs),
        *auditor.judge_parts(),
        *auditor.judge_deaths(struck),
        *auditor.judge_callbacks(calls, forged=forged),
    ]


def test_nothing_is_held_against_a_fleet_that_kept_its_promises(auditor: Auditor) -> None:
    findings = judged(auditor, accepted(), calls=(call(), call()))
    assert [one for one in findings if not one.kept] == []
    assert len(findings) == 13


@pytest.mark.parametrize(
    ("damage", "promise"),
    [
        ("DELETE FROM results", NO_RESULT),
        ("UPDATE results SET attempt = 1", NO_RESULT),
        ("UPDATE parts SET state = 'failed'", NO_RESULT),
        ("DELETE FROM job_events", NO_COMMIT),
        (told("done"), NO_COMMIT),
        (told("running", attempt=3), READ_AGAIN),
        (told("queued"), READ_AGAIN),
        (told("queued", reason="'worker_lost'"), BURIED),
        (told("queued", reason="'engine_lost'"), BURIED),
        (told("failed", reason="'poisoned'"), BURIED),
        ("UPDATE parts SET deaths = 2", "no death was counted that was none"),
        ("UPDATE jobs SET done = 2", NO_COUNT),
        ("UPDATE jobs SET total = 2", NO_COUNT),
        ("UPDATE jobs SET state = 'running'", "every job is over"),
        ("UPDATE jobs SET state = 'failed'", NO_END),
        ("UPDATE jobs SET state = 'cancelled'", NO_END),
        ("UPDATE deliveries SET state = 'dead'", NO_DELIVERY),
        ("DELETE FROM deliveries", NO_DELIVERY),
    ],
)
def test_it_sees_what_rows_are_wrong(auditor: Auditor, database_url: str, damage: str, promise: str) -> None:
    change(database_url, damage)
    assert promise in {one.promise for one in judged(auditor, accepted()) if not one.kept}


@pytest.mark.parametrize(
    ("jobs", "how", "promise"),
    [
        ([], {}, "no job is there twice, or unknown to its producer"),
        ([accepted(), accepted(job_id=UUID(int=9))], {}, "every accepted job is there"),
        ([accepted(pages=2)], {}, NO_END),
        ([accepted(shape=Shape.DAMAGED)], {}, NO_END),
        ([accepted()], {"calls": ()}, NO_CALLBACK),
        ([accepted()], {"calls": (call(delivery=UUID(int=8)),)}, NO_CALLBACK),
        ([accepted()], {"calls": (call(), call(delivery=UUID(int=8)))}, NO_CALLBACK),
        ([accepted()], {"calls": (call(state=JobState.FAILED),)}, NO_CALLBACK),
        ([accepted()], {"forged": 1}, "every call was signed"),
        ([accepted()], {"struck": ()}, BURIED),
    ],
)
def test_it_sees_what_producers_and_receivers_know_otherwise(
    auditor: Auditor, jobs: list[Accepted], how: dict[str, Any], promise: str
) -> None:
    assert {one.promise for one in judged(auditor, *jobs, **how) if not one.kept} == {promise}


@pytest.mark.parametrize("line", ["part 1 thrown out: KeyError", "[error] thrown_out  error=KeyError"])
def test_it_sees_what_a_worker_threw_out(tmp_path: Path, line: str) -> None:
    log = tmp_path / "engine-1.log"
    log.write_text("[info] engine-1 ready.\n")
    assert judge_logs(tmp_path)[0].kept
    log.write_text(f"[info] engine-1 ready.\n{line}\n")
    assert judge_logs(tmp_path)[0].broken_by == (line,)


def test_it_sees_any_key_in_redis_but_celerys_own_and_the_last_claims(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.sadd("_kombu.binding.celery.pidbox", "worker")
        redis.hset("pecia:claimed:worker", "number", "7")
        assert keys_left(redis) == []
        redis.set("anything:else", "left")
        assert keys_left(redis) == ["anything:else"]
