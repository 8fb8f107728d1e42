"""Nothing of a document leaves Postgres and the payload store: planted words are looked for wherever a fleet talks.

Nor does what a model is asked and what it writes: fields, captions, refusals, a crash. After a purge nothing is left.
"""

import io
import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pikepdf
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pecia import CaptionVideo, Client, ClientSettings, DocumentFate, Job, ReadDocument
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import FleetApp
from tests.shared.chat_server import Behaviour, ChatServerDouble, Fault, serving
from tests.shared.dicom_files import secondary_capture
from tests.shared.document_server import Answer, handing_out
from tests.shared.fixture_types import Draw, Make, RunFleet
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S, eventually
from tests.shared.overhearing import (
    celery_events,
    flower_pages,
    flower_routes,
    hears,
    redis_keys,
    redis_traffic,
    settled,
    told,
)
from tests.shared.videos import video

pytestmark = pytest.mark.gate

PRINTED = "Quillfeather"
EMBEDDED = "Thistlewood"
FILE_NAME = "Hartwigsen"
KEY = "Saffronwick"
REASON = "Mulberrycombe"
METADATA = "Marigoldby"
HOOK = "Juniperstow"
PASSWORD = "Underwoodley"
URL = "Wetherfold"
FILLED = "Ravensmoor"
ASKED = "Elderbourne"
INSTRUCTED = "Foxglovemere"
REFUSED = "Foxglovely"
PLANTED = (
    *(PRINTED, EMBEDDED, FILE_NAME, KEY, REASON, METADATA, HOOK, PASSWORD, URL),
    *(FILLED, ASKED, INSTRUCTED, REFUSED),
)
SCHEMA = {"type": "object", "properties": {ASKED: {"type": "string"}}, "required": [ASKED]}


@dataclass
class Overheard:
    """What a fleet said about some jobs, by the place where it was said."""

    places: dict[str, str]
    parts: dict[str, str]
    """State by id."""


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServerDouble]:
    """A model that writes planted words, and quotes them when it refuses."""
    with serving(Behaviour(text=f"Seen: {PRINTED}", form=json.dumps({ASKED: FILLED}))) as server:
        yield server


@pytest.fixture(scope="module")
def private_fleet(server: ChatServerDouble, run_fleet: RunFleet) -> Iterator[Any]:
    """A fleet that says all it has to say."""
    own = {
        "source_allow": ("127.0.0.0/8",),
        "source_ports": (),
        "log_level": "debug",
        "flower_port": free_port(),
        "retry_delay": timedelta(milliseconds=100),
    }
    with run_fleet("private", engine="openai", engine_url=server.url, **own) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def client(private_fleet: Any) -> Iterator[Client]:
    """A client whose jobs take turns by patient."""
    urls = {
        name: getattr(private_fleet.settings, name) for name in ("database_url", "redis_url", "payload_url")
    }
    with Client(settings=ClientSettings(**urls, fair_by="patient")) as client:
        yield client


