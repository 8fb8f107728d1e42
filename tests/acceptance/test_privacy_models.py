"""What a model is asked and what it writes is told nowhere: fields, captions, refusals, retries, a crash, a purge."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from chat_server import Behaviour, ChatServerDouble, Fault, serving
from limits import WAIT_S
from overhearing import celery_events, flower_pages, redis_keys, redis_traffic, told
from pecia import CaptionVideo, Client, ClientSettings, DocumentFate, Job, JobState, ReadDocument
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import FleetApp
from videos import video

pytestmark = pytest.mark.gate

WRITTEN = "Quillfeather"
FILLED = "Thistlewood"
ASKED = "Hartwigsen"
REFUSED = "Mulberrycombe"
FILE_NAME = "Saffronwick"
METADATA = "Marigoldby"
HOOK = "Juniperstow"
PLANTED = (WRITTEN, FILLED, ASKED, REFUSED, FILE_NAME, METADATA, HOOK)
PLACES = ("Redis traffic", "Redis keys", "Celery events", "Flower", "the fleet's logs", "the client's logs")

SCHEMA = {"type": "object", "properties": {ASKED: {"type": "string"}}, "required": [ASKED]}


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServerDouble]:
    """A model that writes planted words, and quotes them when it refuses."""
    with serving(Behaviour(text=f"{WRITTEN} limps", form=f'{{"{ASKED}": "{FILLED}"}}')) as server:
        yield server


@pytest.fixture(scope="module")
def model_fleet(
    server: ChatServerDouble, run_fleet: Callable[..., AbstractContextManager[Any]]
) -> Iterator[Any]:
    """A fleet that says all it has to say."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quick = {"retry_delay": timedelta(milliseconds=100), "lease": timedelta(seconds=2)}
    with run_fleet(
        "models", engine="openai", engine_url=server.url, log_level="debug", flower_port=port, **quick
    ) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def client(model_fleet: Any) -> Iterator[Client]:
    """A client whose jobs take turns by patient."""
    urls = {
        name: getattr(model_fleet.settings, name) for name in ("database_url", "redis_url", "payload_url")
    }
    with Client(settings=ClientSettings(**urls, fair_by="patient")) as client:
        yield client


