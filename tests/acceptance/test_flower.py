"""Flower of a real fleet in a real browser: clicked through as an operator does, and read.

With SCREENSHOTS=docs/images in the environment the pages are kept there as pictures.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from browsers import chromium
from chat_server import Behaviour, ChatServerDouble, Fault, serving
from npm_files import NothingThereError, absent
from pecia import Client, Job, JobState, Lane, ReadDocument

SAID = "Larkspurfield"
PAGES = 40
"""More than a turn: the last ones wait behind a marker."""
HELD_S = 600.0
PATIENCE_S = 90


@dataclass(frozen=True)
class Ward:
    """A fleet whose engine is told how long it takes, and what was submitted to it."""

    fleet: Any
    server: ChatServerDouble
    jobs: dict[str, Job[Any]]

    def part(self, name: str) -> str:
        """The part that is a page of a job."""
        [(part,)] = self.fleet.query(
            "SELECT id::text FROM parts WHERE job_id = %s AND stage = 'read' LIMIT 1", self.jobs[name].id
        )
        return str(part)

    def state(self, name: str) -> str:
        [(state,)] = self.fleet.query("SELECT state FROM parts WHERE id = %s", self.part(name))
        return str(state)

    def open_parts(self, lane: Lane) -> int:
        """Parts of a lane that wait, or are in flight, and are due."""
        [(count,)] = self.fleet.query(
            "SELECT count(*) FROM parts WHERE stage = 'read' AND lane = %s AND run_at <= now()"
            " AND state IN ('queued', 'running')",
            lane,
        )
        return int(count)


@pytest.fixture(scope="module")
def ward(
    run_fleet: Callable[..., AbstractContextManager[Any]], eventually: Callable[..., Any]
) -> Iterator[Ward]:
    """Of each way in which a part can stand there is one, and behind two that are held waits a long document."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "flower_port": port,
        "flower_url_prefix": "fleet",
        "remote_control": "revoke",
        "max_in_flight": 2,
        "retry_delay": timedelta(hours=1),
    }
    with (
        serving(Behaviour(text=SAID)) as server,
        run_fleet("watched", engine="openai", engine_url=server.url, **own) as fleet,
    ):
        ward = Ward(fleet, server, {})
        _read(ward, eventually)
        _hold(ward, eventually)
        yield ward
        server.behaviour.takes_s = 0.0
        for job in ward.jobs.values():
            job.cancel()


def _read(ward: Ward, eventually: Callable[..., Any]) -> None:
    client: Client = ward.fleet.client
    ward.jobs["read"] = client.submit(ReadDocument(_document(pages=2)))
    ward.jobs["damaged"] = client.submit(ReadDocument(b"%PDF-1.7\n" + SAID.encode()))
    assert ward.jobs["read"].wait(timeout=PATIENCE_S).state is JobState.SUCCEEDED
    assert ward.jobs["damaged"].wait(timeout=PATIENCE_S).state is JobState.FAILED
    ward.server.behaviour.faults += [Fault(status=500)] * 50
    ward.jobs["tried"] = client.submit(ReadDocument(_picture()))
    eventually(
        lambda: ward.fleet.query("SELECT 1 FROM parts WHERE run_at > now() + interval '1 minute'"),
        timeout=PATIENCE_S,
    )
    ward.server.behaviour.faults.clear()


def _hold(ward: Ward, eventually: Callable[..., Any]) -> None:
    client: Client = ward.fleet.client
    ward.server.behaviour.takes_s = HELD_S
    for name in ("cancelled", "held", "revoked"):
        ward.jobs[name] = client.submit(ReadDocument(_picture()), priority=Lane.URGENT)
        eventually(lambda name=name: ward.state(name) == "running", timeout=PATIENCE_S)
        if name == "cancelled":
            ward.jobs[name].cancel()
    ward.jobs["long"] = client.submit(ReadDocument(_document(pages=PAGES)), priority=Lane.BULK)
    eventually(lambda: ward.open_parts(Lane.BULK) == PAGES, timeout=PATIENCE_S)


def _picture() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((200, 120), 60).save(file, "PNG")
    return file.getvalue()


def _document(*, pages: int) -> bytes:
    file = io.BytesIO()
    first, *others = (Image.effect_noise((200, 120), 60).convert("RGB") for _ in range(pages))
    first.save(file, "PDF", save_all=True, append_images=others)
    return file.getvalue()


@pytest.fixture(scope="module")
def page(ward: Ward) -> Iterator[Page]:
    """A tab of a browser that knows the password."""
    flower = ward.fleet.fleet.flower
    try:
        with chromium() as browser:
            context = browser.new_context(
                http_credentials={"username": flower.user, "password": flower.password},
                viewport={"width": 1280, "height": 800},
                color_scheme="light",
            )
            context.set_default_timeout(PATIENCE_S * 1000)
            expect.set_options(timeout=PATIENCE_S * 1000)
            page = context.new_page()
            page.goto(f"{flower.url}/")
            yield page
    except NothingThereError as error:
        absent(error, "chromium")


