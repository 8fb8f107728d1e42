"""From a claimed segment to its caption, and from captions to a summary, with an engine that says what it is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import numpy as np
import pytest

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MediaType, PayloadRef
from pecia_schemas.results import Segment, Summary, TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage
from pecia_schemas.tasks import (
    EXPECTED_OUTPUT_TOKENS,
    CaptionStyle,
    CaptionVideo,
    GenerationOptions,
    task_to_json,
)
from pecia_workers.captioning.captions import CaptionSegment, SummarizeVideo
from pecia_workers.engines.reader_cards import sampling_for
from pecia_workers.media.decoder import Decoder, Spool
from pecia_workers.media.pages import Clip, MediaError, Stretch, VideoInfo
from pecia_workers.media.turns import Turn
from pecia_workers.protocol.base import EngineRefusedError, EngineRequest, Generation
from pecia_workers.protocol.parts import ClaimedPart, Cut
from pecia_workers.reading.caching import ResultCache
from pecia_workers.reading.page import instruction_for
from pecia_workers.worker.stages import Ingest, segment_count
from tests.shared.parts import claimed_part
from tests.shared.samples import segment
from tests.shared.scripted_engine import ScriptedEngine

PAYLOAD = PayloadRef(sha256="0" * 64, size=1, media_type=MediaType.MP4)
USED = TokenUsage(prompt=100, image=80, output=10)
SETTINGS = WorkerSettings()


class OneFile:
    @asynccontextmanager
    async def open(self, _payload: PayloadRef) -> AsyncIterator[Path]:
        yield Path("clip")


class OneVideo:
    def __init__(self, duration: float, *, damaged: bool = False) -> None:
        self._duration = duration
        self._damaged = damaged

    async def probe(self, _path: Path, *, turn: Turn) -> VideoInfo:  # noqa: ARG002  it is alone
        return VideoInfo(duration=self._duration, fps=10, width=640, height=360)

    async def clip(self, _path: Path, stretch: Stretch, *, turn: Turn) -> Clip:  # noqa: ARG002  it is alone
        times = (stretch.start, stretch.start + 0.01, stretch.end - 0.1)
        frames = np.zeros((3, 36, 64, 3), dtype=np.uint8)
        return Clip(frames=frames, times=times, fps=10.0, damaged=self._damaged)


def part(stage: Stage, task: CaptionVideo, **changes: Any) -> ClaimedPart:
    return claimed_part(stage=stage, kind=task.kind, stored_task=task_to_json(task), **changes)


def wanted(**how: Any) -> CaptionVideo:
    return CaptionVideo(PAYLOAD, **how)


def said(text: str) -> Generation:
    return Generation(text=text, verdict=Verdict.OK, usage=USED)


def cut(duration: float, task: CaptionVideo, *, stages: frozenset[Stage] = frozenset(Stage)) -> Cut:
    async def served() -> frozenset[Stage]:
        return stages

    async def stored(claimed: ClaimedPart) -> PayloadRef:
        return claimed.payload

    async def able(*_asked: str) -> bool:
        return True

    spool, decoder = cast("Spool", OneFile()), cast("Decoder", OneVideo(duration))
    ingest = Ingest(spool, decoder, SETTINGS, served, stored, readers_can=able)
    return asyncio.run(ingest(part(Stage.INGEST, task)))


@pytest.mark.parametrize(
    ("duration", "segments"), [(0.2, 1), (30, 1), (44.9, 1), (45, 2), (60, 2), (74, 2), (75, 3), (3600, 120)]
)
def test_a_video_is_cut_so_that_no_segment_is_very_short(duration: float, segments: int) -> None:
    assert segment_count(duration, 30) == segments


def test_segments_cover_the_video_and_a_summary_waits_behind_them() -> None:
    found = cut(80, wanted(style=CaptionStyle.DENSE))

    assert found.stage is Stage.CAPTION
    times = [(one.ordinal, one.start_s, one.end_s) for one in found.parts]
    assert times == [(0, 0, 30), (1, 30, 60), (2, 60, 80)]
    assert {(one.width, one.height) for one in found.parts} == {(640, 360)}
    frames = SETTINGS.video_frames / 2 * 13 * 23
    assert {one.cost for one in found.parts} == {frames + 64 + EXPECTED_OUTPUT_TOKENS["caption-dense"]}
    assert found.held
    stage, summary = found.held
    assert (stage, summary.ordinal, summary.cost) == (Stage.SUMMARIZE, 3, 3 * 256 + 64 + 256)


def test_a_short_video_is_one_segment_without_a_summary_unless_the_task_wants_shorter_ones() -> None:
    found = cut(40, wanted())
    assert [(one.start_s, one.end_s) for one in found.parts] == [(0, 40)]
    assert found.held is None
    assert len(cut(40, wanted(segments=timedelta(seconds=10))).parts) == 4


def test_too_many_segments_are_refused() -> None:
    with pytest.raises(MediaError) as caught:
        cut(2000, wanted(segments=timedelta(seconds=1)))
    assert caught.value.code is FailureCode.TOO_LONG


def test_a_fleet_that_cannot_caption_says_so_before_it_looks_at_the_video() -> None:
    with pytest.raises(MediaError) as caught:
        cut(40, wanted(), stages=frozenset({Stage.INGEST, Stage.READ}))
    assert caught.value.code is FailureCode.NO_ENGINE
    assert "PECIA_ENGINE=vllm" in caught.value.code.advice
    assert "PECIA_ENGINE=openai" in caught.value.code.advice


def caption(
    task: CaptionVideo, engine: ScriptedEngine, *, settings: WorkerSettings = SETTINGS, damaged: bool = False
) -> Segment:
    spool, decoder = cast("Spool", OneFile()), cast("Decoder", OneVideo(100, damaged=damaged))
    claimed = part(Stage.CAPTION, task, ordinal=1, start_s=30.0, end_s=60.0)
    done = asyncio.run(CaptionSegment(spool, decoder, engine, settings, ResultCache.off())(claimed))
    assert isinstance(done.content, Segment)
    return done.content


def test_a_segment_becomes_a_caption_with_its_times() -> None:
    engine = ScriptedEngine(lambda _: replace(said("A door opens.\x00"), shrunk_to=(32, 18)))

    found = caption(wanted(style=CaptionStyle.BRIEF, language="ko"), engine, damaged=True)

    assert (found.number, found.start, found.end) == (2, timedelta(seconds=30), timedelta(seconds=60))
    assert (found.text, found.verdict, found.damaged) == ("A door opens.", Verdict.OK, True)
    assert (found.frames, found.width, found.height) == (3, 64, 36)
    assert found.shrunk
    assert (found.shrunk.width, found.shrunk.height) == (32, 18)
    assert found.usage == USED
    assert found.timings.queued == pytest.approx(1.5, abs=0.5)
    (request,) = engine.asked
    assert request.clip
    assert request.clip.indices == (300, 301, 599), "each frame has a place of its own"
    assert (request.clip.fps, request.clip.duration) == (10.0, 60.0)
    assert (request.workload, request.language, request.priority) == ("caption-brief", "ko", Lane.URGENT.rank)
    assert request.instruction == instruction_for("brief", "ko")


def test_a_caption_is_written_as_its_task_and_the_fleet_say() -> None:
    engine = ScriptedEngine(lambda _: said(""))
    task = wanted(options=GenerationOptions(temperature=0.2))
    caption(task, engine, settings=WorkerSettings(caption_tokens=50))
    (request,) = engine.asked
    assert (request.sampling, request.max_output_tokens) == sampling_for(task, caption_tokens=50)
    assert request.max_output_tokens == 50


def test_an_adapter_that_is_not_there_is_refused_before_anything_is_decoded() -> None:
    engine = ScriptedEngine(lambda _: said(""))
    with pytest.raises(EngineRefusedError) as caught:
        caption(wanted(adapter="radiology"), engine)
    assert caught.value.code is FailureCode.ADAPTER_UNAVAILABLE
    assert not engine.asked


def summarize(task: CaptionVideo, captions: Sequence[str], engine: ScriptedEngine) -> Summary:
    segments = [
        segment(number, text, start=50 * number - 50, end=50 * number)
        for number, text in enumerate(captions, 1)
    ]

    async def captions_of(_job_id: UUID) -> list[Segment]:
        return segments

    claimed = part(Stage.SUMMARIZE, task, ordinal=len(captions))
    done = asyncio.run(SummarizeVideo(captions_of, engine, SETTINGS, ResultCache.off())(claimed))
    assert isinstance(done.content, Summary)
    return done.content


def test_a_summary_is_asked_for_with_every_caption_and_its_time() -> None:
    engine = ScriptedEngine(lambda _: said("All of it."))
    summary = summarize(wanted(language="ko"), ["One.", "Two."], engine)
    assert (summary.text, summary.usage) == ("All of it.", USED)
    assert summary.timings.queued == pytest.approx(1.5, abs=0.5)
    (request,) = engine.asked
    captions = "[0:00 - 0:50] One.\n[0:50 - 1:40] Two."
    assert request.instruction == f"{instruction_for('summary', 'ko')}\n\n{captions}"
    assert (request.images, request.workload, request.max_output_tokens) == ((), "summary", 512)


def test_captions_beyond_the_context_are_summarised_by_halves_down_to_two() -> None:
    def at_most_two(request: EngineRequest) -> Generation | Exception:
        lines = [line for line in request.instruction.splitlines() if line.startswith("[")]
        if len(lines) > 2:
            return EngineRefusedError("too long", FailureCode.TOO_LARGE)
        return said("+".join(line.split()[-1] for line in lines))

    engine = ScriptedEngine(at_most_two)

    summary = summarize(wanted(), ["a", "b", "c", "d", "e"], engine)

    assert summary.text == "a+b+c+d+e"
    assert summary.usage.output == 50, "a+b, c, d+e, c+(d+e) and the whole"
    with pytest.raises(EngineRefusedError):
        summarize(
            wanted(), ["a", "b"], ScriptedEngine(lambda _: EngineRefusedError("", FailureCode.TOO_LARGE))
        )


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_style_has_instructions_of_its_own_in_every_language(language: str) -> None:
    written = {instruction_for(what, language) for what in (*CaptionStyle, "summary")}
    assert len(written) == len(CaptionStyle) + 1
