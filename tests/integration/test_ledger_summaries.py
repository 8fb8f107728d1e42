"""The summary of a video waits for its segments, however they end, and is written once."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from house import House, claimed
from pecia import CaptionVideo, Client, JobState
from pecia.job import AnyJob
from pecia_schemas.states import Stage
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import find_orphaned, relay_due, requeue_orphaned
from relaying import RelayingBus


@pytest.fixture
def job(client: Client, scribe: Any) -> AnyJob:
    job = client.submit(CaptionVideo(b"\0\0\0\x18ftypmp42"))
    scribe.cut_video(job.id, 3)
    return job.refresh()


@pytest.fixture
def due(house: House) -> Callable[[], set[Stage]]:
    """The stages of the parts that the relay would publish now; it does."""

    async def relayed(database: AsyncEngine) -> set[Stage]:
        stages: set[Stage] = set()

        async def publish(messages: Any) -> None:
            stages.update(message.stage for message in messages)

        bus = RelayingBus(house.redis_url, publish)
        await relay_due(database, bus, limit=100)
        await bus.close()
        return stages

    return lambda: house.ask(relayed)


def test_the_summary_comes_after_the_last_segment_even_if_one_failed(
    job: AnyJob, scribe: Any, due: Callable[[], set[Stage]]
) -> None:
    assert job.progress.total == 4
    assert due() == {Stage.CAPTION}
    scribe.caption(job.id, 2)
    scribe.fail(job.id, 0, stage=Stage.CAPTION)
    assert due() == set()

    scribe.caption(job.id, 1)

    assert due() == {Stage.SUMMARIZE}
    assert job.refresh().state is JobState.RUNNING
    scribe.summarize(job.id, 3)
    assert job.refresh().state is JobState.PARTIAL
    assert (job.progress.done, job.progress.failed) == (3, 1)


@pytest.mark.parametrize("end", ["revoked", "poisoned"])
def test_the_summary_comes_too_if_the_last_segment_ends_on_another_way(
    job: AnyJob, scribe: Any, house: House, due: Callable[[], set[Stage]], end: str
) -> None:
    scribe.caption(job.id, 0)
    scribe.caption(job.id, 1)
    due()
    ((last,),) = house.query("SELECT id FROM parts WHERE stage = 'caption' AND ordinal = 2")

    async def lose(ledger: Ledger) -> None:
        await claimed(ledger, last)
        if end == "revoked":
            await ledger.revoke(last)
        else:
            orphaned = await find_orphaned(ledger._database, limit=10)
            await requeue_orphaned(ledger._database, orphaned, max_deaths=1)

    house.play(lose)

    assert due() == {Stage.SUMMARIZE}


def test_a_summary_that_failed_alone_is_retried_at_once(job: AnyJob, scribe: Any) -> None:
    for ordinal in range(3):
        scribe.caption(job.id, ordinal)
    scribe.fail(job.id, 3, stage=Stage.SUMMARIZE)
    assert job.refresh().state is JobState.PARTIAL
    job.retry()
    scribe.summarize(job.id, 3)
    assert job.refresh().state is JobState.SUCCEEDED


def test_a_cancelled_video_goes_on_by_retry(job: AnyJob, scribe: Any, due: Callable[[], set[Stage]]) -> None:
    scribe.caption(job.id, 0)
    job.cancel()
    assert (job.state, job.progress.cancelled) == (JobState.CANCELLED, 3)
    job.retry()
    scribe.caption(job.id, 1)
    assert due() == set()
    scribe.caption(job.id, 2)
    assert due() == {Stage.SUMMARIZE}
