"""A fleet of real vLLM captions videos: what a clip shows reaches the model, and its captions the summary."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fleets import READY_S
from offline import png
from pecia import Captions, CaptionStyle, CaptionVideo, Client, GenerationOptions, JobState, ReadDocument
from pecia_workers.local.fleet import LocalFleet
from videos import RATE, video

PLAIN = GenerationOptions(temperature=0, repetition_penalty=1.9, max_output_tokens=24)


def noise(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """Coarse noise that changes with every second."""
    coarse = np.random.default_rng(number // RATE).integers(
        0, 255, (height // 28, width // 28, 3), dtype=np.uint8
    )
    return coarse.repeat(28, axis=0).repeat(28, axis=1)


pytestmark = pytest.mark.xdist_group("fleet")

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
