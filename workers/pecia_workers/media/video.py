"""Videos, through FFmpeg's libraries: their headers, and frames by display time."""

from __future__ import annotations

import errno
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from itertools import chain
from typing import Any, BinaryIO, Final, TypeAlias, cast

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MediaType
from pecia_workers.media.files import Part, PartFile
from pecia_workers.media.joined import files_of, timed_parts
from pecia_workers.media.pages import Clip, FramePlan, Limits, MediaError, Stretch, VideoInfo, spread

# The bytes decide the demuxer; it is never guessed, so no demuxer that opens other files or addresses is reached.
_DEMUXERS: Final = {
    MediaType.MP4: "mov",
    MediaType.WEBM: "matroska",
    MediaType.MATROSKA: "matroska",
    MediaType.AVI: "avi",
    MediaType.MPEG_TS: "mpegts",
}
_CODECS: Final = frozenset(
    {"av1", "h263", "h264", "hevc", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8", "vp9"}
)
_MOST_STREAMS: Final = 64  # a film has subtitles in many languages, and their fonts are streams too
_OPTIONS: Final = {
    "protocol_whitelist": "none",
    "max_streams": str(_MOST_STREAMS),
    "probesize": "5000000",
    "analyzeduration": "5000000",
}
_SEEK_GAP_S: Final = 10.0  # wanted frames that are closer are reached by decoding on
_STEP_BACK_S: Final = 2.0
_SLACK_S: Final = 0.5  # sound often goes on that long after the last frame
_MOST_SHOWN_S: Final = 10.0  # what a frame adds at most to a length that the headers do not state
_MOST_MISSING: Final = 4  # packets in a row without a frame; a field or an invisible frame has none
_USUAL_RATE, _HIGHEST_RATE = 25.0, 1_000.0
_CANDIDATES: Final = 4  # for each frame that a change of scene may choose
_THUMBNAIL: Final = 32  # pixels on a side, to compare frames by
_WITHIN: Final = 0.25  # of a frame: behind its beginning, so that rounding does not lead to the one before
_QUARTER_TURN: Final = 90
_TURNS: Final = 4
_LOST: Final = frozenset({FailureCode.DAMAGED, FailureCode.EMPTY, FailureCode.UNSUPPORTED_TYPE})
"""Errors for which one of several parts has no frames."""


def probe(file: BinaryIO, media: MediaType, limits: Limits) -> VideoInfo:
    """Return a video's length and size; decodes nothing. Raises `MediaError`."""
    with _film(file, media, limits) as film:
        limits.check_video(film.duration)
        context = film.first.stream.codec_context
        return VideoInfo(
            duration=film.duration, fps=film.first.rate, width=context.width, height=context.height
        )


def sample(file: BinaryIO, media: MediaType, stretch: Stretch, plan: FramePlan, limits: Limits) -> Clip:
    """Return frames of a stretch by the plan. Raises `MediaError`, also if no frame can be decoded."""
    with _film(file, media, limits) as film:
        rate = film.first.rate
        wanted = spread(stretch, plan.count(stretch, rate))
        if plan.method == "scene":
            wanted = _changes(film, stretch, len(wanted))
        context = film.first.stream.codec_context
        size = plan.size(max(1, len(wanted)), context.width, context.height)
        pictures: list[NDArray[np.uint8]] = []
        times: list[float] = []
        turns = 0
        for at, frame in film.shown_at(wanted):
            if not pictures:
                turns = round(frame.rotation / _QUARTER_TURN) % _TURNS
            scaled: Any = frame.reformat(width=size[0], height=size[1], format="rgb24", interpolation="AREA")
            pictures.append(np.ascontiguousarray(np.rot90(scaled.to_ndarray(), turns)))
            times.append(at)
    if not pictures:
        raise MediaError(FailureCode.DAMAGED, "No frame of this part of the video can be decoded.")
    return Clip(frames=np.stack(pictures), times=tuple(times), fps=rate, damaged=film.damaged)


def _changes(film: _Film, stretch: Stretch, count: int) -> tuple[float, ...]:
    """Return at most `count` times between which about equally much changes."""
    rate = film.first.rate
    there = max(1, round(stretch.length * rate))
    times, thumbnails = [], []
    for at, frame in film.shown_at(spread(stretch, min(count * _CANDIDATES, there))):
        times.append(at + _WITHIN / rate)
        small = frame.reformat(width=_THUMBNAIL, height=_THUMBNAIL, format="gray8", interpolation="AREA")
        thumbnails.append(small.to_ndarray().astype(np.int16))
    if not times:
        return ()
    steps = np.abs(np.diff(np.stack(thumbnails), axis=0)).mean(axis=(1, 2))
    changed = np.concatenate(([0.0], steps.cumsum()))
    places = np.searchsorted(changed, np.linspace(0, changed[-1], count)).clip(max=len(times) - 1)
    return tuple(times[place] for place in dict.fromkeys(places))


_Begin: TypeAlias = Callable[[Part], "AbstractContextManager[_Video]"]
"""Opens a part of a video."""


class _Film:
    """A video of one part or several, shown one after the other. Times are seconds from its first frame."""

    def __init__(self, first: _Video, parts: Sequence[tuple[Part, float]], begin: _Begin) -> None:
        self.first = first
        self._parts = parts
        self._begin = begin
        self.duration = sum(seconds for _, seconds in parts)
        self.damaged = len(parts) > 1 and not all(seconds for _, seconds in parts)

    def shown_at(self, wanted: Sequence[float]) -> Iterator[tuple[float, VideoFrame]]:
        """Yield frames like `_Video.shown_at`. If a part ends before its last time, sets `damaged`."""
        if len(self._parts) == 1:
            yield from self.first.shown_at(wanted)
            self.damaged |= self.first.damaged
            return
        begins = 0.0
        for part, seconds in self._parts:
            ends = begins + seconds
            inside = [
                at - begins
                for at in wanted
                if begins <= at < ends or (part is self._parts[-1][0] and at >= ends)
            ]
            if inside:
                try:
                    with self._begin(part) as video:
                        for at, frame in video.shown_at(inside):
                            yield begins + at, frame
                        self.damaged |= video.damaged
                except MediaError as error:
                    if error.code not in _LOST:
                        raise
                    self.damaged = True
            begins = ends


class _Video:
    """An open video, or part of one. Times are seconds from its first frame."""

    def __init__(self, container: InputContainer, stream: VideoStream, limits: Limits, until: float) -> None:
        self._container = container
        self._limits = limits
        self._until = until
        self._unit = stream.time_base or Fraction(1, 1_000_000)
        self._begin = float((stream.start_time or 0) * self._unit)
        self.stream = stream
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        self.rate = rate if 0 < rate <= _HIGHEST_RATE else _USUAL_RATE
        self.damaged = False

    def duration(self) -> float:
        """Return the length in the headers, or the actual length if that is longer or none is stated."""
        stated = self._stated_duration()
        if stated is None:
            shown = (float(packet.pts * self._unit) for packet in self._packets() if packet.pts is not None)
            last = max(shown, default=None)
            return 0.0 if last is None else max(0.0, last) - self._begin + 1 / self.rate
        end = stated
        for packet in self._packets_from(stated):
            if packet.pts is not None:
                at = float(packet.pts * self._unit) - self._begin
                shown_s = float((packet.duration or 0) * self._unit) or 1 / self.rate
                end = max(end, min(at + shown_s, end + _MOST_SHOWN_S))
        return end if end > stated + _SLACK_S else stated

    def _stated_duration(self) -> float | None:
        if self.stream.duration:
            return float(self.stream.duration * self._unit)
        duration = None
        with suppress(ValueError):  # as Matroska's tags write it: `01:02:03.5`
            hours, minutes, seconds = map(float, self.stream.metadata.get("DURATION", "").split(":"))
            total = hours * 3600 + minutes * 60 + seconds
            duration = total if 0 <= total < math.inf else None
        if duration is None and self._container.duration:
            duration = self._container.duration / av.time_base
        if duration and self._container.format.name.startswith("matroska"):  # which counts from 0
            duration = max(0.0, duration - self._begin)
        return duration or None

    def shown_at(self, wanted: Sequence[float]) -> Iterator[tuple[float, VideoFrame]]:
        """Yield the frame shown at each of these times, with its own time; a frame shown at several times only once.

        If the file ends before the last of them, sets `damaged`.
        """
        waiting = deque(wanted)
        end = 0.0
        while waiting:
            for at, end, frame in self._decoded_from(waiting[0]):
                if end <= waiting[0]:
                    continue
                while waiting and end > waiting[0]:
                    waiting.popleft()
                yield at, frame
                if not waiting or waiting[0] - end > _SEEK_GAP_S:
                    break
            else:
                self.damaged |= bool(waiting) and waiting[-1] > end + _SLACK_S
                return

    def _decoded_from(self, seconds: float) -> Iterator[tuple[float, float, VideoFrame]]:
        """Yield frames with their time and end, starting with the one shown at that time or before.

        A transport stream has no index of key frames: the first decoded frame may be after the requested time, or none.
        """
        back = 0.0
        while True:
            frames = self._decoded(self._packets_from(seconds - back))
            first = next(frames, None)
            if back > seconds or (first is not None and first[0] <= seconds):
                return chain([] if first is None else [first], frames)
            back = 2 * back or _STEP_BACK_S

    def _decoded(self, packets: Iterable[Packet[VideoStream]]) -> Iterator[tuple[float, float, VideoFrame]]:
        """Yield frames with their time and end, which is the next one's time, without broken ones."""
        last: tuple[float, float, VideoFrame] | None = None
        waiting: set[int] = set()
        for packet in packets:
            waiting |= {packet.pts} if packet.pts is not None else set()
            try:
                frames = packet.decode()
            except FFmpegError as error:
                _check_memory(error)
                self.damaged = True
                continue
            self.damaged |= packet.is_corrupt
            for frame in frames:
                if frame.time is None:
                    continue
                self._limits.check_page(frame.width, frame.height)  # a stream may change its size
                at = frame.time - self._begin
                passed = {pts for pts in waiting if frame.pts is not None and pts <= frame.pts}
                waiting -= passed
                if last is not None:
                    self.damaged |= frame.is_corrupt or len(passed) > _MOST_MISSING
                    yield last[0], at if at > last[0] else last[1], last[2]
                shown = float((frame.duration or 0) * self._unit)
                last = at, at + (shown or 1 / self.rate), frame
        if last is not None:
            yield last

    def _packets_from(self, seconds: float) -> Iterator[Packet[VideoStream]]:
        try:
            self._container.seek(int((seconds + self._begin) / self._unit), stream=self.stream)
        except FFmpegError:  # no index, or a broken one: then all from the first
            self._container.seek(0)
        return self._packets()

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        packets = self._container.demux(self.stream)
        packet: Packet[VideoStream] | None
        while True:
            if time.monotonic() > self._until:
                raise MediaError(
                    FailureCode.DECODE_TIMEOUT, "Decoding this part of the video takes too long."
                )
            try:
                packet = next(packets, None)
            except FFmpegError as error:
                _check_memory(error)
                packet, self.damaged = None, True
            if packet is None:
                return
            yield packet


@contextmanager
def _film(file: BinaryIO, media: MediaType, limits: Limits) -> Iterator[_Film]:
    """Yield the file as one video, whatever clocks its parts have. Raises `MediaError`."""
    until = time.monotonic() + limits.decode_s
    with _opened(file, media, limits, until) as first:

        def begin(part: Part) -> AbstractContextManager[_Video]:
            return _opened(cast("BinaryIO", PartFile(file, part)), media, limits, until)

        if media is MediaType.MPEG_TS:
            parts = timed_parts(file, first.stream.id)
        else:
            files = files_of(file, media)
            parts = [(part, _length(begin(part))) for part in files] if len(files) > 1 else []
        yield _Film(first, parts or [(Part(0), first.duration())], begin)


def _length(opened: AbstractContextManager[_Video]) -> float:
    """Return the length of a part; 0 if it cannot be shown."""
    try:
        with opened as video:
            return video.duration()
    except MediaError as error:
        if error.code not in _LOST:
            raise
        return 0.0


@contextmanager
def _opened(file: BinaryIO, media: MediaType, limits: Limits, until: float) -> Iterator[_Video]:
    """Yield the first video stream, ready to decode. Raises `MediaError`."""
    kind = _DEMUXERS[media]
    try:
        with _container(file, kind) as container:
            streams = [
                one for one in container.streams.video if not one.disposition & Disposition.attached_pic
            ]
            if not streams:
                raise MediaError(FailureCode.UNSUPPORTED_TYPE, "The file contains no moving pictures.")
            context = streams[0].codec_context
            if context is None or context.codec.canonical_name not in _CODECS:
                found = "Its codec is not supported."
                raise MediaError(FailureCode.UNSUPPORTED_TYPE, found)
            if not (context.width and context.height):
                raise MediaError(FailureCode.EMPTY, "The video has no frames.")
            limits.check_page(context.width, context.height)
            context.thread_count = 1
            context.options = {"max_pixels": str(limits.page_pixels)}
            yield _Video(container, streams[0], limits, until)
    except FFmpegError as error:  # its text names the file
        _check_memory(error)
        raise MediaError(FailureCode.DAMAGED, "The video cannot be read.") from None


def _container(file: BinaryIO, kind: str) -> InputContainer:
    try:  # titles come in every encoding
        return av.open(file, mode="r", format=kind, options=_OPTIONS, metadata_errors="replace")
    except FFmpegError as error:
        if error.errno != errno.ENOMEM:
            raise
        found = (
            f"The video has more than {_MOST_STREAMS} streams, or its headers need more memory than "
            "PECIA_DECODE_MEMORY_BYTES."
        )
        raise MediaError(FailureCode.TOO_LARGE, found) from None


def _check_memory(error: FFmpegError) -> None:
    if error.errno == errno.ENOMEM:
        raise MemoryError from None
