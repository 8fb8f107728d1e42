"""Another server becomes the master under load: nothing is lost, nothing stays behind, and the logs stay short."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pecia import DatabaseUnavailableError, ReadDocument
from pecia.job import JobGroup
from pecia_schemas.results import Document
from pecia_schemas.states import JobState
from pecia_workers.local.servers import start_postgres
from tests.shared.failover import Standby, redis_pair
from tests.shared.fixture_types import Draw, Make, RunFleet
from tests.shared.limits import WAIT_S, eventually
from tests.soak.surroundings import Proxy

pytestmark = pytest.mark.gate

PAGES = 40
MOST_LINES = 25
"""Warnings and errors in the log of one process."""


def submit(fleet: Any, drawn: Draw, **options: Any) -> JobGroup[Document]:
    group: JobGroup[Document] = fleet.client.submit_many(
        [ReadDocument(drawn(f"page {number}")) for number in range(PAGES)], **options
    )
    return group


def await_some(jobs: JobGroup[Document]) -> None:
    eventually(lambda: sum(job.refresh().done for job in jobs) >= PAGES // 4, what="some pages")


def expect_all_read_once(fleet: Any, jobs: JobGroup[Document]) -> None:
    jobs.wait(timeout=WAIT_S)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    rows = fleet.query(
        "SELECT count(*), count(r.part_id), max(p.deaths) FROM parts p LEFT JOIN results r ON r.part_id = p.id"
        " WHERE p.job_id = ANY(%s) AND p.stage = 'read'",
        [job.id for job in jobs],
    )
    assert rows == [(PAGES, PAGES, 0)]


def expect_few_lines(fleet: Any) -> None:
    for log in (fleet.fleet.home.path / "logs").glob("*.log"):
        text = log.read_text()
        assert "too often" not in text
        alarms = re.findall(r"\[(?:warning|error|critical) *\].*", text)
        assert len(alarms) <= MOST_LINES, (log.name, alarms)


def test_another_redis_with_the_data_without_it_and_the_first_one_again(
    short_path: Path, run_fleet: RunFleet, drawn: Draw
) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_pair(short_path))
        settings = {"engine": "simulated", "decode_processes": 1, "redis_url": SecretStr(redis.url)}
        fleet = stack.enter_context(run_fleet("redis-failover", **settings))

        def fail_over_under_load() -> None:
            jobs = submit(fleet, drawn)
            await_some(jobs)
            redis.fail_over()
            expect_all_read_once(fleet, jobs)
            eventually(lambda: not redis.left_behind(), what="no connection to the former master")

        eventually(redis.follow, what="a replica")
        fail_over_under_load()
        redis.empty()
        fail_over_under_load()
        eventually(redis.follow, what="a replica")
        fail_over_under_load()
        expect_few_lines(fleet)


def test_a_standby_of_postgres_is_read_only_until_it_is_the_primary(
    short_path: Path, ready_cluster: Make, run_fleet: RunFleet, drawn: Draw
) -> None:
    with ExitStack() as stack:
        ready_cluster(short_path / "primary")
        primary = start_postgres(short_path / "primary", durable=False, log=short_path / "primary.log")
        stack.callback(primary.stop)
        standby = stack.enter_context(Standby(primary, short_path / "standby"))
        proxy = stack.enter_context(Proxy(primary.sockets / ".s.PGSQL.5432"))
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/pecia?sslmode=disable&gssencmode=disable"
        settings = {"engine": "simulated", "decode_processes": 1, "database_url": SecretStr(url)}
        fleet = stack.enter_context(run_fleet("postgres-failover", **settings))
        jobs = submit(fleet, drawn)
        await_some(jobs)
        proxy.redirect(standby.socket)
        primary.kill()
        with pytest.raises(DatabaseUnavailableError) as refused:
            fleet.client.submit(ReadDocument(drawn("too early")))
        assert refused.value.retryable
        assert "read-only" in str(refused.value)
        standby.promote()
        expect_all_read_once(fleet, jobs)
        expect_all_read_once(fleet, submit(fleet, drawn))
        expect_few_lines(fleet)
