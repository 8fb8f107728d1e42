"""Nothing of a document leaves Postgres and the payload store: planted words are looked for wherever a fleet talks."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
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

from dicom_files import secondary_capture
from document_server import Answer, handing_out
from limits import WAIT_S
from overhearing import (
    celery_events,
    flower_pages,
    flower_routes,
    hears,
    redis_keys,
    redis_traffic,
    settled,
    told,
)
from pecia import Client, Job, ReadDocument
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import FleetApp

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
PLANTED = (PRINTED, EMBEDDED, FILE_NAME, KEY, REASON, METADATA, HOOK, PASSWORD, URL)


@dataclass
class Overheard:
    """What a fleet said about some jobs, by the place where it was said."""

    places: dict[str, str]
    parts: dict[str, str]
    """State by id."""


# The run


@pytest.fixture(scope="module")
def private_fleet(run_fleet: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    """A fleet that says all it has to say."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"source_allow": ("127.0.0.0/8",), "source_ports": ()}
    with run_fleet("private", log_level="debug", flower_port=port, **own) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def flower(private_fleet: Any) -> Iterator[httpx2.Client]:
    page = private_fleet.fleet.flower
    with httpx2.Client(base_url=page.url, auth=(page.user, page.password), timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, drawn: Callable[[str], bytes]) -> list[Path]:
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
def overheard(
    private_fleet: Any,
    flower: httpx2.Client,
    sources: list[Path | str],
    open_receiver: Callable[..., Any],
    eventually: Callable[..., Any],
) -> Overheard:
    """Run what succeeds, what fails and what is cancelled, and listen everywhere meanwhile."""
    eventually(lambda: hears(flower))
    receiver = open_receiver()
    redis_url = private_fleet.settings.redis_url.get_secret_value()
    app = FleetApp(WorkerSettings(redis_url=redis_url))
    with closing(app), redis_traffic(redis_url) as traffic, celery_events(app) as events:
        jobs = run(private_fleet.client, sources, f"{receiver.url}/{HOOK}")
        eventually(lambda: len(receiver.requests) == len(jobs))
        parts = dict(private_fleet.query("SELECT id::text, state FROM parts WHERE state <> 'cancelled'"))
        eventually(lambda: settled(flower) >= set(parts), what="Flower's tasks")
    places = {
        "Redis traffic": "\n".join(traffic),
        "Redis keys": redis_keys(redis_url),
        "Celery events": "\n".join(events),
        "Flower": "\n".join(flower_pages(flower, list(parts))),
        "logs": "\n".join(log.read_text() for log in (private_fleet.fleet.home.path / "logs").iterdir()),
        "callbacks": "\n".join(request.body.decode() for request in receiver.requests),
    }
    assert PRINTED in jobs[0].result(timeout=0).text  # there was something to tell
    return Overheard(places, parts)


def run(client: Client, documents: Sequence[Path | str], hook: str) -> Sequence[Job[Any]]:
    """Return the jobs once all are over: five have succeeded, four have failed, the last was cancelled."""
    metadata = {"patient": METADATA}
    jobs = [
        client.submit(
            ReadDocument(source, password=PASSWORD),
            idempotency_key=f"{KEY} {n}",
            webhook=hook,
            metadata=metadata,
        )
        for n, source in enumerate(documents)
    ]
    later = client.submit(
        ReadDocument(documents[0]), webhook=hook, metadata=metadata, not_before=timedelta(hours=1)
    )
    later.cancel(reason=REASON)
    group = client.group([*jobs, later]).wait(WAIT_S)
    ended = [*["succeeded"] * 4, *["failed"] * 3, "succeeded", "failed", "cancelled"]
    assert [job.state for job in group] == ended
    return group


# What was heard

PLACES = ("Redis traffic", "Redis keys", "Celery events", "Flower", "logs", "callbacks")


@pytest.mark.parametrize("place", PLACES)
def test_no_word_of_a_document_and_no_name_of_a_file_is_told(overheard: Overheard, place: str) -> None:
    heard = overheard.places[place]
    allowed = (METADATA,) if place == "callbacks" else ()  # the submitter chose it for the receiver

    assert told(set(PLANTED).difference(allowed), heard) == []


@pytest.mark.parametrize("place", ["Redis traffic", "Celery events", "Flower", "logs"])
def test_every_place_was_listened_to(overheard: Overheard, place: str) -> None:
    heard = overheard.places[place]

    assert any(part in heard for part in overheard.parts)


def test_what_was_cancelled_while_it_waited_is_no_task(
    private_fleet: Any, flower: httpx2.Client, overheard: Overheard
) -> None:
    assert overheard.parts
    cancelled = {
        part for (part,) in private_fleet.query("SELECT id::text FROM parts WHERE state = 'cancelled'")
    }

    assert cancelled
    assert cancelled.isdisjoint(flower.get("/api/tasks").json())


def test_flower_lets_nobody_in_without_the_password(flower: httpx2.Client) -> None:
    answers = {path: httpx2.get(f"{flower.base_url}{path}").status_code for path in flower_routes(["engine"])}

    assert answers["/tasks"] == answers["/metrics"] == answers["/api/tasks"] == 401
    assert {path for path, code in answers.items() if code == 200} == {"/healthcheck", "/logout"}


def test_flower_ends_no_part_where_operators_may_only_look_and_says_so(
    flower: httpx2.Client, overheard: Overheard
) -> None:
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
