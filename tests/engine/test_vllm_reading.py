"""Pages read by real vLLM through everything that stands before it: decoding, admission, the ladder and fields."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from pydantic import BaseModel, Field

from offline import KV_CACHE_BYTES, SIZES, png
from pecia import Client, Page, ReadDocument, Verdict
from pecia_schemas.results import Change
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.worker.runtime import Runtime

pytestmark = pytest.mark.usefixtures("_forked_cores")

MOST_TOKENS = 100
Read = Callable[..., Page]
Start = Callable[..., AbstractContextManager[Read]]


SCAN = png(0, side=420)
READER = Path(__file__).parent / "reader"
"""A small model that reads, and slips with what they say."""


class Drug(BaseModel):
    name: str = Field(max_length=8)
    form: Literal["tablet", "syrup"]


class Form(BaseModel):
    patient: str = Field(max_length=8)
    drugs: list[Drug] = Field(min_length=1, max_length=2)
    urgent: bool


@pytest.fixture
def reader(stores: dict[str, str], tmp_path: Path) -> Start:
    """Starts a worker on a checkpoint and gives what reads one page with it after the other."""
    urls = {name.removeprefix("PECIA_").lower(): url for name, url in stores.items()}
    sizes = {**SIZES, "kv_cache_bytes": KV_CACHE_BYTES, "max_output_tokens": MOST_TOKENS}
    rest = {
        "engine": "vllm",
        "decode_processes": 1,
        "spool_dir": str(tmp_path),
        "log_level": "warning",
        "log_probabilities": False,  # of weights that were drawn by lot, nothing is likely
    }

    @contextmanager
    def start(checkpoint: Path, **changes: Any) -> Iterator[Read]:
        given = {**urls, **sizes, **rest, "model": str(checkpoint), **changes}
        runtime = Runtime(WorkerSettings.model_validate(given), {Stage.READ})
        with (
            Client(urls["database_url"], urls["redis_url"], urls["payload_url"]) as client,
            asyncio.Runner() as runner,
        ):

            def read(source: bytes = SCAN, **options: Any) -> Page:
                job = client.submit(ReadDocument(source, **options))
                with psycopg.connect(urls["database_url"]) as connection:
                    query = "SELECT id FROM parts WHERE job_id = %s"
                    ((part,),) = connection.execute(query, (job.id,)).fetchall()
                runner.run(runtime.run(part, deaths=0))
                return job.result(timeout=0).pages[0]

            try:
                runner.run(runtime.start())
                yield read
            finally:
                runner.run(runtime.stop())

    return start


def expect_all_accounted(page: Page) -> None:
    thrown_away = [attempt.usage for attempt in page.attempts]
    assert page.usage.wasted == sum(usage.prompt + usage.output for usage in thrown_away)
    assert page.usage.output > sum(usage.output for usage in thrown_away)
    assert page.usage.prompt > sum(usage.prompt for usage in thrown_away)


def test_a_looping_model_is_asked_in_every_way(reader: Start, looping_checkpoint: Path) -> None:
    with reader(looping_checkpoint) as read:
        page = read()

    assert (page.verdict, page.change) == (Verdict.REPETITION, None)
    assert set(page.text) == {"a"}
    assert [(one.change, one.verdict) for one in page.attempts] == [
        (Change.TEMPERATURE, Verdict.REPETITION),
        (Change.PENALTY, Verdict.REPETITION),
        (Change.SMALLER, Verdict.REPETITION),
    ]
    *_, smaller = page.attempts
    assert 0 < smaller.usage.image < page.attempts[0].usage.image
    expect_all_accounted(page)


def test_fields_are_json_of_their_schema_beside_the_text(reader: Start, checkpoint: Path) -> None:
    with reader(checkpoint, max_output_tokens=400, max_readings=1) as read:
        plain = read()
        page = read(fields=Form)

    found = page.fields_as(Form)
    assert found
    assert found.drugs
    assert page.text == plain.text
    assert page.fields_text is None
    assert page.usage.cached - plain.usage.cached >= plain.usage.image, (
        "the form's prompt begins as the page's"
    )


@pytest.mark.usefixtures("_avx512")
def test_a_model_reads_slips_and_what_it_misreads_is_not_ok(reader: Start) -> None:
    heard = {"log_probabilities": True, "witness": "ocr", "witness_processes": 1}
    with reader(READER, max_output_tokens=400, **heard) as read:
        pages = {path.stem: read(path.read_bytes()) for path in sorted(READER.glob("slips/*.png"))}

    for name, page in pages.items():
        says = (READER / "slips" / f"{name}.txt").read_text()
        assert page.witness
        assert page.confidence
        if name.startswith("right"):
            assert (page.text.split(), page.verdict) == (says.split(), Verdict.OK)
        else:
            assert page.text.split() != says.split()
            assert page.verdict.needs_review
            assert page.doubts
