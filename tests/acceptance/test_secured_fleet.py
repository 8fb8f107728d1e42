"""A whole fleet on locked servers: it works with the accounts of docs/security.md, and tells nobody its secrets."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from PIL import Image
from pydantic import SecretStr

from pecia import Client, ReadDocument
from pecia_schemas.states import Lane
from pecia_workers.local.servers import EmbeddedPostgres, start_redis
from tests.shared.fixture_types import RunFleet
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S, eventually
from tests.shared.pictures import encoded
from tests.shared.ready_cluster import TEMPLATE
from tests.shared.secured_stores import PASSWORDS, SecuredStores, secured

pytestmark = pytest.mark.gate

WEBHOOK = "whsec_" + "SHVtcHR5RHVtcHR5U2F0T25BV2FsbEhhZEFHcmVhdEZhbGw="
API_KEY = "Snickersnee"
S3_KEY = "Vorpalblade"
SECRETS = (*PASSWORDS.values(), WEBHOOK.removeprefix("whsec_"), API_KEY, S3_KEY)
PAGES = (
    *("/", "/workers", "/tasks", "/broker", "/metrics"),
    *("/api/workers?refresh=1", "/api/tasks", "/api/queues/length"),
)


@pytest.fixture(scope="module")
def stores(session_directory: Path, session_postgres: EmbeddedPostgres) -> Iterator[SecuredStores]:
    place = session_directory / "locked"
    (place / "socket").mkdir(parents=True)
    database_url = session_postgres.url_of("locked")
    with psycopg.connect(session_postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE locked TEMPLATE {TEMPLATE}".encode())
    redis = start_redis(place / "redis", socket_dir=place / "socket", durable=False)
    try:
        with secured(place, redis, session_postgres, database_url) as stores:
            yield stores
    finally:
        redis.kill()


@pytest.fixture(scope="module")
def locked(stores: SecuredStores, run_fleet: RunFleet) -> Iterator[Any]:
    """A fleet on locked servers that says all it has to say."""
    settings = {
        "database_url": SecretStr(stores.database_url()),
        "redis_url": SecretStr(stores.redis_url()),
        "engine": "simulated:instant",
        "engine_api_key": SecretStr(API_KEY),
        "webhook_secret": SecretStr(WEBHOOK),
        "payload_options": {"secret_access_key": S3_KEY},
        "log_level": "debug",
        "flower_port": free_port(),
    }
    with run_fleet("locked-fleet", **settings) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def pages(locked: Any, stores: SecuredStores) -> dict[str, str]:
    """What Flower shows once documents were read."""
    settings = locked.settings
    with Client(stores.database_url(), stores.redis_url("client"), settings.payload_url) as client:
        jobs = [client.submit(ReadDocument(_document(form))) for form in ("PNG", "PDF", "TIFF")]
        assert [job.wait(timeout=WAIT_S).state for job in jobs] == ["succeeded"] * 3
        cancelled = client.submit(ReadDocument(_document("PNG")), priority=Lane.BULK)
        cancelled.cancel()
    flower = locked.fleet.flower
    with httpx2.Client(base_url=flower.url, auth=(flower.user, flower.password), timeout=WAIT_S) as browser:
        workers = eventually(lambda: browser.get("/api/workers?refresh=1").json())
        shown = {path: _shown(browser, path) for path in PAGES}
        return shown | {worker: _shown(browser, f"/worker/{worker}") for worker in workers}


def _document(form: str) -> bytes:
    return encoded(Image.new("L", (80, 60), 128), form)


def _shown(browser: httpx2.Client, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200, path
    return answer.text


def test_redis_denies_nothing_and_flower_sees_the_lists(stores: SecuredStores, pages: dict[str, str]) -> None:
    assert len(pages) > len(PAGES)
    assert stores.denied == set()
    assert "read.normal" in pages["/api/queues/length"]


@pytest.mark.usefixtures("pages")
def test_strange_events_do_not_blind_flower(locked: Any, stores: SecuredStores) -> None:
    flower = locked.fleet.flower
    torn = (b"\x00\xff", b"[1]", b"{}", b"[" * 100_000, b'{"properties": 3}')
    strange = (*torn, _event([1]), _event({"type": 7}))
    with httpx2.Client(base_url=flower.url, auth=(flower.user, flower.password), timeout=WAIT_S) as browser:
        for event in strange:
            stores.admin.publish("/0.celeryev/worker.heartbeat", event)
        seen = set(browser.get("/api/tasks").json())
        with Client(stores.database_url(), stores.redis_url("client"), locked.settings.payload_url) as client:
            client.submit(ReadDocument(_document("BMP"))).wait(timeout=WAIT_S)

        eventually(lambda: set(browser.get("/api/tasks").json()) - seen)


def _event(body: Any) -> bytes:
    properties = {"body_encoding": "base64", "delivery_tag": "x", "delivery_info": {"exchange": "celeryev"}}
    encoded = base64.b64encode(json.dumps(body).encode()).decode()
    kind = {"content-type": "application/json", "content-encoding": "utf-8", "headers": {}}
    return json.dumps({"body": encoded, "properties": properties, **kind}).encode()


def test_no_page_of_flower_shows_a_secret(pages: dict[str, str]) -> None:
    assert [page for page, text in pages.items() if _told(text)] == []


@pytest.mark.usefixtures("pages")
def test_no_log_holds_a_secret(locked: Any) -> None:
    logs = {path.name: path.read_text(errors="replace") for path in locked.fleet.home.path.glob("logs/*")}
    assert len(logs) >= 5
    assert [name for name, text in logs.items() if _told(text)] == []


def test_no_command_line_holds_a_secret(locked: Any) -> None:
    lines = dict(_command_lines())
    assert str(locked.pid("engine")) in lines
    assert [line for line in lines.values() if _told(line.decode(errors="replace"))] == []


def _command_lines() -> Iterator[tuple[str, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.parent.name, path.read_bytes()


def test_no_verb_tells_a_secret_when_its_connections_fail(stores: SecuredStores, tmp_path: Path) -> None:
    environment = os.environ | _to_nowhere(stores, tmp_path)
    verbs = ("doctor", "migrate", "list", "worker webhooks")
    with ExitStack() as stack:
        for verb in verbs:
            log = stack.enter_context((tmp_path / verb).open("w"))
            command = [sys.executable, "-m", "pecia", *verb.split()]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)  # a worker would wait for its servers
        said = [tmp_path / verb for verb in verbs]
        eventually(lambda: all(path.stat().st_size for path in said), what="a word of each")

    assert [verb for verb in verbs if _told((tmp_path / verb).read_text())] == []


def _to_nowhere(stores: SecuredStores, payloads: Path) -> dict[str, str]:
    """The environment of a fleet whose servers are away."""
    addresses = {"PECIA_DATABASE_URL": stores.database_url(), "PECIA_REDIS_URL": stores.redis_url()}
    return {name: re.sub(r"localhost:\d+", "localhost:1", url) for name, url in addresses.items()} | {
        "PECIA_PAYLOAD_URL": str(payloads),
        "PECIA_PAYLOAD_OPTIONS": json.dumps({"secret_access_key": S3_KEY}),
        "PECIA_ENGINE_API_KEY": API_KEY,
        "PECIA_WEBHOOK_SECRET": WEBHOOK,
        "PECIA_LOG_LEVEL": "debug",
    }


def _told(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]
