"""Every failure code can be reached: for each that no input has, a task that a real worker brings to exactly that end.

A table of scenarios that are run, not marks on tests elsewhere: a mark says what a test is about, and stays when the
test no longer gets there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery.exceptions import Ignore, Retry
from pydantic import SecretStr

import hand_made_pdfs as pdfs
import pictures
from every_input import EVERY_INPUT
from pecia import CaptionVideo, Client, ClientSettings, DocumentType, Job, JobState, ReadDocument
from pecia_schemas import Failure, FailureCode, Stage
from pecia_schemas.encryption import new_key
from pecia_schemas.settings import WorkerSettings
from pecia_workers import runtime as runtimes
from pecia_workers.engines import EngineError, EngineRequest
from pecia_workers.engines.base import Capabilities, Generation
from pecia_workers.engines.simulated import InstantEngine
from pecia_workers.errors import PartFailedError
from pecia_workers.ledger import ClaimRequest, Ledger, open_database
from pecia_workers.ledger.recovery import find_orphaned, requeue_orphaned
from pecia_workers.runtime import Runtime
from videos import video

LIMITS = {
    "max_video_duration": 1,
    "max_attempts": 1,
    "part_timeout": 6,
    "source_allow": ("127.0.0.0/8",),
    "source_ports": (),
}
CLOSED_PORT = 1


class Clumsy(InstantEngine):
    """Reads English, and some types of documents badly."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="clumsy",
            model="none",
            stages=frozenset({Stage.READ}),
            languages=frozenset({"en"}),
            samples=False,
        )

    async def generate(self, request: EngineRequest) -> Generation:
        match request.workload:
            case DocumentType.CHART:
                raise EngineError
            case DocumentType.DIAGNOSIS:
                await asyncio.Event().wait()
            case DocumentType.LAB_RESULT:
                raise ArithmeticError
        return await super().generate(request)


@dataclass(frozen=True)
class Hospital:
    """The stores of one fleet and a client of it."""

    client: Client
    urls: dict[str, str]

    def read(self, content: bytes | str, **options: Any) -> Job[Any]:
        return self.client.submit(ReadDocument(content, **options))

    def query(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.urls["database_url"]) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def file_of(self, job: Job[Any]) -> Path:
        ((name,),) = self.query("SELECT payload FROM jobs WHERE id = %s", job.id)
        (file,) = Path(self.urls["payload_url"]).rglob(f"*{name}*")
        return file


Scenario = Callable[[Hospital], Awaitable[Job[Any]]]
SCENARIOS: dict[FailureCode, Scenario] = {}


def reaches(code: FailureCode) -> Callable[[Scenario], Scenario]:
    def noted(scenario: Scenario) -> Scenario:
        assert code not in SCENARIOS, code
        SCENARIOS[code] = scenario
        return scenario

    return noted


@reaches(FailureCode.LANGUAGE_UNAVAILABLE)
async def a_language_that_the_engine_does_not_know(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), language="ko")


@reaches(FailureCode.FIELDS_UNAVAILABLE)
async def fields_from_an_engine_that_fills_none(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), fields={"type": "object", "properties": {"drug": {"type": "string"}}})


@reaches(FailureCode.INSTRUCTIONS_UNAVAILABLE)
async def instructions_for_an_engine_that_takes_none(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), instructions="Copy the table alone.")


@reaches(FailureCode.ADAPTER_UNAVAILABLE)
async def an_adapter_that_the_engine_does_not_have(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), adapter="radiology")


@reaches(FailureCode.TOO_LONG)
async def a_video_that_lasts_too_long(hospital: Hospital) -> Job[Any]:
    hospital.query(
        "INSERT INTO workers (name, role, stages, host, pid) VALUES ('w', 'engine', '{caption}', 'h', 1) RETURNING 1"
    )
    return hospital.client.submit(CaptionVideo(video(2)))


@reaches(FailureCode.SOURCE_UNREACHABLE)
async def a_url_where_nobody_listens(hospital: Hospital) -> Job[Any]:
    return hospital.read(f"http://127.0.0.1:{CLOSED_PORT}/scan.pdf")


@reaches(FailureCode.PAYLOAD_MISSING)
async def a_document_that_left_the_store(hospital: Hospital) -> Job[Any]:
    job = hospital.read(pdfs.blank_pdf(3))
    hospital.file_of(job).unlink()
    return job


