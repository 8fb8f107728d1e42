"""A job that no running worker can serve says so, and what to start; what operators see of open work at a glance."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, Job, ReadDocument
from pecia.cli import watching
from pecia.cli.backfill import _uncut
from pecia.cli.watching import follow, unserved_reported
from pecia.errors import JobTimeoutError
from pecia_workers.ledger.standing import MOST_JOBS, Glance, engines_on_duty, glance, roles_on_duty, unserved
from tests.shared.fixture_types import Make, Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually

OCR = {
    "model": "PP-OCR",
    "languages": ["en", "zh"],
    "fields": False,
    "adapters": [],
    "slots": 3,
    "tokens": None,
}
VLM = OCR | {"model": "Qwen", "languages": None, "fields": True, "adapters": ["radiology"], "tokens": 9_000}
FIELDS = {"type": "object", "properties": {"dose": {"type": "string"}}}


@pytest.fixture
def on_duty(house: House) -> Callable[..., None]:
    """Puts a worker on duty for as long as the test takes, as it would have registered."""

    def register(
        name: str, *stages: str, capabilities: dict[str, Any] | None = None, silent_s: int = -3_600
    ) -> None:
        house.query(
            """INSERT INTO workers (name, role, stages, host, pid, engine, capabilities, seen_at)
               VALUES (%s, 'engine', %s, 'here', 1, 'some', %s, now() - %s)""",
            *(name, list(stages), capabilities and Jsonb(capabilities), timedelta(seconds=silent_s)),
        )

    return register


@pytest.fixture
def page_job(client: Client, picture: Picture) -> Callable[..., Job[Any]]:
    """Submits a page that goes straight to its lane."""
    return lambda **asked: client.submit(ReadDocument(picture(), **asked))


@pytest.mark.gate
def test_a_page_that_nobody_reads_says_so_until_somebody_does(page_job: Make, on_duty: Make) -> None:
    job = page_job(language="ko", fields=FIELDS, adapter="radiology")
    on_duty("ingest", "ingest")
    on_duty("dead", "read", capabilities=VLM, silent_s=60)
    assert job.hint() == "no running worker reads pages; start `pecia worker engine`"
    on_duty("alive", "read", capabilities=VLM)
    assert job.hint() is None


@pytest.mark.gate
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"language": "ko"}, "language ko"),
        ({"fields": FIELDS}, "fields"),
        ({"adapter": "radiology"}, "adapter radiology"),
        ({"adapter": "radiology", "fields": FIELDS}, "adapter radiology.*; no running worker fills fields"),
        ({"language": "en"}, None),
        ({}, None),
    ],
)
def test_a_page_says_what_those_who_read_cannot_do(
    page_job: Make, on_duty: Make, asked: dict[str, Any], said: str | None
) -> None:
    job = page_job(**asked)
    on_duty("ocr", "read", capabilities=OCR)
    on_duty("captions alone", "caption", capabilities=VLM)
    hint = job.hint()
    assert re.search(said, hint or "") if said else hint is None
    on_duty("of a version before", "read")
    assert job.hint() is None


@pytest.mark.gate
def test_a_job_that_is_not_due_or_over_has_no_hint(client: Client, page_job: Make, picture: Picture) -> None:
    later = client.submit(ReadDocument(picture(shade=1)), not_before=timedelta(hours=1))
    over = page_job()
    over.cancel()
    assert client.group([later, over]).hints() == {}


@pytest.mark.gate
def test_each_job_of_a_group_says_its_own(client: Client, page_job: Make, on_duty: Make) -> None:
    video = client.submit(CaptionVideo(b"\0\0\0\x18ftypmp42"))
    page = page_job()
    on_duty("ocr", "read", capabilities=OCR)
    assert client.group([video, page]).hints() == {
        video.id: "no running worker cuts documents; start `pecia worker ingest`"
    }


@pytest.mark.gate
def test_an_operator_sees_who_is_on_duty_and_what_waits(house: House, page_job: Make, on_duty: Make) -> None:
    on_duty("ocr", "read", capabilities=OCR)
    on_duty("gone", "read", capabilities=VLM, silent_s=60)
    jobs = [page_job(fields=FIELDS), page_job(), page_job(fields=FIELDS, language="ko")]
    assert len({job.id for job in jobs}) == 3
    questions = (roles_on_duty, engines_on_duty, unserved)

    async def ask(database: AsyncEngine) -> list[Any]:
        async with database.connect() as connection:
            return [await connection.run_sync(question) for question in questions]

    roles, (worker,), lacks = house.ask(ask)
    assert roles == {"engine": 1}
    assert (worker.name, worker.capabilities) == ("ocr", OCR)
    assert [(lack.need, lack.value, lack.parts) for lack in lacks] == [
        ("fields", "true", 2),
        ("language", "ko", 1),
    ]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("caption", "no running worker captions videos; start one with PECIA_ENGINE=vllm or openai"),
        ("summarize", "summaries"),
    ],
)
def test_a_segment_that_was_cut_and_a_summary_say_which_engines_caption(
    client: Client, house: House, stage: str, said: str
) -> None:
    job = client.submit(CaptionVideo(b"\0\0\0\x18ftypmp42"))
    house.query("UPDATE parts SET stage = %s", stage)
    assert said in str(job.hint())


PDF_TO_BE = b"%PDF-1.4"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_UNSERVED_S", 0.05)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Returns the lines that were written so far, the last of them perhaps in part."""
    written: list[str] = []

    def read() -> list[str]:
        written.append(capsys.readouterr().err)
        return "".join(written).splitlines()

    return read


