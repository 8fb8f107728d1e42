"""Every failure code can be reached: for each that no input has, a task that a real worker brings to exactly that end.

A table of scenarios that are run, not marks on tests elsewhere: a mark says what a test is about, and stays when the
test no longer gets there.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pecia import CaptionVideo, Client, ClientSettings, DocumentType, Job, ReadDocument
from pecia_schemas.encryption import new_key
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import Stage
from pecia_workers.engines.simulated import InstantEngine
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import find_orphaned, requeue_orphaned
from pecia_workers.protocol.base import Capabilities, EngineError, EngineRequest, Generation
from pecia_workers.worker import runtime as runtimes
from tests.shared import hand_made_pdfs as pdfs
from tests.shared import pictures
from tests.shared.every_input import EVERY_INPUT
from tests.shared.house import House, claimed
from tests.shared.videos import video

LIMITS: dict[str, Any] = {
    "max_video_duration": 1,
    "max_attempts": 1,
    "source_allow": ("127.0.0.0/8",),
    "source_ports": (),
}


class Clumsy(InstantEngine):
    """Reads English, and some types of documents badly."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = Capabilities(
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
            case DocumentType.LAB_RESULT:
                raise ArithmeticError
        return await super().generate(request)


@dataclass(frozen=True)
class Hospital:
    """The stores of one fleet and a client of it."""

    client: Client
    house: House

    def read(self, content: bytes | str, **options: Any) -> Job[Any]:
        return self.client.submit(ReadDocument(content, **options))

    def file_of(self, job: Job[Any]) -> Path:
        ((name,),) = self.house.query("SELECT payload FROM jobs WHERE id = %s", job.id)
        (file,) = Path(self.house.payload_url).rglob(f"*{name}*")
        return file


def a_video_that_lasts_too_long(hospital: Hospital) -> Job[Any]:
    hospital.house.query(
        "INSERT INTO workers (name, role, stages, host, pid, seen_at)"
        " VALUES ('w', 'engine', '{caption}', 'h', 1, now() + interval '1 hour')"
    )
    return hospital.client.submit(CaptionVideo(video(2)))


def a_document_that_left_the_store(hospital: Hospital) -> Job[Any]:
    job = hospital.read(pdfs.blank_pdf(3))
    hospital.file_of(job).unlink()
    return job


def a_document_that_changed_in_the_store(hospital: Hospital) -> Job[Any]:
    job = hospital.read(pdfs.blank_pdf(4))
    file = hospital.file_of(job)
    file.write_bytes(file.read_bytes().replace(b"72", b"73"))
    return job


def a_document_under_a_key_of_the_client_alone(hospital: Hospital) -> Job[Any]:
    keys = SecretStr(json.dumps({"clients": new_key()}))
    with Client(**hospital.house.urls, settings=ClientSettings(encryption_keys=keys)) as client:
        job_id = client.submit(ReadDocument(line())).id
    return hospital.client.job(job_id)


def a_page_on_which_three_workers_died(hospital: Hospital) -> Job[Any]:
    job = hospital.read(line())
    part = hospital.house.part_of(job)

    async def die(*ledgers: Ledger) -> None:
        for deaths, ledger in enumerate(ledgers):
            await claimed(ledger, part, deaths=deaths)
            orphaned = await find_orphaned(ledger._database, limit=10)
            await requeue_orphaned(ledger._database, orphaned, max_deaths=3)

    hospital.house.play(die, "first", "second", "third")
    return job


def line() -> bytes:
    return pictures.encoded(pictures.line(), "PNG")


FIELDS = {"type": "object", "properties": {"drug": {"type": "string"}}}
SCENARIOS: dict[FailureCode, Callable[[Hospital], Job[Any]]] = {
    FailureCode.LANGUAGE_UNAVAILABLE: lambda hospital: hospital.read(line(), language="ko"),
    FailureCode.FIELDS_UNAVAILABLE: lambda hospital: hospital.read(line(), fields=FIELDS),
    FailureCode.INSTRUCTIONS_UNAVAILABLE: lambda hospital: hospital.read(
        line(), instructions="Copy the table alone."
    ),
    FailureCode.ADAPTER_UNAVAILABLE: lambda hospital: hospital.read(line(), adapter="radiology"),
    FailureCode.TOO_LONG: a_video_that_lasts_too_long,
    FailureCode.SOURCE_UNREACHABLE: lambda hospital: hospital.read("http://127.0.0.1:1/scan.pdf"),
    FailureCode.PAYLOAD_MISSING: a_document_that_left_the_store,
    FailureCode.PAYLOAD_CORRUPT: a_document_that_changed_in_the_store,
    FailureCode.KEY_UNAVAILABLE: a_document_under_a_key_of_the_client_alone,
    FailureCode.ENGINE_ERROR: lambda hospital: hospital.read(line(), document_type=DocumentType.CHART),
    FailureCode.POISONED: a_page_on_which_three_workers_died,
    FailureCode.INTERNAL: lambda hospital: hospital.read(line(), document_type=DocumentType.LAB_RESULT),
}


TIMEOUTS: dict[FailureCode, dict[str, Any]] = {
    FailureCode.DECODE_TIMEOUT: {"decode_timeout": 0.01},
    FailureCode.TIMEOUT: {"part_timeout": 0.01},
}


def test_every_code_has_a_scenario() -> None:
    """Here, or in the table of inputs that a whole fleet is given."""
    of_inputs = {row.expected.code for row in EVERY_INPUT}
    assert {*SCENARIOS, *of_inputs, *TIMEOUTS} >= set(FailureCode)
    assert not set(SCENARIOS) & of_inputs


@pytest.mark.usefixtures("shared_template")
def test_every_scenario_has_its_code(client: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "create_engine", lambda _: Clumsy())
    jobs = {code: scenario(Hospital(client, house)) for code, scenario in SCENARIOS.items()}
    house.work_off(*jobs.values(), together=True, engine="rapidocr", **LIMITS)
    ends = {code: job.failure and job.failure.code for code, job in jobs.items()}
    assert ends == {code: code for code in SCENARIOS}


@pytest.mark.parametrize(("code", "limit"), TIMEOUTS.items())
def test_a_page_that_takes_too_long_has_its_code(
    client: Client, house: House, code: FailureCode, limit: dict[str, Any]
) -> None:
    """Alone: a limit that is sure to end it would end the pages of the other scenarios too."""
    job = client.submit(ReadDocument(pdfs.forms_of_forms(9)))
    house.work_off(job, max_attempts=1, **limit)
    assert job.failure is not None
    assert job.failure.code is code


def test_every_code_says_what_happened_and_what_to_do() -> None:
    for code in FailureCode:
        for sentence in (code.meaning, code.advice):
            assert sentence[0].isupper(), code
            assert sentence.endswith("."), code
        assert code.meaning != code.advice
