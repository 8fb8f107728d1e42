"""What a fake fleet is beside a twin of the real one: at once, scripted, aged, and open to assertions."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from pecia import CaptionVideo, Client, FailureCode, JobState, Lane, ReadDocument, Verdict, Webhook, errors
from pecia.testing import FakeFleet, NotFakedError, ScriptError
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded, noise
from tests.shared.synced import synced

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        yield fleet


@pytest.fixture
def client(fleet: FakeFleet) -> Client:
    return fleet.client()


def test_a_task_without_an_answer_is_read_all_the_same_until_the_end_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PECIA_DATABASE_URL", "postgresql://production/pecia")
    monkeypatch.setenv("PECIA_CLIENT_NAME", "production")
    with FakeFleet() as fleet, fleet.client() as client:
        assert isinstance(client, Client)
        assert client.submit(ReadDocument(b"scan")).result().text == "fake text"
        captions = client.submit(CaptionVideo(b"video")).result()
        assert [segment.text for segment in captions.segments] == ["fake caption"]
        assert captions.summary is None
        assert {one.client for one in fleet.submitted} == {"test"}
    with pytest.raises(errors.DatabaseUnavailableError):
        client.submit(ReadDocument(b"scan"))


def test_what_was_said_last_applies_as_often_as_it_was_said(fleet: FakeFleet, client: Client) -> None:
    fleet.answers(ReadDocument, text="always")
    fleet.answers(ReadDocument, text="twice", times=2)
    fleet.fails(ReadDocument, FailureCode.ENGINE_ERROR, times=1)
    jobs = client.submit_many(ReadDocument(b"scan") for _ in range(4)).wait()
    assert [job.state for job in jobs] == [JobState.FAILED, *[JobState.SUCCEEDED] * 3]
    assert [job.result().text for job in list(jobs)[1:]] == ["twice", "twice", "always"]


def test_a_whole_document_comes_back_whatever_pages_are_asked_for(fleet: FakeFleet, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["", "x"])
    document = client.submit(ReadDocument(b"scan")).result()
    assert [(page.blank, page.verdict) for page in document.pages] == [
        (True, Verdict.BLANK),
        (False, Verdict.OK),
    ]
    fleet.answers(ReadDocument, document)
    assert client.submit(ReadDocument(b"scan", pages="2,7")).result() == document


@pytest.mark.parametrize(
    "said",
    [
        {"pages": []},
        {"answer": 7},
        {"answer": lambda _task: None},
        {"pages": [object()]},
        {"pages": ["one", "two"]},
    ],
)
def test_an_answer_that_is_none_is_the_tests_own_fault(fleet: FakeFleet, said: dict[str, Any]) -> None:
    fleet.answers(ReadDocument, **said)
    with pytest.raises(ScriptError):
        fleet.client().submit(ReadDocument(encoded(noise(), "PNG"))).wait(0)


@pytest.mark.parametrize("said", [{"text": "a", "pages": ["b"]}, {}])
def test_one_answer_is_given_at_a_time(fleet: FakeFleet, said: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="one of"):
        fleet.answers(ReadDocument, **said)


def test_a_held_fleet_moves_when_it_is_told() -> None:
    with FakeFleet(held=True) as fleet:
        jobs = [fleet.client().submit(ReadDocument(b"scan")) for _ in range(3)]
        with pytest.raises(errors.JobTimeoutError):
            jobs[0].wait(0)
        assert [fleet.start(job) for job in jobs[:2]] == [True, True]
        assert [job.refresh().state for job in jobs] == [JobState.RUNNING] * 2 + [JobState.QUEUED]
        fleet.finish(jobs[0])
        assert [job.refresh().state for job in jobs[:2]] == [JobState.SUCCEEDED, JobState.RUNNING]
        fleet.release()
        assert {job.wait(0).state for job in jobs} == {JobState.SUCCEEDED}
        fleet.hold()
        held = fleet.client().submit(ReadDocument(b"scan"))
        fleet.finish(held.id)
        assert held.wait(0).state is JobState.SUCCEEDED


def test_an_answer_may_use_a_client_of_the_fleet(fleet: FakeFleet, client: Client) -> None:
    fleet.answers(ReadDocument, lambda _task: f"{len(list(client.jobs()))} jobs")
    assert client.submit(ReadDocument(b"scan")).result().text == "1 jobs"


def test_outages_may_lie_in_each_other_and_jobs_of_one_run_after_it(fleet: FakeFleet, client: Client) -> None:
    with fleet.outage("postgres"):
        with fleet.outage("postgres"):
            pass
        with pytest.raises(errors.DatabaseUnavailableError):
            list(client.jobs())
    with fleet.outage("redis"), fleet.outage("workers"):
        job = client.submit(ReadDocument(b"scan"), webhook="https://example.org/hook")
        assert job.refresh().state is JobState.QUEUED
    assert [callback.notice.data.job_id for callback in fleet.callbacks] == [job.id]
    with pytest.raises(ValueError, match="postgres, redis"), fleet.outage("mysql"):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        pass


@pytest.mark.parametrize("asked", [{"limit": -1}, {"page_size": 0}])
def test_pages_of_no_jobs_are_refused_by_both_clients(fleet: FakeFleet, asked: dict[str, Any]) -> None:
    for client in (fleet.client(), fleet.async_client()):
        with pytest.raises(errors.InvalidOptionError, match="limit"):
            client.jobs(**asked)


def test_a_quality_that_pictures_do_not_have_is_refused_before_anybody_waits(tmp_path: Any) -> None:
    with FakeFleet(held=True) as fleet:
        job = fleet.client().submit(ReadDocument(b"scan"))
        with pytest.raises(errors.InvalidFormatError, match="1 to 95"):
            job.save(tmp_path / "scan.pdf", quality=96, timeout=0)


def test_what_was_submitted_can_be_looked_at(tmp_path: Any) -> None:
    scan = tmp_path / "scan.png"
    scan.write_bytes(PNG)
    with FakeFleet() as fleet:
        client = fleet.client("ward-3")
        hook = Webhook.model_validate({"url": "https://example.org/hook"})
        task = ReadDocument(scan, language="ko")
        how: dict[str, Any] = {"priority": Lane.URGENT, "idempotency_key": "k"}
        job = client.submit(task, webhook=hook, metadata={"a": "b"}, **how)
        client.submit(task, **how)
        (submitted,) = fleet.submitted
        assert (submitted.id, submitted.content, submitted.task.source) == (job.id, PNG, PNG)
        assert submitted.task == ReadDocument(PNG, language="ko")
        assert (submitted.priority, submitted.idempotency_key, submitted.webhook) == ("urgent", "k", hook)
        assert (submitted.metadata, submitted.client) == ({"a": "b"}, "ward-3")
        assert (submitted.not_before, submitted.expires) == (None, None)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.usage(),
        lambda client: client.dead_parts(),
        lambda client: list(client.audit()),
        lambda client: list(client.pages()),
        lambda client: client.endpoints(),
        lambda client: client.add_endpoint("https://example.org/hook"),
        lambda client: client.deliveries(),
        lambda client: client.purge(metadata={"ward": "7"}),
        lambda client: client.submit(ReadDocument(b"scan")).usage(),
        lambda client: client.submit(ReadDocument(b"scan")).retry([uuid4()]),
    ],
)
def test_what_only_a_real_fleet_has_is_refused_plainly(fleet: FakeFleet, call: Callable[[Any], Any]) -> None:
    with synced(fleet.async_client()) as awaited:
        for client in (fleet.client(), awaited):
            with pytest.raises(NotFakedError, match="`pecia up`"):
                call(client)


def test_many_threads_and_coroutines_share_a_fleet(fleet: FakeFleet, client: Client) -> None:
    fleet.answers(ReadDocument, lambda task: task.source.decode())

    def read(number: int) -> str:
        return client.submit(ReadDocument(str(number).encode())).result(timeout=WAIT_S).text

    async def read_all() -> list[str]:
        async with fleet.async_client() as awaited:
            jobs = [awaited.submit(ReadDocument(str(number).encode())) for number in range(50)]
            return [(await job.result(timeout=WAIT_S)).text for job in await asyncio.gather(*jobs)]

    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(read, range(100)))
        awaited = threads.submit(asyncio.run, read_all()).result()
    assert texts == [str(number) for number in range(100)]
    assert awaited == texts[:50]
    assert len(fleet.submitted) == 150