@reaches(FailureCode.PAYLOAD_CORRUPT)
async def a_document_that_changed_in_the_store(hospital: Hospital) -> Job[Any]:
    job = hospital.read(pdfs.blank_pdf(4))
    file = hospital.file_of(job)
    file.write_bytes(file.read_bytes().replace(b"72", b"73"))
    return job


@reaches(FailureCode.KEY_UNAVAILABLE)
async def a_document_under_a_key_of_the_client_alone(hospital: Hospital) -> Job[Any]:
    keys = SecretStr(json.dumps({"clients": new_key()}))
    with Client(**hospital.urls, settings=ClientSettings(encryption_keys=keys)) as client:
        job_id = client.submit(ReadDocument(line())).id
    return hospital.client.job(job_id)


@reaches(FailureCode.ENGINE_ERROR)
async def a_page_on_which_the_engine_fails(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), document_type=DocumentType.CHART)


@reaches(FailureCode.TIMEOUT)
async def a_page_that_takes_for_ever(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), document_type=DocumentType.DIAGNOSIS)


@reaches(FailureCode.POISONED)
async def a_page_on_which_three_workers_died(hospital: Hospital) -> Job[Any]:
    job = hospital.read(line())
    ((part,),) = hospital.query("SELECT id FROM parts WHERE job_id = %s", job.id)
    database = open_database(hospital.urls["database_url"])
    for deaths, worker in enumerate(("first", "second", "third")):
        ledger = Ledger(database, worker, announce=_nobody)
        assert await ledger.claim(ClaimRequest(part=part, deaths=deaths))
        await requeue_orphaned(database, await find_orphaned(database, limit=10), max_deaths=3)
    await database.dispose()
    return job


@reaches(FailureCode.INTERNAL)
async def a_page_on_which_something_unforeseen_happens(hospital: Hospital) -> Job[Any]:
    return hospital.read(line(), document_type=DocumentType.LAB_RESULT)


def line() -> bytes:
    return pictures.encoded(pictures.line(), "PNG")


async def _nobody(_: object) -> None:
    """Nobody to tell."""


@pytest.fixture
def hospital(client: Client, stores: dict[str, str]) -> Hospital:
    return Hospital(client, {name.removeprefix("PECIA_").lower(): url for name, url in stores.items()})


@pytest.fixture
def clumsy_settings(hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    monkeypatch.setattr(runtimes, "create_engine", lambda _: Clumsy())
    own = {"engine": "rapidocr", "decode_processes": 1, "spool_dir": str(tmp_path)}
    return WorkerSettings.model_validate({**hospital.urls, **LIMITS, **own})


async def run_to_its_end(runtime: Runtime, hospital: Hospital, job: Job[Any]) -> Failure | None:
    """Have the worker run what is left of a job, and return why it failed."""
    while parts := hospital.query(
        "SELECT id FROM parts WHERE job_id = %s AND state IN ('queued', 'running')", job.id
    ):
        for (part,) in parts:
            with suppress(PartFailedError, Retry, Ignore):
                await runtime.run(part, deaths=0)
    assert job.refresh().state is JobState.FAILED
    return job.failure


def test_every_code_has_a_scenario() -> None:
    """Here, or in the table of inputs that a whole fleet is given."""
    of_inputs = {row.expected.code for row in EVERY_INPUT}
    assert set(SCENARIOS) | of_inputs >= set(FailureCode)
    assert not set(SCENARIOS) & of_inputs


@pytest.mark.usefixtures("shared_template")
def test_every_scenario_ends_with_its_code(hospital: Hospital, clumsy_settings: WorkerSettings) -> None:
    ends: dict[FailureCode, FailureCode | None] = {}

    async def story() -> None:
        runtime = Runtime(clumsy_settings, {Stage.INGEST, Stage.READ})
        try:
            await runtime.start()
            for code, scenario in SCENARIOS.items():
                failure = await run_to_its_end(runtime, hospital, await scenario(hospital))
                ends[code] = failure.code if failure else None
        finally:
            await runtime.stop()

    asyncio.run(story())
    assert ends == {code: code for code in SCENARIOS}


def test_every_code_says_what_happened_and_what_to_do() -> None:
    for code in FailureCode:
        for sentence in (code.meaning, code.advice):
            assert sentence[0].isupper(), code
            assert sentence.endswith("."), code
        assert code.meaning != code.advice
