"""compose/ without Docker: every service that this machine has a server for, a document, and what watches over it."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pecia_workers.media.samples import write_exhibits
from tests.shared.collector import Collector, collecting
from tests.shared.compose_stack import COMPOSE, fleet_services
from tests.shared.fixture_types import Draw
from tests.shared.limits import eventually
from tests.shared.running_stack import (
    IMAGES,
    WORKERS,
    RunningStack,
    start_postgres_of,
    start_prometheus_of,
    start_redis_of,
)
from tests.shared.secured_stores import snippet

pytestmark = pytest.mark.gate

WORD = "Quillfeather"

LONG_RUNNING = (*WORKERS, "flower", "gateway")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def up(session_directory: Path, collector: Collector) -> Iterator[RunningStack]:
    """The stack after `docker compose up --wait`."""
    running = RunningStack.prepare(session_directory / "compose", collector)
    ours = fleet_services({"services": running.services})
    assert ours.keys() == {*LONG_RUNNING, "migrate", "client"}, "a service that is not started here"

    def healthy(name: str) -> None:
        eventually(lambda: running.is_healthy(name), interval=2, what=f"The health of {name}")

    with ExitStack() as ending:
        ending.callback(running.end)
        start_postgres_of(running)
        start_redis_of(running)
        healthy("postgres")
        healthy("redis")
        running.start("migrate")
        migrate = running.processes["migrate"]
        eventually(lambda: not migrate.alive, what="The end of the migrations")
        assert migrate.popen.wait() == 0, running.log("migrate").read_text()
        for name in LONG_RUNNING:
            running.start(name)
        for name in LONG_RUNNING:
            healthy(name)
        yield running


def redis_admits(running: RunningStack, user: str, password: str) -> bool:
    once = Retry(NoBackoff(), 0)
    with Redis(port=running.ports["redis"], username=user, password=password, retry=once) as client:
        try:
            return bool(client.ping())
        except RedisError:
            return False


def test_every_worker_comes_to_take_work(up: RunningStack) -> None:
    def is_ready(name: str) -> bool:
        return httpx2.get(f"http://127.0.0.1:{up.ports[name]}/readyz").status_code == 200

    for name in WORKERS:
        eventually(partial(is_ready, name), interval=0.2, what=f"Readiness of {name}")


def test_doctor_finds_everybody_on_duty(up: RunningStack) -> None:
    assert "ok" in up.pecia("upkeep", "doctor")  # which fails where somebody is missing


def test_a_document_goes_through_and_is_seen(up: RunningStack, drawn: Draw) -> None:
    assert WORD in up.pecia("client", "read", "-", "--wait", given=drawn(WORD))

    flower = f"http://127.0.0.1:{up.ports['flower']}"
    assert httpx2.get(f"{flower}/tasks").status_code == 401
    user = ("pecia", up.secrets["PECIA_FLOWER_PASSWORD"])

    def tasks() -> set[str]:
        return {task["name"] for task in httpx2.get(f"{flower}/api/tasks", auth=user).json().values()}

    eventually(lambda: "pecia.read" in tasks(), what="The page's task in Flower")
    page = f"http://127.0.0.1:{up.ports['engine']}/metrics"
    read = re.compile(r"^pecia_pages_read_total\{.*\} 1\.0$", re.MULTILINE)
    eventually(lambda: read.search(httpx2.get(page).text), what="The page among those read")


@pytest.mark.skipif(not IMAGES, reason="`make images` does it")
def test_the_documents_of_the_demo_are_read(up: RunningStack, tmp_path: Path) -> None:
    for exhibit in write_exhibits(tmp_path):
        if exhibit.text is not None:
            printed = up.pecia("client", "read", "-", "--wait", "--json", given=exhibit.path.read_bytes())
            read = "\f".join(page["text"] for page in json.loads(printed)["pages"])
            assert exhibit.accuracy(read) >= exhibit.least, exhibit.title


def test_every_process_of_a_job_tells_the_collector(collector: Collector) -> None:
    def services() -> set[str]:
        jobs = {span.trace for span in collector.named("submit")}
        return {span.service for span in collector.spans if span.trace in jobs}

    eventually(lambda: {"pecia-client", "pecia-engine"} <= services(), what="The document's trace")


def test_what_is_handed_over_while_the_engine_is_down_is_read_when_it_is_up(
    up: RunningStack, drawn: Draw
) -> None:
    up.processes["engine"].kill()
    told = up.pecia("client", "read", "-", given=drawn("Marrowby"))
    (job,) = re.findall(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", told)
    assert "queued" in up.pecia("client", "status", job)
    up.start("engine")
    eventually(lambda: "succeeded" in up.pecia("client", "status", job), interval=3, what="The job's end")


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_reaches_every_worker_and_has_the_alerts(up: RunningStack) -> None:
    start_prometheus_of(up)
    eventually(lambda: up.is_healthy("prometheus"), interval=0.5, what="The health of Prometheus")
    api = f"http://127.0.0.1:{up.ports['prometheus']}/api/v1"

    def healths() -> list[str]:
        targets = httpx2.get(f"{api}/targets").json()["data"]["activeTargets"]
        return [one["health"] for one in targets]

    eventually(lambda: healths() == ["up"] * len(WORKERS), interval=0.5, what="What Prometheus gets")
    groups = httpx2.get(f"{api}/rules").json()["data"]["groups"]
    rules = [rule["name"] for group in groups for rule in group["rules"]]
    told = re.findall(r"alert: (\w+)", (COMPOSE / "prometheus" / "alerts.yml").read_text())
    assert sorted(rules) == sorted(told)


def test_redis_and_postgres_let_in_who_has_the_password(up: RunningStack) -> None:
    assert redis_admits(up, "client", up.secrets["REDIS_CLIENT_PASSWORD"])
    assert not redis_admits(up, "client", "wrong")
    assert not redis_admits(up, "default", "")
    known = up.environment("upkeep")["PECIA_DATABASE_URL"]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(known.replace(up.secrets["FLEET_DATABASE_PASSWORD"], "wrong"))


def test_redis_has_the_accounts_of_the_security_page_and_one_for_its_health() -> None:
    script = (COMPOSE / "redis" / "start.sh").read_text()
    told = [re.sub(r">\S+", ">", line) for line in script.splitlines() if line.startswith("user ")]
    page = [re.sub(r">\S+", ">", line) for line in snippet("text").splitlines()]
    assert [line for line in told if line not in page] == [
        "user health on nopass resetchannels resetkeys -@all +ping"
    ]
    assert set(page) < set(told)


def test_redis_keeps_what_it_is_told(up: RunningStack) -> None:
    password = up.secrets["REDIS_FLEET_PASSWORD"]
    with Redis(port=up.ports["redis"], username="fleet", password=password) as client:
        told: Any = client.info()
    assert (told["aof_enabled"], told["maxmemory_policy"]) == (1, "noeviction")
    assert told["maxmemory"] == 256 * 2**20


def test_postgres_writes_no_row_into_its_log(up: RunningStack) -> None:
    with psycopg.connect(up.environment("migrate")["PECIA_DATABASE_URL"], autocommit=True) as owner:
        owner.execute("CREATE TABLE written (word text UNIQUE)")
        owner.execute("INSERT INTO written VALUES (%s)", [WORD])
        with pytest.raises(psycopg.errors.UniqueViolation, match=WORD):
            owner.execute("INSERT INTO written VALUES (%s)", [WORD])
    log = up.log("postgres").read_text()
    assert "starting PostgreSQL" in log
    assert WORD not in log


def test_tables_that_come_later_are_the_fleets_too(up: RunningStack) -> None:
    owner = up.environment("migrate")["PECIA_DATABASE_URL"]
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE later (n int)")
    with psycopg.connect(up.environment("upkeep")["PECIA_DATABASE_URL"], autocommit=True) as fleet:
        fleet.execute("INSERT INTO later VALUES (1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            fleet.execute("DROP TABLE later")


def test_no_log_tells_a_secret_or_a_word_that_was_read(up: RunningStack) -> None:
    logs = {path.stem: path.read_text() for path in up.place.glob("*.log")}
    assert logs.keys() >= {*LONG_RUNNING, "postgres", "redis", "migrate"}
    unsaid = [*up.secrets.values(), WORD]
    assert [name for name, log in logs.items() if any(word in log for word in unsaid)] == []


@pytest.mark.skipif(bool(IMAGES), reason="buildah kills its process where Docker passes SIGTERM on")
def test_every_process_ends_by_itself(up: RunningStack) -> None:
    ending = {name: up.processes.pop(name) for name in LONG_RUNNING}
    for process in ending.values():
        process.ask_to_stop()
    eventually(lambda: not any(process.alive for process in ending.values()), what="The end of all processes")
    codes = {name: process.popen.wait() for name, process in ending.items()}
    assert codes == dict.fromkeys(LONG_RUNNING, 0)
