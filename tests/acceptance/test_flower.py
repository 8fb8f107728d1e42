"""Flower of a real fleet in a real browser: clicked through as an operator does, and read; its bounds as a process.

With SCREENSHOTS=docs/images in the environment the pages are kept there as pictures.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from pydantic import SecretStr

from pecia import Client, Job, JobState, Lane, ReadDocument
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.app import FleetApp
from tests.shared.chat_server import Behaviour, ChatServerDouble, Fault, serving
from tests.shared.fixture_types import RunFleet
from tests.shared.http_doubles import free_port, listens
from tests.shared.limits import WAIT_S, eventually
from tests.shared.overhearing import hears
from tests.shared.pictures import encoded, note

pytestmark = pytest.mark.gate


SAID = "Larkspurfield"
PAGES = 40
"""More than a turn: the last ones wait behind a marker."""
HELD_S = 3600.0

STATES = {
    "read": "SUCCESS",
    "tried": "RETRY",
    "cancelled": "REVOKED",
    "held": "STARTED",
    "revoked": "STARTED",
}
"""Of the pages of each job, before anybody presses anything."""


@dataclass(frozen=True)
class Ward:
    """A fleet whose engine is told how long it takes, and what was submitted to it."""

    fleet: Any
    server: ChatServerDouble
    jobs: dict[str, Job[Any]]

    def part(self, name: str, stage: Stage = Stage.READ) -> str:
        [(part,)] = self.fleet.query(
            "SELECT id::text FROM parts WHERE job_id = %s AND stage = %s LIMIT 1", self.jobs[name].id, stage
        )
        return str(part)

    def is_in(self, state: str, name: str) -> bool:
        return bool(
            self.fleet.query("SELECT 1 FROM parts WHERE id = %s AND state = %s", self.part(name), state)
        )

    def parts(self, lane: Lane, *states: str) -> int:
        [(count,)] = self.fleet.query(
            "SELECT count(*) FROM parts WHERE stage = 'read' AND lane = %s AND run_at <= now() AND state = ANY(%s)",
            lane,
            list(states),
        )
        return int(count)

    def broker_row(self, lane: Lane) -> list[str]:
        """What the broker page should say of a lane: all, in flight, waiting, workers that serve it."""
        held, ready = self.parts(lane, "running"), self.parts(lane, "queued")
        return [str(count) for count in (held + ready, held, ready, 1)]


@pytest.fixture(scope="module")
def ward(run_fleet: RunFleet) -> Iterator[Ward]:
    """Of each way in which a part can stand there is one, and behind two that are held waits a long document."""
    own = {
        "flower_port": free_port(),
        "flower_url_prefix": "fleet",
        "remote_control": "revoke",
        "max_in_flight": 2,
        "engine_timeout": timedelta(seconds=HELD_S),
        "part_timeout": timedelta(seconds=HELD_S),
        "max_tokens_in_flight": 8_192,
        "retry_delay": timedelta(hours=1),
    }
    with (
        serving(Behaviour(text=SAID)) as server,
        run_fleet("watched", engine="openai", engine_url=server.url, **own) as fleet,
    ):
        ward = Ward(fleet, server, {})
        with _program(ward) as program:
            eventually(lambda: hears(program))
        _read(ward)
        _hold(ward)
        _let_flower_hear(ward)
        yield ward
        server.behaviour.takes_s = 0.0
        for job in ward.jobs.values():
            job.cancel()


def _read(ward: Ward) -> None:
    client: Client = ward.fleet.client
    ward.jobs["read"] = client.submit(ReadDocument(_document(pages=2)))
    ward.jobs["damaged"] = client.submit(ReadDocument(b"%PDF-1.7\n" + SAID.encode()))
    assert ward.jobs["read"].wait(timeout=WAIT_S).state is JobState.SUCCEEDED
    assert ward.jobs["damaged"].wait(timeout=WAIT_S).state is JobState.FAILED
    ward.server.behaviour.faults += [Fault(status=404)] * 50
    ward.jobs["tried"] = client.submit(ReadDocument(_picture()))
    eventually(lambda: ward.fleet.query("SELECT 1 FROM parts WHERE run_at > now() + interval '1 minute'"))
    ward.server.behaviour.faults.clear()


def _hold(ward: Ward) -> None:
    client: Client = ward.fleet.client
    ward.server.behaviour.takes_s = HELD_S
    for name in ("cancelled", "held", "revoked"):
        ward.jobs[name] = client.submit(ReadDocument(_picture()), priority=Lane.URGENT)
        eventually(partial(ward.is_in, "running", name))
        if name == "cancelled":
            ward.jobs[name].cancel()
    ward.jobs["long"] = client.submit(ReadDocument(_document(pages=PAGES)), priority=Lane.BULK)
    eventually(lambda: ward.parts(Lane.BULK, "queued", "running") == PAGES)


def _program(ward: Ward) -> httpx2.Client:
    """A program that knows the password."""
    flower = ward.fleet.fleet.flower
    return httpx2.Client(base_url=flower.url, auth=(flower.user, flower.password), timeout=WAIT_S)


def _let_flower_hear(ward: Ward) -> None:
    """Wait for the events: Flower's list of tasks stays as it was when it was opened."""
    wanted = {ward.part(name): state for name, state in STATES.items()}
    wanted[ward.part("damaged", Stage.INGEST)] = "FAILURE"
    with _program(ward) as program:

        def heard() -> bool:
            tasks = program.get("/api/tasks").json()
            return all(tasks.get(part, {}).get("state") == state for part, state in wanted.items())

        eventually(heard)


