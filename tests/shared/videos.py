"""Videos for tests, encoded when they are needed: what is seen at a moment tells the moment."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

RATE = 10
STEP = 4
"""Shades of grey between one second and the next."""

_MATRIX = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
_FIXED = 1 << 16
_SAMPLES = 8_000


def by_the_second(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """A grey frame that is brighter each second, its top left corner white."""
    picture = np.full((height, width, 3), (number // RATE) * STEP, dtype=np.uint8)
    picture[: height // 3, : width // 3] = 255
    return picture


def second_of(frame: NDArray[np.uint8]) -> int:
    """The second that a frame of `by_the_second` comes from, upright."""
    height, width = frame.shape[:2]
    return round(float(frame[height // 2 :, width // 2 :].mean()) / STEP)


def video(
    seconds: float = 3.0,
    *,
    size: tuple[int, int] = (160, 96),
    form: str = "mp4",
    codec: str = "mpeg4",
    picture: Callable[[int, int, int], NDArray[np.uint8]] = by_the_second,
    sound: float = 0.0,
    frames: Sequence[int] = (),
    **options: str,
) -> bytes:
    """Encode a video of so many seconds at `RATE` frames a second, with `sound` seconds of silence.

    `frames`: numbers of its only frames, each shown until the next.
    """
    numbers = frames or range(round(seconds * RATE))
    with tempfile.NamedTemporaryFile() as file:  # a muxer may read what it has written
        with av.open(file.name, "w", format=form, options=options) as container:
            # All streams before the first packet.
            film = _film_stream(container, codec, size) if seconds else None
            voice = container.add_stream("aac", rate=_SAMPLES) if sound else None
            if film:
                _film(container, film, ((number, picture(number, *size)) for number in numbers))
            if voice:
                _silence(container, voice, sound)
        return Path(file.name).read_bytes()


def without(content: bytes, lost: Callable[[int, Any], bool], form: str) -> bytes:
    """Return the video in a container of this form without these packets, by their number."""
    with tempfile.NamedTemporaryFile() as old, tempfile.NamedTemporaryFile() as new:
        Path(old.name).write_bytes(content)
        with av.open(old.name) as source, av.open(new.name, "w", format=form) as container:
            stream = container.add_stream_from_template(source.streams.video[0])
            for number, packet in enumerate(source.demux(video=0)):
                if packet.dts is not None and not lost(number, packet):
                    packet.stream = stream
                    container.mux(packet)
        return Path(new.name).read_bytes()


def turned(mp4: bytes, degrees: int) -> bytes:
    """Write into the track's header that the pictures are to be turned clockwise by so many degrees."""
    plain, wanted = (_matrix(*_MATRIX[angle]) for angle in (0, degrees))
    at = mp4.index(plain, mp4.index(b"tkhd"))
    return mp4[:at] + wanted + mp4[at + len(plain) :]


def _matrix(a: int, b: int, c: int, d: int) -> bytes:
    fixed = (a * _FIXED, b * _FIXED, 0, c * _FIXED, d * _FIXED, 0, 0, 0, 1 << 30)
    return b"".join((value & 0xFFFFFFFF).to_bytes(4, "big") for value in fixed)


def with_tracks(mp4: bytes, count: int) -> bytes:
    """Return the video with its track so many times more."""
    return _inserted(mp4, mp4[_place(mp4, b"trak") : _end(mp4, b"trak")] * count, before=b"trak")


def with_edits(mp4: bytes, count: int) -> bytes:
    """Return the video with an edit list of so many entries, each of which shows its first instant."""
    entries = (1).to_bytes(4, "big") + bytes(4) + _FIXED.to_bytes(4, "big")
    return _replaced(mp4, b"elst", bytes(4) + count.to_bytes(4, "big") + entries * count)


def with_sizes(mp4: bytes, count: int) -> bytes:
    """Return the video with a table that claims so many frames of one byte each."""
    return _replaced(mp4, b"stsz", bytes(4) + (1).to_bytes(4, "big") + count.to_bytes(4, "big"))


def with_durations(mp4: bytes, duration: int) -> bytes:
    """Return the video with frames that are each shown for so many units of time."""
    return _replaced(mp4, b"stts", bytes(4) + b"".join(n.to_bytes(4, "big") for n in (1, 1000, duration)))


_AROUND = (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl")


def _place(mp4: bytes, name: bytes) -> int:
    return mp4.index(name) - 4


def _end(mp4: bytes, name: bytes) -> int:
    start = _place(mp4, name)
    return start + int.from_bytes(mp4[start : start + 4], "big")


def _replaced(mp4: bytes, name: bytes, content: bytes) -> bytes:
    """Return the file with another content of the first box of that name, all boxes around it as much larger."""
    start, end = _place(mp4, name), _end(mp4, name)
    box = (8 + len(content)).to_bytes(4, "big") + name + content
    return _spliced(mp4, start, end, box)


def _inserted(mp4: bytes, content: bytes, *, before: bytes) -> bytes:
    start = _place(mp4, before)
    return _spliced(mp4, start, start, content)


def _spliced(mp4: bytes, start: int, end: int, content: bytes) -> bytes:
    grown = bytearray(mp4)
    for name in _AROUND:
        if name in mp4 and (place := _place(mp4, name)) < start and end <= (former := _end(mp4, name)):
            grown[place : place + 4] = (former - place + len(content) - (end - start)).to_bytes(4, "big")
    return bytes(grown[:start] + content + grown[end:])


def _film_stream(container: Any, codec: str, size: tuple[int, int]) -> Any:
    stream = container.add_stream(codec, rate=RATE)
    stream.width, stream.height = size
    stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    stream.codec_context.gop_size = RATE
    return stream


def _film(container: Any, stream: Any, pictures: Iterable[tuple[int, NDArray[np.uint8]]]) -> None:
    for number, picture in pictures:
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = number
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def _silence(container: Any, stream: Any, seconds: float) -> None:
    samples = np.zeros((1, round(_SAMPLES * seconds)), dtype=np.float32)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.rate, frame.pts = _SAMPLES, 0
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