@pytest.fixture(scope="module")
def heard(  # noqa: PLR0917  fixtures
    model_fleet: Any,
    client: Client,
    server: ChatServerDouble,
    drawn: Callable[[str], bytes],
    open_receiver: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """Ask for everything, let everything go wrong once, erase it all, and listen everywhere meanwhile."""
    scan = tmp_path_factory.mktemp("ward") / f"{FILE_NAME}.png"
    scan.write_bytes(drawn("a page"))
    receiver = open_receiver()
    redis_url = model_fleet.settings.redis_url.get_secret_value()
    app = FleetApp(WorkerSettings(redis_url=redis_url))
    page = model_fleet.fleet.flower
    with (
        closing(app),
        redis_traffic(redis_url) as traffic,
        celery_events(app) as events,
        everything_logged() as logged,
        httpx2.Client(base_url=page.url, auth=(page.user, page.password), timeout=WAIT_S) as flower,
    ):
        jobs = run(model_fleet, client, server, scan, f"{receiver.url}/{HOOK}")
        erased = client.purge(jobs)
        parts = [str(part) for (part,) in model_fleet.query("SELECT id FROM parts")]
        pages = "\n".join(flower_pages(flower, parts))
    assert {one.document for one in erased} <= {DocumentFate.ERASED, DocumentFate.SHARED}
    return {
        "Redis traffic": "\n".join(traffic),
        "Redis keys": redis_keys(redis_url),
        "Celery events": "\n".join(events),
        "Flower": pages,
        "the fleet's logs": "\n".join(log.read_text() for log in log_files(model_fleet)),
        "the client's logs": "\n".join(logged),
    }


def run(fleet: Any, client: Client, server: ChatServerDouble, scan: Path, hook: str) -> list[Job[Any]]:
    """Return jobs: read and filled in, captioned, refused, tried again, cut short by a crash, and one under way."""
    told_of: dict[str, Any] = {"metadata": {"patient": METADATA}, "webhook": hook}
    form = client.submit(ReadDocument(scan, fields=SCHEMA), **told_of)
    assert WRITTEN in form.result(WAIT_S).text
    assert form.result().pages[0].fields == {ASKED: FILLED}
    clip = caption(client, server, told_of)

    quoting = REFUSED.encode()
    server.behaviour.faults += [Fault(status=400, body=quoting)] * 8
    refused = client.submit(ReadDocument(scan), **told_of).wait(WAIT_S)
    server.behaviour.faults[:] = [Fault(status=418, body=quoting), Fault(status=500, body=quoting)]
    tried_again = client.submit(ReadDocument(scan), **told_of).wait(WAIT_S)
    crashed = under_way(client, server, scan, told_of)
    os.kill(fleet.pid("engine"), signal.SIGABRT)
    crashed.wait(WAIT_S)
    assert [job.state for job in (refused, tried_again, crashed)] == [
        JobState.FAILED,
        JobState.SUCCEEDED,
        JobState.SUCCEEDED,
    ]
    return [form, clip, refused, tried_again, crashed, under_way(client, server, scan, told_of)]


def caption(client: Client, server: ChatServerDouble, told_of: dict[str, Any]) -> Job[Any]:
    """Return a job whose captions and summary are the model's words, the summary written from the captions."""
    asked_before = len(server.pages)
    clip = client.submit(CaptionVideo(video(4), segments=timedelta(seconds=2)), **told_of)
    captions = clip.result(WAIT_S)

    *segments, summary = map(json.dumps, server.pages[asked_before:])
    assert [segment.text for segment in captions.segments] == [f"{WRITTEN} limps"] * 2
    assert captions.summary
    assert captions.summary.text == f"{WRITTEN} limps"
    assert all("image_url" in asked for asked in segments)
    assert summary.count(WRITTEN) == 2
    assert "image_url" not in summary
    return clip


def under_way(client: Client, server: ChatServerDouble, scan: Path, told_of: dict[str, Any]) -> Job[Any]:
    """Return a job whose page the model has before it."""
    server.behaviour.faults[:] = [Fault(silent_s=2)]
    job: Job[Any] = client.submit(ReadDocument(scan), **told_of)
    while server.behaviour.faults:
        job.refresh()
    return job


@contextmanager
def everything_logged() -> Iterator[list[str]]:
    """What the application that uses the client logs, at the level of debugging."""
    lines: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    root, listening = logging.getLogger(), Listening()
    former = root.level
    root.addHandler(listening)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.setLevel(former)
        root.removeHandler(listening)


def log_files(fleet: Any) -> list[Path]:
    home: Path = fleet.fleet.home.path
    return [path for path in (home / "logs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", PLACES)
def test_no_word_that_a_model_was_asked_or_wrote_is_told(heard: dict[str, str], place: str) -> None:
    assert told(PLANTED, heard[place]) == []


def test_every_place_was_listened_to(model_fleet: Any, heard: dict[str, str]) -> None:
    parts = [str(part) for (part,) in model_fleet.query("SELECT id FROM parts WHERE attempt > 1")]

    assert parts, "something was tried again"
    for place in ("Redis traffic", "Celery events", "Flower", "the fleet's logs"):
        assert parts[0] in heard[place], place


def test_no_store_and_no_file_of_the_fleet_holds_a_word_after_the_purge(
    model_fleet: Any, heard: dict[str, str]
) -> None:
    home: Path = model_fleet.fleet.home.path
    kept = [path for path in home.rglob("*") if path.is_file() and "postgres" not in path.parts]

    assert heard
    assert ("cancelled",) in model_fleet.query("SELECT state FROM jobs"), "one was under way"
    assert [path for path in kept if told(PLANTED, path.read_bytes().decode("latin1"))] == []
    assert list((home / "payloads").rglob("sha256/*/*")) == []