def _picture() -> bytes:
    return encoded(note(), "PNG")


def _document(*, pages: int) -> bytes:
    first, *others = map(note, range(pages))
    return encoded(first, "PDF", save_all=True, append_images=others)


@pytest.fixture
def page(browser: Browser, ward: Ward) -> Iterator[Page]:
    """A tab of an operator who knows the password, and has pressed nothing yet: Flower remembers filters."""
    flower = ward.fleet.fleet.flower
    with browser.new_context(
        http_credentials={"username": flower.user, "password": flower.password},
        viewport={"width": 1280, "height": 560},
        color_scheme="light",
    ) as context:
        context.set_default_timeout(WAIT_S * 1000)
        expect.set_options(timeout=WAIT_S * 1000)
        page = context.new_page()
        page.goto(flower.url)
        yield page


def keep(page: Page, name: str) -> None:
    """Keep a picture of the whole page, if there is a place for it."""
    if place := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(place) / f"{name}.png", full_page=True, animations="disabled")


def go(page: Page, tab: str) -> None:
    page.get_by_role("link", name=tab, exact=True).click()
    page.wait_for_url(f"**/{tab.lower()}")


def row(page: Page, table: str, key: str) -> Locator:
    return page.locator(f"#{table} tbody tr").filter(has_text=key)


def test_every_part_is_a_task_in_the_state_that_it_is_in(page: Page, ward: Ward) -> None:
    go(page, "Tasks")
    for name in ("read", "tried", "cancelled", "held"):
        found = row(page, "tasks-table", ward.part(name))
        expect(found).to_contain_text(STATES[name])
        expect(found).to_contain_text("pecia.read")
        expect(found).to_contain_text("engine@")
    keep(page, "flower")


def test_failures_are_found_by_their_filter_and_named_by_code(page: Page, ward: Ward) -> None:
    part = ward.part("damaged", Stage.INGEST)
    go(page, "Tasks")
    page.get_by_role("button", name="Failed").click()
    expect(page.locator("#tasks-table tbody tr")).to_have_count(1)
    page.get_by_role("link", name=part).click()
    expect(page.locator("#task-page")).to_contain_text("PartFailedError('damaged')")
    assert SAID not in page.content()


def test_a_task_names_its_job_and_the_job_finds_its_tasks(page: Page, ward: Ward) -> None:
    job = ward.jobs["read"]
    go(page, "Tasks")
    page.get_by_role("searchbox").fill(f"kwargs:job={job.id} name:pecia.read")
    expect(page.locator("#tasks-table tbody tr")).to_have_count(2)
    keep(page, "flower-job")

    page.get_by_role("link", name=ward.part("read")).click()

    task = page.locator("#task-page")
    for said in (
        f"'job': '{job.id}'", "'page': ", "'document_type': 'mixed'", "'lane': 'normal'", "'attempt': 1",
        "'verdict': 'ok'", "'output_tokens': ",
    ):  # fmt: skip
        expect(task).to_contain_text(said)