def test_what_nobody_does_is_said_once(client: Client, lines: Callable[[], list[str]]) -> None:
    group = client.submit_many([ReadDocument(PDF_TO_BE)] * 3)
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(follow, group, timeout=WAIT_S)
        eventually(lines)
        with pytest.raises(TimeoutError):
            following.result(0.5)  # it looks ten times meanwhile
        group.cancel()
    (line,) = lines()
    assert line.startswith("pecia: still waiting: no running worker cuts documents")
    assert "start `pecia worker ingest`" in line


def test_who_reads_pages_beside_is_told_only_of_documents_that_nobody_cuts(
    client: Client, picture: Picture, lines: Callable[[], list[str]]
) -> None:
    page, document = client.submit(ReadDocument(picture())), client.submit(ReadDocument(PDF_TO_BE))
    with unserved_reported(lambda: _uncut([client.group([page, document])])):
        eventually(lines)
    told = lines()
    assert "cuts documents" in told[0]
    document.cancel()
    with unserved_reported(lambda: _uncut([client.group([page, document])])), pytest.raises(JobTimeoutError):
        page.wait(0.5)
    assert lines() == told


_JOBS = """
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, finished_at)
    SELECT gen_random_uuid(), 'document.read', 'normal', %s, '{}', '', '', gen_random_uuid(), 'test',
           now() - CAST(%s AS interval)
    FROM generate_series(1, %s)
"""
_PARTS = """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, state, cost, engine, finished_at)
    SELECT gen_random_uuid(), id, 'read', 0, 'normal', 'done', 1, 'cpu', finished_at FROM jobs WHERE state = 'succeeded'
"""


def look(house: House) -> Glance:
    async def ask(database: AsyncEngine) -> Glance:
        async with database.connect() as connection:
            return await connection.run_sync(glance)

    return house.ask(ask)


def test_open_jobs_are_counted_and_what_ended_in_the_last_minute(house: House) -> None:
    for state, number in [("queued", 2), ("running", 1)]:
        house.query(_JOBS, state, None, number)
    for state, number in [("succeeded", 3), ("partial", 1), ("failed", 1), ("cancelled", 1)]:
        house.query(_JOBS, state, "0 s", number)
        house.query(_JOBS, state, "61 s", number)
    house.query(_PARTS)
    assert look(house) == Glance(queued=2, running=1, done=3, failed=2, parts=3)


def test_no_more_open_jobs_are_counted_than_a_glance_takes(house: House) -> None:
    house.query(_JOBS, "queued", None, MOST_JOBS + 1)
    assert look(house).queued == MOST_JOBS
