"""What parts took: written when an attempt ends, added up over attempts, and summed for whoever asks."""

from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Retry

from fixture_types import Picture
from house import House
from pecia import Client, Job, ReadDocument
from pecia_schemas.results import Timings, TokenUsage
from pecia_schemas.states import Stage
from pecia_workers.engines.base import EngineError
from pecia_workers.ledger.commit import COLUMNS, ClaimedPart, Done, Spent
from pictures import encoded, note

ONE_PAGE = TokenUsage(prompt=100, image=80, cached=16, output=30, wasted=0)
ITS_TIME = Timings(queued=1.5, decode=0.25, engine=2.0, first_token=0.5)


def row_of(house: House, job: Job[Any]) -> dict[str, Any]:
    """Return the accounts in the row of a job's only part."""
    (row,) = house.rows("SELECT * FROM parts WHERE job_id = %s", job.id)
    return {name: row[name] for name in (column.split()[0] for column in COLUMNS.split(", "))}


def test_a_page_says_what_it_took_in_row(client: Client, scribe: Any, picture: Picture, house: House) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id, engine="vllm", usage=ONE_PAGE, timings=ITS_TIME)
    assert row_of(house, job) == {
        "engine": "vllm",
        "prompt_tokens": 100,
        "image_tokens": 80,
        "cached_tokens": 16,
        "output_tokens": 30,
        "wasted_tokens": 0,
        "queued_s": 1.5,
        "decode_s": 0.25,
        "engine_s": 2.0,
        "first_token_s": 0.5,
        "saved_tokens": None,
    }


def test_a_failed_attempt_is_wasted_too(client: Client, scribe: Any, picture: Picture, house: House) -> None:
    job = client.submit(ReadDocument(picture()))
    spent = Spent(
        engine="vllm", usage=TokenUsage(prompt=100, output=7), timings=Timings(queued=1, engine=3.0)
    )
    scribe.fail(job.id, spent=spent, retry_in=timedelta())
    scribe.fail(job.id, retry_in=timedelta())  # the file could not be fetched: no engine saw it
    scribe.read(job.id, engine="rapidocr", usage=ONE_PAGE, timings=ITS_TIME)

    row = row_of(house, job)
    assert {name: row[name] for name in ("prompt_tokens", "output_tokens", "wasted_tokens")} == {
        "prompt_tokens": 200,
        "output_tokens": 37,
        "wasted_tokens": 107,
    }
    assert (row["engine"], row["queued_s"], row["engine_s"], row["first_token_s"]) == (
        "rapidocr",
        2.5,
        5.0,
        0.5,
    )


def test_without_an_engine_no_accounts(client: Client, scribe: Any, picture: Picture, house: House) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.fail(job.id)
    assert set(row_of(house, job).values()) == {None}


@pytest.mark.usefixtures("shared_template")
async def test_what_was_written_before_a_part_failed_is_wasted(client: Client, house: House) -> None:
    job = client.submit(ReadDocument(encoded(note(1, 200, 200), "PNG")))
    part = house.part_of(job)

    async with house.working({Stage.READ}, engine="simulated") as runtime:
        read = runtime._stages.handlers[Stage.READ]

        async def read_and_fail(part: ClaimedPart) -> Done:
            await read(part)
            raise EngineError

        runtime._stages.handlers[Stage.READ] = read_and_fail
        with pytest.raises(Retry):
            await runtime.run(part, deaths=0)
        assert runtime._stages.meter.spent(part, 0) is None
    row = row_of(house, job)
    assert (row["engine"], row["image_tokens"]) == ("simulated", 49)
    assert row["wasted_tokens"] == row["prompt_tokens"] + row["output_tokens"]
    assert min(row["output_tokens"], row["engine_s"], row["first_token_s"]) > 0
