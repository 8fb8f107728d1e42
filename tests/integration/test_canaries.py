"""An engine that mixes pages, or is another than before, is found by canary pages; what it read is read again."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pecia import Client, Job, ReadDocument
from pecia_schemas.results import Document
from pecia_workers.observability.metrics import REGISTRY
from pecia_workers.protocol.base import EngineDistrustedError
from pecia_workers.protocol.parts import RuntimeLostError
from tests.shared.canary_reader import CONSTANT, Reader
from tests.shared.chat_server import ChatServerDouble, only_page, serving
from tests.shared.house import House
from tests.shared.limits import WAIT_S

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def model(reader: Reader) -> Iterator[ChatServerDouble]:
    with serving(reader) as server:
        yield server


@pytest.fixture
def pages(client: Client, printed: bytes) -> Callable[[int], list[Job[Document]]]:
    """Submits so many pages, the text of each being another."""

    def submit(count: int) -> list[Job[Document]]:
        return list(client.submit_many(ReadDocument(printed, instructions=f"Page {n}") for n in range(count)))

    return submit


def work(house: House, model: ChatServerDouble, **settings: Any) -> list[type[BaseException] | None]:
    """Run what waits, until nothing does or the worker has to end; return how its parts ended."""

    async def story() -> list[type[BaseException] | None]:
        own: dict[str, Any] = {"engine": "openai", "engine_url": model.url, "witness": "none", "cache": False}
        async with house.working(**(own | settings)) as runtime:
            parts = house.waiting()
            runs = (runtime.run(part, deaths=0) for part in parts)
            ends = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), WAIT_S)
            await runtime.requeue(parts)  # as the pool does when its worker ends
            return [type(end) if isinstance(end, BaseException) else None for end in ends]

    return asyncio.run(story())


def texts(jobs: Sequence[Job[Document]]) -> list[str]:
    return [only_page(job.refresh()).text for job in jobs]


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("pecia_canaries_total", {"outcome": outcome}) or 0.0


def expect_all_queued_again(house: House) -> None:
    """Nothing that was read is kept, and it is no fault of the pages."""
    assert house.query("SELECT count(*) FROM results") == [(0,)]
    assert house.query(
        """
        SELECT DISTINCT parts.state, deaths, strikes, last.reason
        FROM parts, LATERAL (
            SELECT reason FROM job_events WHERE part_id = parts.id ORDER BY sequence DESC LIMIT 1
        ) AS last
        """
    ) == [("queued", 0, 0, "canary_failed")]


def test_without_the_setting_there_is_no_canary(
    house: House, model: ChatServerDouble, reader: Reader, pages: Callable[[int], list[Job[Document]]]
) -> None:
    jobs = pages(2)
    assert work(house, model) == [None] * 2
    assert (reader.canaries, len(model.pages)) == (0, 2)
    assert texts(jobs) == ["Page 0", "Page 1"]


def test_canaries_are_no_jobs_and_nobody_is_charged_for_them(
    house: House, model: ChatServerDouble, reader: Reader, pages: Callable[[int], list[Job[Document]]]
) -> None:
    jobs, read = pages(5), counted("read")
    assert work(house, model, canary_every=2) == [None] * 5
    assert texts(jobs) == [f"Page {number}" for number in range(5)]
    assert counted("read") - read == reader.canaries > 1
    assert house.query("SELECT count(*), sum(output_tokens) FROM parts") == [(5, 10)]


@pytest.mark.parametrize("fault", [lambda _, before: before, lambda *_: CONSTANT], ids=["mixed", "swapped"])
def test_what_was_read_since_the_last_good_canary_is_read_again(
    house: House,
    model: ChatServerDouble,
    reader: Reader,
    pages: Callable[[int], list[Job[Document]]],
    fault: Callable[[str, str], str],
) -> None:
    """A cache that mixes pages, or another model, from one moment on."""
    jobs, failed = pages(6), counted("failed") + counted("leaked")

    def fail_after_the_start(truth: str, before: str) -> str:
        return fault(truth, before) if reader.canaries > 1 or not truth.startswith("This") else truth

    reader.fault = fail_after_the_start
    assert set(work(house, model, canary_every=3)) == {RuntimeLostError}
    assert counted("failed") + counted("leaked") > failed
    expect_all_queued_again(house)

    reader.fault = None
    assert work(house, model, canary_every=3) == [None] * 6
    assert texts(jobs) == [f"Page {number}" for number in range(6)]


def test_what_a_good_canary_vouched_for_stays(
    house: House, model: ChatServerDouble, reader: Reader, pages: Callable[[int], list[Job[Document]]]
) -> None:
    first = pages(3)
    assert work(house, model, canary_every=3) == [None] * 3
    second = pages(3)
    last = reader.canaries + 1  # that of the start
    reader.fault = lambda truth, _: CONSTANT if reader.canaries > last else truth
    assert set(work(house, model, canary_every=3)) == {RuntimeLostError}
    assert texts(first) == [f"Page {number}" for number in range(3)]
    assert {job.refresh().done for job in second} == {0}


def test_a_worker_does_not_start_on_a_model_that_does_not_read(
    house: House, model: ChatServerDouble, reader: Reader, pages: Callable[[int], list[Job[Document]]]
) -> None:
    pages(1)
    reader.fault = lambda *_: CONSTANT
    with pytest.raises(EngineDistrustedError):
        work(house, model, canary_every=20)
    assert len(model.pages) == 1


def test_the_cpu_engine_reads_canaries_right(
    house: House, model: ChatServerDouble, client: Client, printed: bytes
) -> None:
    job, read = client.submit(ReadDocument(printed)), counted("read")
    assert work(house, model, engine="rapidocr", canary_every=1) == [None]
    assert counted("read") == read + 2
    assert only_page(job.refresh()).engine == "rapidocr"