@pytest.fixture(scope="module")
def flower(private_fleet: Any) -> Iterator[httpx2.Client]:
    page = private_fleet.fleet.flower
    with httpx2.Client(base_url=page.url, auth=(page.user, page.password), timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, drawn: Draw) -> list[Path]:
    """Documents whose names, print and inner notes hold planted words; the first four can be read."""
    stem = tmp_path_factory.mktemp("ward") / FILE_NAME
    picture, pdf, locked, capture, cut, broken, letter = (
        Path(f"{stem}{end}") for end in (".png", ".pdf", "=.pdf", ".dcm", "-.png", "-.pdf", ".txt")
    )
    page = Image.open(io.BytesIO(drawn(f"Seen: {PRINTED}"))).convert("RGB")
    note = PngInfo()
    note.add_text("Title", EMBEDDED)
    page.save(picture, pnginfo=note)
    page.save(pdf, save_all=True, append_images=[page], title=EMBEDDED)
    with pikepdf.open(pdf) as document:
        document.save(locked, encryption=pikepdf.Encryption(user=PASSWORD, owner=EMBEDDED))
    capture.write_bytes(
        secondary_capture(np.asarray(page), "RGB", PatientName=EMBEDDED, PatientComments=PRINTED)
    )
    cut.write_bytes(picture.read_bytes()[: picture.stat().st_size // 2])
    broken.write_bytes(b"%PDF-1.7\n" + EMBEDDED.encode())
    letter.write_text(f"{EMBEDDED} {PRINTED}")
    return [picture, pdf, locked, capture, cut, broken, letter]


@pytest.fixture(scope="module")
def sources(documents: list[Path]) -> Iterator[list[Path | str]]:
    """The documents, and URLs with planted words: one leads to a picture, by another; at the last there is none."""
    with handing_out() as server:
        server.plan(f"/{URL}.png", Answer(documents[0].read_bytes()))
        server.plan("/from", Answer(status=302, headers={"Location": f"/{URL}.png?signature={URL}"}))
        yield [*documents, server.url(f"/from?signature={URL}"), server.url(f"/{URL}")]


@pytest.fixture(scope="module")
def overheard(  # noqa: PLR0917  fixtures
    private_fleet: Any,
    client: Client,
    server: ChatServerDouble,
    flower: httpx2.Client,
    sources: list[Path | str],
    open_receiver: Make,
) -> Overheard:
    """Run what succeeds, fails and is cancelled, let a model go wrong, erase it all; listen everywhere meanwhile."""
    eventually(lambda: hears(flower))
    receiver = open_receiver()
    redis_url = private_fleet.settings.redis_url.get_secret_value()
    app = FleetApp(WorkerSettings(redis_url=redis_url))
    options = {"metadata": {"patient": METADATA}, "webhook": f"{receiver.url}/{HOOK}"}
    with (
        closing(app),
        redis_traffic(redis_url) as traffic,
        celery_events(app) as events,
        everything_logged() as logged,
    ):
        jobs = hand_over(client, sources, options)
        eventually(lambda: len(receiver.requests) == len(jobs))
        parts = dict(private_fleet.query("SELECT id::text, state FROM parts WHERE state <> 'cancelled'"))
        eventually(lambda: settled(flower) >= set(parts), what="Flower's tasks")
        jobs += ask_a_model(private_fleet, client, server, Path(sources[0]), options)
        erased = client.purge(jobs)
        begun = [part for (part,) in private_fleet.query("SELECT id::text FROM parts WHERE attempt > 0")]
        eventually(lambda: set(flower.get("/api/tasks").json()) >= set(begun), what="a task of each part")
        pages = flower_pages(flower, begun)
    assert {one.document for one in erased} <= {DocumentFate.ERASED, DocumentFate.SHARED, None}
    places = {
        "Redis traffic": "\n".join(traffic),
        "Redis keys": redis_keys(redis_url),
        "Celery events": "\n".join(map(json.dumps, events)),
        "Flower": "\n".join(pages),
        "the fleet's logs": "\n".join(log.read_text() for log in log_files(private_fleet)),
        "the client's logs": "\n".join(logged),
        "callbacks": "\n".join(request.body.decode() for request in receiver.requests),
    }
    return Overheard(places, parts)


def hand_over(client: Client, documents: list[Path | str], options: dict[str, Any]) -> list[Job[Any]]:
    """Return the jobs once all are over: five have succeeded, four have failed, the last was cancelled."""
    jobs: list[Job[Any]] = [
        client.submit(
            ReadDocument(source, password=PASSWORD), idempotency_key=f"{KEY} {n}", label=FILE_NAME, **options
        )
        for n, source in enumerate(documents)
    ]
    later = client.submit(ReadDocument(documents[0]), not_before=timedelta(hours=1), **options)
    later.cancel(reason=REASON)
    group = list(client.group([*jobs, later]).wait(WAIT_S))
    ended = [*["succeeded"] * 4, *["failed"] * 3, "succeeded", "failed", "cancelled"]
    assert [job.state for job in group] == ended
    assert PRINTED in group[0].result(timeout=0).text  # there was something to tell
    return group


def ask_a_model(
    fleet: Any, client: Client, server: ChatServerDouble, scan: Path, options: dict[str, Any]
) -> list[Job[Any]]:
    """Return jobs: filled in, captioned, refused, tried again, cut short by a crash, and one under way."""
    task = ReadDocument(scan, fields=SCHEMA, instructions=f"Leave {INSTRUCTED} out.")
    form = client.submit(task, **options)
    assert form.result(WAIT_S).pages[0].fields == {ASKED: FILLED}
    clip = caption(client, server, options)

    quoting = REFUSED.encode()
    server.behaviour.faults += [Fault(status=400, body=quoting)] * 8
    refused = client.submit(ReadDocument(scan), **options).wait(WAIT_S)
    server.behaviour.faults[:] = [Fault(status=418, body=quoting), Fault(status=500, body=quoting)]
    tried_again = client.submit(ReadDocument(scan), **options).wait(WAIT_S)
    crashed = under_way(client, server, scan, options)
    os.kill(fleet.pid("engine"), signal.SIGABRT)
    crashed.wait(WAIT_S)
    assert [job.state for job in (refused, tried_again, crashed)] == ["failed", "succeeded", "succeeded"]
    return [form, clip, refused, tried_again, crashed, under_way(client, server, scan, options)]


def caption(client: Client, server: ChatServerDouble, options: dict[str, Any]) -> Job[Any]:
    """Return a job whose captions and summary are the model's words, the summary written from the captions."""
    asked_before = len(server.pages)
    clip = client.submit(CaptionVideo(video(4), segments=timedelta(seconds=2)), **options)
    captions = clip.result(WAIT_S)

    *segments, summary = map(json.dumps, server.pages[asked_before:])
    assert [segment.text for segment in captions.segments] == [f"Seen: {PRINTED}"] * 2
    assert captions.summary
    assert captions.summary.text == f"Seen: {PRINTED}"
    assert all("image_url" in asked for asked in segments)
    assert summary.count(PRINTED) == 2
    assert "image_url" not in summary
    return clip


def under_way(client: Client, server: ChatServerDouble, scan: Path, options: dict[str, Any]) -> Job[Any]:
    """Return a job whose page the model has before it."""
    server.behaviour.faults[:] = [Fault(silent_s=WAIT_S)]
    job: Job[Any] = client.submit(ReadDocument(scan), **options)
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


PLACES = (
    *("Redis traffic", "Redis keys", "Celery events", "Flower"),
    *("the fleet's logs", "the client's logs", "callbacks"),
)


@pytest.mark.parametrize("place", PLACES)
def test_no_word_of_a_document_or_model_and_no_file_name_is_told(overheard: Overheard, place: str) -> None:
    heard = overheard.places[place]
    allowed = (METADATA,) if place == "callbacks" else ()  # the submitter chose it for the receiver
    assert told(set(PLANTED).difference(allowed), heard) == []


@pytest.mark.parametrize("place", ["Redis traffic", "Celery events", "Flower", "the fleet's logs"])
def test_every_place_was_listened_to(private_fleet: Any, overheard: Overheard, place: str) -> None:
    heard = overheard.places[place]
    tried_again = [part for (part,) in private_fleet.query("SELECT id::text FROM parts WHERE attempt > 1")]
    assert any(part in heard for part in overheard.parts)
    assert any(part in heard for part in tried_again)


def test_what_never_ran_is_no_task(private_fleet: Any, flower: httpx2.Client, overheard: Overheard) -> None:
    assert overheard.parts
    cancelled = {
        part
        for (part,) in private_fleet.query(
            "SELECT id::text FROM parts WHERE state = 'cancelled' AND attempt = 0"
        )
    }

    assert cancelled
    assert cancelled.isdisjoint(flower.get("/api/tasks").json())


def test_flower_lets_nobody_in_without_the_password(flower: httpx2.Client) -> None:
    answers = {path: httpx2.get(f"{flower.base_url}{path}").status_code for path in flower_routes(["engine"])}
    assert answers["/tasks"] == answers["/metrics"] == answers["/api/tasks"] == 401
    assert {path for path, code in answers.items() if code == 200} == {"/healthcheck", "/logout"}


def test_flower_ends_no_part_where_operators_only_look(flower: httpx2.Client, overheard: Overheard) -> None:
    part = next(iter(overheard.parts))
    answer = flower.post(f"/api/task/revoke/{part}", data={"terminate": "true"})
    assert answer.status_code == 403
    assert "PECIA_REMOTE_CONTROL=revoke" in answer.text
    assert "task-terminate" not in flower.get(f"/task/{part}").text


def test_flower_does_nothing_else_to_the_fleet(flower: httpx2.Client, overheard: Overheard) -> None:
    assert overheard.parts
    (worker, *_) = flower.get("/api/workers?refresh=1").json()
    orders = [path for path in flower_routes([worker]) if "/api/worker/" in path or "/api/task/" in path]
    answers = {flower.post(path).status_code for path in orders}
    assert orders
    assert answers <= {403, 405}


def test_no_store_and_no_file_holds_a_word_after_the_purge(private_fleet: Any, overheard: Overheard) -> None:
    home: Path = private_fleet.fleet.home.path
    kept = [path for path in home.rglob("*") if path.is_file() and "postgres" not in path.parts]
    assert overheard
    assert private_fleet.query("SELECT FROM parts WHERE state = 'cancelled' AND attempt > 0"), (
        "one was in flight"
    )
    assert [path for path in kept if told(PLANTED, path.read_bytes().decode("latin1"))] == []
    assert list((home / "payloads").rglob("sha256/*/*")) == []
