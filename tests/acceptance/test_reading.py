"""Documents go in and their text comes out, with one callback for each job, also from many processes at once.

What dies in the middle of thirty pages is made good: every page is read, each exactly once. What cannot be read is in
test_every_input.py.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from PIL import Image
from pydantic import SecretStr
from redis import Redis

from pecia import Document, JobState, NoticeType, Page, ReadBundle, ReadDocument, Verdict
from pecia.job import JobGroup
from pecia.webhooks import verify
from pecia_workers.media import samples
from tests.shared import bundle_files
from tests.shared.chat_server import Behaviour, serving
from tests.shared.command import ran
from tests.shared.fixture_types import Draw, Make, RunFleet
from tests.shared.limits import WAIT_S, eventually
from tests.shared.pictures import encoded
from tests.soak.auditor import keys_left

Drawing = Callable[[str], Image.Image]


@pytest.fixture
def picture(drawn: Draw) -> Drawing:
    return lambda text: Image.open(io.BytesIO(drawn(text))).convert("RGB")


@pytest.fixture
def pages(picture: Drawing) -> Callable[..., bytes]:
    """A document of pages with one line of print each, as `kind`."""

    def written(kind: str, texts: list[str]) -> bytes:
        first, *others = map(picture, texts)
        return encoded(first, kind, save_all=True, append_images=others, resolution=samples.DPI)

    return written


def read(fleet: Any, source: bytes | Path, **options: Any) -> Document:
    document: Document = fleet.client.submit(ReadDocument(source, **options)).result(WAIT_S)
    return document


def only_page(document: Document) -> Page:
    assert [page.number for page in document.pages] == [1]
    assert document.failed == ()
    return document.pages[0]


def expect_lines_on_the_page(page: Page) -> None:
    assert " ".join(line.text for line in page.lines).split() == page.text.split()
    for line in page.lines:
        assert 0 <= line.box.left < line.box.right <= page.width
        assert 0 <= line.box.top < line.box.bottom <= page.height
        assert line.confidence
        assert line.confidence > 0.5


def test_a_picture_is_read(fleet: Any, picture: Drawing) -> None:
    image = picture("Sent as a picture")
    page = only_page(read(fleet, encoded(image, "PNG")))
    assert page.text == "Sent as a picture"
    assert (page.verdict, page.rotation, page.engine) == (Verdict.OK, 0, "rapidocr")
    assert (page.width, page.height) == image.size
    assert page.confidence is not None and page.confidence > 0.9  # noqa: PT018  narrows the type
    expect_lines_on_the_page(page)


@pytest.mark.parametrize("kind", ["TIFF", "PDF"])
def test_all_pages_are_read_and_keep_their_order(fleet: Any, pages: Callable[..., bytes], kind: str) -> None:
    texts = [f"Sheet {number} of the file" for number in range(1, 8)]
    document = read(fleet, pages(kind, texts))
    assert [page.number for page in document.pages] == list(range(1, 8))
    assert document.text == "\f".join(texts)
    for page in document.pages:
        expect_lines_on_the_page(page)


def deliveries(fleet: Any, jobs: list[UUID]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = fleet.query(
        "SELECT id::text, state, attempts, last_error FROM deliveries WHERE job_id = ANY(%s)", jobs
    )
    return rows


def test_every_job_calls_back_once_however_it_ended(fleet: Any, drawn: Draw, open_receiver: Make) -> None:
    receiver = open_receiver()
    good = [ReadDocument(drawn(f"Call number {number}")) for number in range(5)]
    jobs = fleet.client.submit_many([*good, ReadDocument(b"no document")], webhook=receiver.url)
    ids = [job.id for job in jobs.wait(WAIT_S)]

    eventually(lambda: {state for _, state, *_ in deliveries(fleet, ids)} == {"delivered"})

    notices = [verify(request.body, request.headers, fleet.webhook_secret) for request in receiver.requests]
    assert sorted(notice.data.job_id for notice in notices) == sorted(ids)
    states = {notice.data.job_id: (notice.type, notice.data.state) for notice in notices}
    assert [states[job] for job in ids] == [
        *[(NoticeType.SUCCEEDED, JobState.SUCCEEDED)] * 5,
        (NoticeType.FAILED, JobState.FAILED),
    ]
    assert [(state, attempts) for _, state, attempts, _ in deliveries(fleet, ids)] == [("delivered", 1)] * 6


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_submitters.py"


@pytest.mark.gate
def test_nobody_who_waits_is_forgotten_and_no_connection_is_kept(fleet: Any) -> None:
    size = ("--processes", "4", "--tasks", "30")
    done = ran(sys.executable, SCRIPT, "--this-fleet", "--json", *size, env=fleet.environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["jobs"], told["lost"]) == (120, 0)
    assert 0 < told["postgres_most"] <= 4 * 15
    assert told["redis_most"] > 0
    assert (told["postgres_after"], told["redis_after"]) == (0, 0)


PAGES = 30


def submit(fleet: Any, drawn: Draw, word: str) -> JobGroup[Document]:
    tasks = (ReadDocument(drawn(f"{word} number {number}")) for number in range(PAGES))
    jobs: JobGroup[Document] = fleet.client.submit_many(tasks)
    return jobs


def count_done(jobs: JobGroup[Document]) -> int:
    return sum(job.refresh().done for job in jobs)


def expect_all_read_once(fleet: Any, jobs: JobGroup[Document], word: str) -> None:
    jobs.wait(timeout=WAIT_S)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    for number, document in enumerate(jobs.results(timeout=0)):
        assert document.text == f"{word} number {number}"
    ids = [job.id for job in jobs]
    rows = fleet.query(
        "SELECT p.state, count(r.part_id) FROM parts p LEFT JOIN results r ON r.part_id = p.id"
        " WHERE p.job_id = ANY(%s) GROUP BY p.id",
        ids,
    )
    assert rows == [("done", 1)] * PAGES


@pytest.mark.parametrize("service", ["engine", "redis", "postgres"])
def test_killed_services_lose_nothing(fleet: Any, drawn: Draw, service: str) -> None:
    jobs = submit(fleet, drawn, service)
    eventually(lambda: count_done(jobs) >= 10)
    os.kill(fleet.pid(service), signal.SIGKILL)
    expect_all_read_once(fleet, jobs, service)


def test_a_redis_that_was_emptied_loses_nothing(fleet: Any, drawn: Draw) -> None:
    jobs = submit(fleet, drawn, "flushed")
    eventually(lambda: count_done(jobs) >= 10)
    with Redis.from_url(fleet.settings.redis_url.get_secret_value()) as redis:
        redis.flushall()
    expect_all_read_once(fleet, jobs, "flushed")


@contextmanager
def frozen(fleet: Any) -> Iterator[None]:
    redis = fleet.pid("redis")
    os.kill(redis, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis, signal.SIGCONT)


@contextmanager
def full(fleet: Any) -> Iterator[None]:
    """Full with what is not the fleet's: nothing that it takes out makes room."""
    with Redis.from_url(fleet.settings.redis_url.get_secret_value()) as redis:
        most = redis.config_get("maxmemory")["maxmemory"] or 0
        redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            redis.config_set("maxmemory", most)


