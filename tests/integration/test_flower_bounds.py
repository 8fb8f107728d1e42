"""`pecia flower` as a process of its own: where it listens, where it is found, how much it keeps."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import httpx2
import pytest
from pydantic import SecretStr

from fixture_types import Eventually
from limits import WAIT_S
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import FleetApp

pytestmark = pytest.mark.gate

KEPT = 3


@pytest.fixture
def flower(redis_url: str, eventually: Eventually) -> Iterator[httpx2.Client]:
    """A program that knows the password of a Flower that may keep few parts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "PECIA_REDIS_URL": redis_url,
        "PECIA_FLOWER_PASSWORD": "known",
        "PECIA_FLOWER_PORT": str(port),
        "PECIA_FLOWER_MAX_TASKS": str(KEPT),
        "PECIA_FLOWER_URL_PREFIX": "/fleet/",
    }
    with (
        subprocess.Popen([sys.executable, "-m", "pecia_workers", "flower"], env=os.environ | own) as process,
        httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", auth=("pecia", "known"), timeout=WAIT_S
        ) as program,
    ):
        try:
            eventually(lambda: _listens("127.0.0.1", port))
            yield program
        finally:
            process.terminate()


def _listens(address: str, port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((address, port)) == 0


def test_no_more_parts_are_kept_than_the_settings_say_and_those_are_the_latest(
    flower: httpx2.Client, redis_url: str, eventually: Eventually
) -> None:
    parts = [str(uuid4()) for _ in range(2 * KEPT)]
    with closing(FleetApp(WorkerSettings(redis_url=SecretStr(redis_url)))) as app:
        app.finalize()
        with app.connection_for_write() as connection, app.events.Dispatcher(connection) as worker:

            def latest() -> list[str]:
                for part in parts:  # what was said before Flower listened is lost
                    worker.send("task-received", uuid=part, name="pecia.read", args="()", kwargs="{}")
                return list(flower.get("/fleet/api/tasks").json())

            eventually(lambda: set(latest()) == set(parts[-KEPT:]))


def test_flower_listens_on_loopback_alone_unless_it_is_told_to(flower: httpx2.Client) -> None:
    port = flower.base_url.port
    assert port
    assert not _listens("127.0.0.2", port)


@pytest.mark.parametrize("path", ["/fleet", "/fleet/"])
def test_flower_is_found_below_its_prefix_with_or_without_a_slash(flower: httpx2.Client, path: str) -> None:
    answer = flower.get(path, follow_redirects=True)
    assert answer.status_code == 200
    assert "Flower" in answer.text
