"""The ingest stage: judge a payload and cut it into priced parts."""

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from pydantic import SecretStr

from pecia_schemas import tasks, tracing
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges, PayloadRef
from pecia_schemas.running import Lack, Need
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.media.decoder import Decoder, Spool, turn_of
from pecia_workers.media.pages import FramePlan, Limits, MediaError, Stretch
from pecia_workers.media.turns import Turn
from pecia_workers.protocol.parts import ClaimedPart, Cut, NewPart


class Ingest:
    """Cuts payloads for the stage that will work on them.

    `stages_served` is what the fleet's engines can do, `fields_filled` whether they fill fields too, `language_read`
    whether they read a language: what none of them can must fail now, neither wait for ever nor page by page.
    `intake` returns a part's payload, which the fleet may have to fetch first.
    """

    def __init__(
        self,
        spool: Spool,
        decoder: Decoder,
        settings: WorkerSettings,
        stages_served: Callable[[], Awaitable[frozenset[Stage]]],
        intake: Callable[[ClaimedPart], Awaitable[PayloadRef]],
        *,
        fields_filled: Callable[[], Awaitable[bool]],
        language_read: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._spool = spool
        self._decoder = decoder
        self._segment_s = settings.video_segment.total_seconds()
        self._plan = FramePlan.of(settings)
        self._limits = Limits.of(settings)
        self._stages_served = stages_served
        self._intake = intake
        self._fields_filled = fields_filled
        self._language_read = language_read

    async def __call__(self, part: ClaimedPart) -> Cut:
        """Return the parts of the claimed payload.

        Raises `MediaError`, `PartLostError`, `PayloadMissingError`, `PayloadCorruptError`.
        """
        task = part.task
        if isinstance(task, tasks.ReadPages):
            if task.language is not None and not await self._language_read(task.language):
                lack = Lack(job_id=None, stage=Stage.READ, need=Need.LANGUAGE, value=task.language, parts=1)
                found = f"{lack.sentence[0].upper()}{lack.sentence[1:]}."
                raise MediaError(FailureCode.LANGUAGE_UNAVAILABLE, found)
            if task.fields is not None and not await self._fields_filled():
                raise MediaError(FailureCode.FIELDS_UNAVAILABLE, "No engine of this fleet fills fields.")
        elif Stage.CAPTION not in await self._stages_served():
            raise MediaError(FailureCode.NO_ENGINE, "No engine of this fleet captions videos.")
        with tracing.span("fetch"):
            payload = await self._intake(part)
        with tracing.span("cut"):
            turn = turn_of(part, payload)
            async with self._spool.open(payload) as path:
                if isinstance(task, tasks.CaptionVideo):
                    return await self._segments(path, task, turn)
                assert isinstance(task, tasks.ReadPages)  # noqa: S101  there is no other task
                chosen = None if task.pages is None else PageRanges.parse(task.pages)
                password = cast("SecretStr | None", task.password)
                infos = await self._decoder.inspect(path, chosen, password, turn=turn)
                document_type = tasks.DocumentType(task.document_type)
                parts = []
                for page in infos:
                    cost = tasks.page_cost(page.width, page.height, document_type)
                    parts.append(NewPart(ordinal=page.index, cost=cost, width=page.width, height=page.height))
                if isinstance(task, tasks.ReadBundle):
                    split = NewPart(ordinal=max(part.ordinal for part in parts) + 1, cost=tasks.SPLIT_COST)
                    return Cut(Stage.READ, parts, (Stage.SPLIT, split))
                return Cut(Stage.READ, parts)

    async def _segments(self, path: Path, task: tasks.CaptionVideo, turn: Turn) -> Cut:
        info = await self._decoder.probe(path, turn=turn)
        length = task.segments.total_seconds() if task.segments else self._segment_s
        count = segment_count(info.duration, length)
        self._limits.check_segments(count)
        style = tasks.CaptionStyle(task.style)
        parts = []
        for number in range(count):
            start = length * number
            end = info.duration if number == count - 1 else length * (number + 1)
            frames = self._plan.count(Stretch(start=start, end=end), info.fps)
            width, height = self._plan.size(frames, info.width, info.height)
            cost = tasks.segment_cost(frames, width, height, style)
            parts.append(
                NewPart(ordinal=number, cost=cost, width=width, height=height, start_s=start, end_s=end)
            )
        if count == 1:
            return Cut(Stage.CAPTION, parts)
        summary = NewPart(ordinal=count, cost=tasks.summary_cost(count, style))
        return Cut(Stage.CAPTION, parts, (Stage.SUMMARIZE, summary))


def segment_count(duration: float, length: float) -> int:
    """Return into how many segments a video of so many seconds is cut: the last has half to one and a half `length`."""
    return max(1, math.floor(duration / length + 0.5))