@pytest.mark.gate
@pytest.mark.parametrize("trouble", [frozen, full])
def test_a_fleet_works_on_from_postgres_without_redis(
    fleet: Any, drawn: Draw, trouble: Callable[[Any], AbstractContextManager[None]]
) -> None:
    """What is handed over, cut and read meanwhile goes through Postgres alone, and nothing counts as a death."""
    name = trouble.__name__
    with trouble(fleet):
        jobs = submit(fleet, drawn, name)
        expect_all_read_once(fleet, jobs, name)
    ids = [job.id for job in jobs]
    assert fleet.query("SELECT max(deaths), max(attempt) FROM parts WHERE job_id = ANY(%s)", ids) == [(0, 1)]
    expect_all_read_once(fleet, submit(fleet, drawn, f"after {name}"), f"after {name}")


def test_redis_is_empty_when_all_is_read(fleet: Any) -> None:
    with Redis.from_url(fleet.settings.redis_url.get_secret_value()) as redis:
        eventually(lambda: not keys_left(redis), what="an empty Redis")


@contextmanager
def stopped(pid: int) -> Iterator[Callable[[], None]]:
    """Stop a process for the length of the block, or until what is yielded is called."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.gate
def test_a_split_whose_worker_is_killed_loses_nothing(fleet: Any) -> None:
    def split() -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = fleet.query(
            "SELECT state FROM parts WHERE job_id = %s AND stage = 'split'", job.id
        )
        return rows

    ingest, engine = fleet.pid("ingest"), fleet.pid("engine")
    with stopped(engine) as go_on:
        job = fleet.client.submit(ReadBundle(bundle_files.three_documents()))
        eventually(split, what="the document to be cut")
        with stopped(ingest) as split_now:
            go_on()
            eventually(lambda: split() == [("queued",)], what="the pages to be read")
            with psycopg.connect(fleet.settings.database_url.get_secret_value()) as holding:
                holding.execute("LOCK TABLE results IN ACCESS EXCLUSIVE MODE")
                split_now()
                eventually(lambda: split() == [("running",)], what="the split to be claimed")
                os.kill(fleet.pid("ingest"), signal.SIGKILL)
    documents = job.result(timeout=WAIT_S).documents
    assert [document.part.pages for document in documents] == [(1, 2), (3,), (4,)]
    rows = fleet.query(
        "SELECT p.stage, p.state, count(r.part_id), p.deaths > 0 FROM parts p LEFT JOIN results r ON r.part_id = p.id"
        " WHERE p.job_id = %s AND p.stage IN ('read', 'split') GROUP BY p.id ORDER BY p.ordinal",
        job.id,
    )
    assert rows == [*[("read", "done", 1, False)] * 4, ("split", "done", 1, True)]


KEY = "sesame"


def engine_of(fleet: Any) -> int | None:
    pid: int | None
    (pid,) = [service.pid for service in fleet.fleet.services() if service.name == "engine"]
    return pid


@pytest.mark.gate
def test_pages_wait_for_an_absent_server(run_fleet: RunFleet, drawn: Draw) -> None:
    behaviour = Behaviour(key=KEY, takes_s=0.2)
    with (
        serving(behaviour) as first,
        run_fleet(
            "served",
            engine="openai",
            engine_url=first.url,
            engine_api_key=SecretStr(KEY),
            engine_ready_timeout=2,
            decode_processes=1,
        ) as fleet,
    ):
        before = fleet.client.submit(ReadDocument(drawn("before")))
        assert before.result(timeout=WAIT_S).pages[0].text == behaviour.text
        engine = engine_of(fleet)
        first.kill()
        jobs = fleet.client.submit_many(ReadDocument(drawn(f"page {number}")) for number in range(4))
        eventually(lambda: engine_of(fleet) != engine, what="the worker's end")
        with serving(behaviour, first.server_port):
            jobs.wait(timeout=WAIT_S)

        assert {job.refresh().state for job in jobs} == {JobState.SUCCEEDED}
