"""A whole fleet reads and captions with vLLM, and what becomes of the pages when the engine dies under them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psutil
import psycopg
import pytest
from numpy.typing import NDArray

from fleets import READY_S
from offline import MOST_TOKENS, PAGES, png
from pecia import (
    Captions,
    CaptionStyle,
    CaptionVideo,
    Client,
    DoubtReason,
    GenerationOptions,
    JobState,
    Prefer,
    ReadDocument,
    Witness,
)
from pecia.job import JobGroup
from pecia_schemas.blocks import text_of
from pecia_schemas.results import Document
from pecia_schemas.tasks import DocumentType
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.reading.markup import blocks_of
from tests.shared.limits import eventually
from tests.shared.videos import RATE, video
from tests.shared.witnessed_pages import KINDS, drawn_page

pytestmark = pytest.mark.xdist_group("fleet")

PLAIN = GenerationOptions(temperature=0, repetition_penalty=1.9, max_output_tokens=24)


def noise(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """Coarse noise that changes with every second."""
    rng = np.random.default_rng(number // RATE)
    coarse = rng.integers(0, 255, (height // 28, width // 28, 3), dtype=np.uint8)
    return coarse.repeat(28, axis=0).repeat(28, axis=1)


CLIP = video(8, size=(168, 112), picture=noise, codec="h264")


def caption(client: Client, **how: Any) -> Captions:
    job = client.submit(CaptionVideo(CLIP, options=PLAIN, **how)).wait(READY_S)
    assert job.state is JobState.SUCCEEDED, job.failure
    return job.result(timeout=0)


def test_a_clip_comes_back_as_timed_captions_and_a_summary(fleet: tuple[LocalFleet, Client]) -> None:
    captions = caption(fleet[1], style=CaptionStyle.BRIEF)

    times = [(one.start.total_seconds(), one.end.total_seconds()) for one in captions.segments]
    assert times == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert len({one.text for one in captions.segments}) > 1, "the model does not look at the frames"
    for segment in captions.segments:
        assert segment.text
        assert segment.engine == "vllm"
        assert (segment.frames, segment.width, segment.height) == (6, 168, 112)
        assert segment.usage.output == 24
        assert 0 < segment.usage.image < segment.usage.prompt
        assert segment.timings.first_token
    assert captions.summary
    assert captions.summary.text
    assert captions.summary.usage.image == 0
    assert captions.summary.usage.prompt > sum(one.usage.output for one in captions.segments)


def test_pages_are_read_beside(fleet: tuple[LocalFleet, Client]) -> None:
    client = fleet[1]
    video_job = client.submit(CaptionVideo(CLIP, options=PLAIN))
    page_job = client.submit(ReadDocument(png(1), options=GenerationOptions(max_output_tokens=24)))
    assert page_job.result(READY_S).pages[0].engine == "vllm"
    assert video_job.result(READY_S).summary


def test_nothing_of_noise_is_on_the_page_and_nothing_is_ok(fleet: tuple[LocalFleet, Client]) -> None:
    jobs = fleet[1].submit_many(
        ReadDocument(
            drawn_page(kind, seed).pdf,
            prefer=Prefer.PIXELS,
            witness=Witness.LAYER,
            options=GenerationOptions(max_output_tokens=MOST_TOKENS),
        )
        for kind in KINDS
        for seed in range(2)
    )
    pages = [document.pages[0] for document in jobs.results(timeout=READY_S)]

    for page in pages:
        assert page.verdict.needs_review
        assert page.witness
        assert page.witness.agrees <= 0.05 * page.witness.words
        assert page.witness.only_witness > 0
        assert DoubtReason.NOT_ON_PAGE in {doubt.reason for doubt in page.doubts} or not page.witness.words


LONG = 800
"""Tokens of an answer that is not over before its engine is killed."""


def engine_of(fleet: LocalFleet) -> int:
    (pid,) = [service.pid for service in fleet.services() if service.name == "engine"]
    assert pid is not None
    return pid


def submit(client: Client, count: int, tokens: int) -> JobGroup[Document]:
    return client.submit_many(
        ReadDocument(
            png(number),
            document_type=DocumentType.PRESCRIPTION,
            options=GenerationOptions(max_output_tokens=tokens),
        )
        for number in range(count)
    )


def running(fleet: LocalFleet, attempt: int) -> list[UUID]:
    """Return the jobs whose page is read, for the first or the second time."""
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        query = "SELECT job_id FROM parts WHERE stage = 'read' AND state = 'running' AND attempt = %s"
        return [job for (job,) in connection.execute(query, (attempt,)).fetchall()]


def test_a_fleet_says_what_the_offline_api_says(
    fleet: tuple[LocalFleet, Client],
    endless_checkpoint: Path,
    answers_offline: Callable[[Path, str], list[dict[str, Any]]],
) -> None:
    documents = submit(fleet[1], PAGES, MOST_TOKENS).results(timeout=READY_S)
    pages = [document.pages[0] for document in documents]
    offline = answers_offline(endless_checkpoint, "float32")
    assert [page.text for page in pages] == [text_of(blocks_of(told["text"])) for told in offline]
    assert [page.usage.prompt for page in pages] == [told["prompt"] for told in offline]
    assert {page.engine for page in pages} == {"vllm"}


def test_pages_whose_engine_dies_are_read_by_the_next_and_one_under_which_two_die_is_kept_for_inspection(
    fleet: tuple[LocalFleet, Client], engine_processes: Callable[..., list[psutil.Process]]
) -> None:
    local, client = fleet
    former = engine_of(local)
    (core,) = [one for one in engine_processes(former) if "EngineCore" in " ".join(one.cmdline())]
    jobs = submit(client, 3, LONG)
    eventually(lambda: len(running(local, attempt=1)) == 3)
    core.kill()

    (unlucky,) = eventually(lambda: running(local, attempt=2))
    assert engine_of(local) != former
    psutil.Process(engine_of(local)).kill()
    jobs.wait(timeout=READY_S)

    states = {job.id: job.state for job in jobs}
    assert states.pop(unlucky) is JobState.FAILED
    assert set(states.values()) == {JobState.SUCCEEDED}
    (failure,) = [job.failure for job in jobs if job.failure]
    assert failure.code == "poisoned"


def test_a_fleet_that_stops_leaves_no_process_of_the_engine(
    fleet: tuple[LocalFleet, Client], engine_processes: Callable[..., list[psutil.Process]]
) -> None:
    local, _ = fleet
    processes = engine_processes(engine_of(local))
    assert processes
    local.stop()
    assert not any(process.is_running() for process in processes)