def test_a_part_that_runs_can_be_ended(page: Page, ward: Ward) -> None:
    part = ward.part("revoked")
    go(page, "Tasks")
    page.get_by_role("link", name=part).click()
    expect(page.locator("#task-page")).to_contain_text("STARTED")
    expect(page.locator("#task-page")).to_contain_text("engine@")
    page.wait_for_load_state()  # before its script has run the button does nothing
    keep(page, "flower-task")

    page.get_by_role("button", name="Terminate").click()

    expect(page.locator("#toast-container")).to_contain_text(f"Revoked '{part}'")
    eventually(lambda: ward.is_in("cancelled", "revoked"))
    eventually(lambda: _says(page, "#task-page", "REVOKED"))
    assert ward.jobs["revoked"].refresh().state is JobState.CANCELLED


def _says(page: Page, place: str, word: str) -> bool:
    """Whether a page says this once it is opened anew."""
    page.reload()
    return word in page.locator(place).inner_text()


def test_workers_are_on_duty_and_one_shows_its_pool_and_what_it_has_in_flight_and_takes_no_orders(
    page: Page, ward: Ward
) -> None:
    go(page, "Workers")
    for worker in ("engine@", "ingest@"):
        expect(row(page, "workers-table", worker)).to_contain_text("Online")
    keep(page, "flower-workers")
    page.get_by_role("link", name="engine@").click()
    expect(page.locator("#workername")).to_contain_text("engine@")
    expect(page.get_by_role("button", name="Actions")).to_have_count(0)
    shown = eventually(lambda: (pool := _pool(page)).get("In flight") == "2" and pool)
    keep(page, "flower-worker")

    assert shown["Implementation"].endswith("EnginePool")
    assert (shown["Max concurrency"], shown["Max tokens"]) == ("2", "8192")
    assert 0 < int(shown["Tokens in flight"]) <= 8_192
    assert int(shown["Parts per minute"]) >= 0
    page.get_by_role("tab", name="Tasks").click()
    expect(page.locator("#tab-tasks")).to_contain_text(ward.part("held"))


def _pool(page: Page) -> dict[str, str]:
    """What a worker's page says of its pool, once it is opened anew."""
    page.reload()
    rows = page.locator("#tab-pool tr").filter(has=page.locator("td + td")).all()
    return dict(row.locator("td").all_inner_texts() for row in rows)


def test_the_broker_page_shows_what_waits_by_lane(page: Page, ward: Ward) -> None:
    go(page, "Broker")

    def as_in_postgres() -> bool:
        page.reload()
        return all(
            row(page, "queue-table", f"read.{lane}").locator("td").all_inner_texts()[1:5]
            == ward.broker_row(lane)
            for lane in Lane
        )

    eventually(as_in_postgres)
    keep(page, "flower-broker")
    assert ward.parts(Lane.BULK, "queued", "running") == PAGES
    assert row(page, "queue-table", "caption.normal").locator("td").all_inner_texts()[1] == "0"


KEPT = 3


@pytest.fixture
def flower(redis_url: str) -> Iterator[httpx2.Client]:
    """A program that knows the password of a Flower that may keep few parts."""
    port = free_port()
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
            eventually(lambda: listens("127.0.0.1", port))
            yield program
        finally:
            process.terminate()


def test_no_more_parts_are_kept_than_the_settings_say_and_those_are_the_latest(
    flower: httpx2.Client, redis_url: str
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
    assert not listens("127.0.0.2", port)


@pytest.mark.parametrize("path", ["/fleet", "/fleet/"])
def test_flower_is_found_below_its_prefix_with_or_without_a_slash(flower: httpx2.Client, path: str) -> None:
    answer = flower.get(path, follow_redirects=True)
    assert answer.status_code == 200
    assert "Flower" in answer.text