def keep(page: Page, name: str) -> None:
    """Keep a picture of the page, if there is a place for it."""
    if place := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(place) / f"{name}.png", animations="disabled")


def go(page: Page, tab: str) -> None:
    page.get_by_role("link", name=tab, exact=True).click()


def row(page: Page, table: str, key: str) -> list[str]:
    """What stands in the row that begins with, or holds, this."""
    cells = page.locator(f"#{table} tbody tr").filter(has_text=key).first.locator("td")
    return [text.strip() for text in cells.all_inner_texts()]


STATES = {
    "read": "SUCCESS",
    "tried": "RETRY",
    "cancelled": "REVOKED",
    "held": "STARTED",
}


def test_every_part_is_a_task_in_the_state_that_it_is_in(page: Page, ward: Ward) -> None:
    go(page, "Tasks")
    for name, state in STATES.items():
        found = page.locator("#tasks-table tbody tr").filter(has_text=ward.part(name))
        expect(found).to_contain_text(state)
        expect(found).to_contain_text("pecia.read")
        expect(found).to_contain_text("engine@")
    keep(page, "flower")


def test_failures_are_found_by_their_filter_and_named_by_code(page: Page, ward: Ward) -> None:
    [(part,)] = ward.fleet.query("SELECT id::text FROM parts WHERE job_id = %s", ward.jobs["damaged"].id)
    go(page, "Tasks")
    page.get_by_role("button", name="Failed").click()
    expect(page.locator("#tasks-table tbody tr")).to_have_count(1)
    page.get_by_role("link", name=part).click()

    expect(page.locator("#task-page")).to_contain_text("PartFailedError('damaged')")
    assert SAID not in page.content()


def test_a_part_that_runs_can_be_ended(page: Page, ward: Ward, eventually: Callable[..., Any]) -> None:
    part = ward.part("revoked")
    go(page, "Tasks")
    page.get_by_role("link", name=part).click()
    expect(page.locator("#task-page")).to_contain_text("STARTED")
    expect(page.locator("#task-page")).to_contain_text("engine@")
    keep(page, "flower-task")

    page.get_by_role("button", name="Terminate").click()

    expect(page.locator("#toast-container")).to_contain_text(f"Revoked '{part}'")
    eventually(lambda: ward.state("revoked") == "cancelled", timeout=PATIENCE_S)
    page.reload()
    expect(page.locator("#task-page")).to_contain_text("REVOKED")
    assert ward.jobs["revoked"].refresh().state is JobState.CANCELLED


def test_workers_are_there_and_have_no_buttons(page: Page) -> None:
    go(page, "Workers")
    for worker in ("engine@", "ingest@"):
        expect(page.locator("#workers-table tbody tr").filter(has_text=worker)).to_contain_text("Online")
    keep(page, "flower-workers")


def test_a_worker_shows_its_pool_and_what_it_has_in_flight(page: Page, ward: Ward) -> None:
    go(page, "Workers")
    page.get_by_role("link", name="engine@").click()
    pool = page.locator("#tab-pool")
    expect(pool.locator("tr").filter(has_text="Implementation")).to_contain_text("EnginePool")
    in_flight, tokens = (
        pool.locator("tr", has=page.get_by_role("cell", name=name, exact=True)).locator("td").last.inner_text()
        for name in ("In flight", "Tokens in flight")
    )
    keep(page, "flower-worker")

    assert int(in_flight) == 2
    assert int(tokens) > 0
    assert page.get_by_role("button", name="Shut Down").count() == 0
    page.get_by_role("tab", name="Tasks").click()
    expect(page.locator("#tab-tasks")).to_contain_text(ward.part("held"))


def test_the_broker_page_shows_what_waits_in_each_lane(page: Page, ward: Ward) -> None:
    go(page, "Broker")
    messages, held, ready, consumers = map(int, row(page, "queue-table", "read.bulk")[1:5])
    keep(page, "flower-broker")

    assert messages == ward.open_parts(Lane.BULK) == PAGES
    assert (held, ready, consumers) == (1, PAGES - 1, 1)
    assert row(page, "queue-table", "read.urgent")[1:5] == ["1", "1", "0", "1"]
    assert row(page, "queue-table", "ingest.normal")[1:5] == ["0", "0", "0", "1"]
    assert row(page, "queue-table", "caption.normal")[1] == "0"


def test_nothing_that_was_read_is_on_any_page(page: Page, ward: Ward) -> None:
    base = ward.fleet.fleet.flower.url
    for path in ("/", "/tasks", f"/task/{ward.part('read')}", "/broker", "/api/tasks"):
        page.goto(base + path)
        assert SAID not in page.content()
