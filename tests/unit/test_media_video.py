import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, sniff
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import load_clip, probe_video
from pecia_workers.media.pages import Clip, FramePlan, Limits, MediaError, Stretch, spread
from tests.shared.fixture_types import MakeFile
from tests.shared.videos import (
    RATE,
    by_the_second,
    second_of,
    turned,
    video,
    with_durations,
    with_edits,
    with_sizes,
    with_tracks,
    without,
)

CONTAINERS = [
    ("mp4", "h264", MediaType.MP4),
    ("mov", "mjpeg", MediaType.MP4),
    ("webm", "vp9", MediaType.WEBM),
    ("matroska", "h264", MediaType.MATROSKA),
    ("avi", "mpeg4", MediaType.AVI),
    ("mpegts", "mpeg2video", MediaType.MPEG_TS),
]
LIMITS = Limits.of(WorkerSettings())
WHOLE = {kind: video(2, form=kind[0], codec=kind[1]) for kind in CONTAINERS}


def plan(**changes: Any) -> FramePlan:
    return replace(FramePlan(method="uniform", most=8, fps=1.0, pixels=10**7), **changes)


def clip_of(path: Path, start: float, end: float, **changes: Any) -> Clip:
    return load_clip(path, Stretch(start=start, end=end), plan(**changes), LIMITS)


def expect(code: FailureCode, run: Callable[[], object]) -> None:
    with pytest.raises(MediaError) as caught:
        run()
    assert caught.value.code is code
    assert "patient" not in str(caught.value)


@pytest.mark.parametrize(("form", "codec", "media"), CONTAINERS)
def test_bytes_tell_a_container(file: MakeFile, form: str, codec: str, media: MediaType) -> None:
    content = video(6, form=form, codec=codec)
    path = file(content)

    info, clip = probe_video(path, LIMITS), clip_of(path, 2, 6, most=4)

    assert sniff(content[:HEAD_BYTES]) is media
    assert info.duration == pytest.approx(6, abs=0.3)
    assert (info.width, info.height) == (160, 96)
    assert info.fps == pytest.approx(10, abs=0.5)
    assert [second_of(frame) for frame in clip.frames] == [2, 3, 4, 5]
    assert clip.times == pytest.approx([2.5, 3.5, 4.5, 5.5], abs=0.11)
    assert not clip.damaged


def test_a_length_that_no_header_tells_is_counted(file: MakeFile) -> None:
    streamed = video(3, form="matroska", codec="h264", live="1")
    assert probe_video(file(streamed), LIMITS).duration == pytest.approx(3, abs=0.11)


def test_a_long_gap_between_frames_is_skipped_not_decoded(file: MakeFile) -> None:
    clip = clip_of(file(video(60)), 0, 60, most=3)
    assert [second_of(frame) for frame in clip.frames] == [10, 30, 50]


def test_fewer_frames_than_were_asked_for_are_not_shown_twice(file: MakeFile) -> None:
    clip = clip_of(file(video(0.3)), 0, 0.3, most=16)
    assert len(clip.frames) == len(set(clip.times)) == 3


def test_frames_by_the_second_are_never_more_than_the_most(file: MakeFile) -> None:
    path = file(video(6))
    assert len(clip_of(path, 0, 6, method="fps", fps=0.5).frames) == 3
    assert len(clip_of(path, 0, 6, method="fps", fps=60).frames) == 8


def test_frames_are_taken_where_the_picture_changes(file: MakeFile) -> None:
    def three_scenes(number: int, width: int, height: int) -> NDArray[np.uint8]:
        shade = 40 if number < 12 else 120 if number < 51 else 200
        return np.full((height, width, 3), shade, dtype=np.uint8)

    path = file(video(6, codec="mjpeg", form="mov", picture=three_scenes))

    changes = clip_of(path, 0, 6, method="scene", most=8)
    still = clip_of(path, 2, 5, method="scene", most=8)

    assert [round(float(frame.mean()) / 40) for frame in changes.frames] == [1, 3, 5]
    assert changes.times == pytest.approx([0.1, 1.25, 5.2], abs=0.2)
    assert len(still.frames) == 1


@given(start=st.floats(0, 1e4), length=st.floats(0.01, 1e4), count=st.integers(1, 768))
def test_frames_are_spread_evenly_within_their_stretch(start: float, length: float, count: int) -> None:
    stretch = Stretch(start=start, end=start + length)
    wanted = spread(stretch, count)
    assert len(wanted) == count
    assert all(stretch.start <= at <= stretch.end for at in wanted)
    assert list(wanted) == sorted(wanted)


@given(
    frames=st.integers(1, 768),
    width=st.integers(2, 8_000),
    height=st.integers(2, 8_000),
    pixels=st.integers(100_352, 200_000_000),
)
def test_frames_together_keep_to_pixels_and_shape(frames: int, width: int, height: int, pixels: int) -> None:
    scaled_width, scaled_height = plan(pixels=pixels).size(frames, width, height)
    assert 2 <= scaled_width <= width
    assert 2 <= scaled_height <= height
    if min(scaled_width, scaled_height) > 2:
        assert frames * scaled_width * scaled_height <= pixels
        closely = 2 / min(scaled_width, scaled_height)
        assert scaled_width / scaled_height == pytest.approx(width / height, rel=closely)


@pytest.mark.parametrize(("degrees", "corner"), [(0, (0, 0)), (90, (0, -1)), (180, (-1, -1)), (270, (-1, 0))])
def test_a_clip_from_a_phone_stands_upright(file: MakeFile, degrees: int, corner: tuple[int, int]) -> None:
    frame = clip_of(file(turned(video(1), degrees)), 0, 1, most=3).frames[-1]
    assert frame.shape == ((160, 96, 3) if degrees % 180 else (96, 160, 3))
    assert frame[corner].mean() > 200
    assert max([frame[at].mean() for at in [(0, 0), (0, -1), (-1, -1), (-1, 0)] if at != corner]) < 60


@pytest.mark.parametrize(("form", "codec"), [("mp4", "mpeg4"), ("matroska", "h264"), ("avi", "mpeg4")])
def test_a_file_cut_off_gives_the_frames_there_are(file: MakeFile, form: str, codec: str) -> None:
    def noise(number: int, width: int, height: int) -> NDArray[np.uint8]:
        return np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)

    options: dict[str, Any] = {"movflags": "faststart"} if form == "mp4" else {}
    whole = video(6, form=form, codec=codec, picture=noise, **options)
    path = file(whole[: len(whole) // 2])

    clip = clip_of(path, 0, 6, most=6)

    assert clip.damaged
    assert 1 <= len(clip.frames) < 6
    assert not clip_of(path, 0, 1, most=4).damaged
    expect(FailureCode.DAMAGED, lambda: clip_of(path, 5, 6))


def test_sound_that_outlasts_the_pictures_is_no_damage(file: MakeFile) -> None:
    path = file(video(3, form="matroska", codec="h264", sound=9))
    assert probe_video(path, LIMITS).duration == pytest.approx(3, abs=0.2)
    assert not clip_of(path, 0, 3).damaged


def test_a_hole_in_the_stream_costs_the_frames_in_it_alone(file: MakeFile) -> None:
    content = bytearray(video(6, form="mov", codec="mjpeg"))
    third = len(content) // 3
    content[third : third + 4_000] = bytes(4_000)
    clip = clip_of(file(bytes(content)), 0, 6, most=6)
    assert clip.damaged
    assert {0, 5} <= {second_of(frame) for frame in clip.frames}


@pytest.mark.parametrize(
    ("form", "codec"), [("mp4", "h264"), ("matroska", "h264"), ("webm", "vp9"), ("mpegts", "h264")]
)
def test_a_frame_is_shown_until_the_next_one(file: MakeFile, form: str, codec: str) -> None:
    path = file(video(form=form, codec=codec, frames=[0, 1, 2, 50, 51, 100, 101]))
    assert probe_video(path, LIMITS).duration == pytest.approx(10.2, abs=0.1)
    clip = clip_of(path, 0, 10, most=10)
    assert [second_of(frame) for frame in clip.frames] == [0, 5]
    assert clip.times == pytest.approx([0.2, 5.1], abs=0.11)
    assert not clip.damaged


@pytest.mark.parametrize("form", ["mp4", "matroska"])
def test_a_video_that_begins_late_lasts_from_its_first_frame(file: MakeFile, form: str) -> None:
    path = file(video(form=form, codec="h264", frames=range(30, 70)))
    assert probe_video(path, LIMITS).duration == pytest.approx(4, abs=0.1)
    clip = clip_of(path, 0, 4, most=4)
    assert ([second_of(frame) for frame in clip.frames], clip.damaged) == ([3, 4, 5, 6], False)


def test_lost_packets_are_damage(file: MakeFile) -> None:
    recording, film, old = RECORDINGS["mpeg2video"][0], video(6, codec="h264"), video(6, form="avi")
    middle = PACKET * (len(recording) // PACKET // 2)
    lossy = (
        recording[:middle] + bytes(20 * PACKET) + recording[middle + 20 * PACKET :],
        without(film, lambda number, packet: packet.is_keyframe and number > 0, "matroska"),
        old[: len(old) * 4 // 5],
    )
    for content, is_damaged in (
        (recording, False),
        (film, False),
        (old, False),
        *((one, True) for one in lossy),
    ):
        path = file(content)
        assert clip_of(path, 0, probe_video(path, LIMITS).duration, most=6).damaged == is_damaged


def test_a_title_in_another_encoding_is_no_damage(file: MakeFile) -> None:
    content = video(1, form="matroska", codec="h264")
    writer = b"ENCODER"
    assert writer in content
    path = file(content.replace(writer, "보행".encode("euc-kr") + b"mp4"))
    assert probe_video(path, LIMITS).duration == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("method", ["uniform", "fps", "scene"])
def test_a_stretch_without_a_single_frame_is_damaged(file: MakeFile, method: str) -> None:
    path = file(video(2))
    expect(FailureCode.DAMAGED, lambda: clip_of(path, 8, 9, method=method))


def bright(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """A frame of the second of two recordings: its seconds are those from 40."""
    return by_the_second(number + 40 * RATE, width, height)


RECORDINGS = {
    codec: (video(6, form="mpegts", codec=codec), video(4, form="mpegts", codec=codec, picture=bright))
    for codec in ("mpeg2video", "h264")
}
PACKET = 188


@given(
    codec=st.sampled_from([*RECORDINGS]),
    cut=st.floats(0.3, 1),
    begin=st.sampled_from([0, PACKET, 3 * PACKET]),
    junk=st.binary(max_size=400),
)
def test_a_transport_stream_whose_clock_begins_anew_is_shown_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, codec: str, cut: float, begin: int, junk: bytes
) -> None:
    """Cut anywhere, with or without the tables before the second one, and with other bytes between them."""
    first, second = RECORDINGS[codec]
    path = tmp_path_factory.getbasetemp() / "joined.ts"
    path.write_bytes(first[: int(cut * len(first))] + junk + second[begin:])

    info = probe_video(path, LIMITS)
    clip = clip_of(path, 0, info.duration, most=40)

    seconds = [second_of(frame) for frame in clip.frames]
    assert {0, 1, 40, 41, 42, 43} <= set(seconds)
    assert seconds == sorted(seconds)
    assert clip.times[-1] == pytest.approx(info.duration, abs=0.5)
    assert len({second for second in seconds if second < 40}) == pytest.approx(info.duration - 4, abs=1.6)
    ending = clip_of(path, info.duration - 2, info.duration, most=2)
    assert [second_of(frame) for frame in ending.frames] == [42, 43]


def test_parts_of_a_transport_stream_may_have_other_pictures_and_other_identifiers(file: MakeFile) -> None:
    first, second = (
        video(3, form="mpegts", codec="mpeg2video"),
        video(3, form="mpegts", codec="h264", picture=bright, size=(96, 64), mpegts_start_pid="0x300"),
    )
    clip = clip_of(file(first + second + first), 0, 9, most=9)
    assert [second_of(frame) for frame in clip.frames] == pytest.approx([0, 1, 2, 40, 41, 42, 0, 1, 2], abs=1)


@given(places=st.lists(st.integers(0, 59), min_size=1, max_size=3, unique=True), value=st.integers(0, 255))
def test_a_broken_timestamp_begins_no_clock(
    tmp_path_factory: pytest.TempPathFactory, places: list[int], value: int
) -> None:
    content = bytearray(RECORDINGS["mpeg2video"][0])
    begins = [at for at in range(0, len(content), PACKET) if content[at + 1] & 0x40]
    pictures = [at for at in begins if b"\0\0\1\xe0" in content[at : at + PACKET]]
    for place in places[:1] + [one for one in places[1:] if abs(one - places[0]) > 3]:
        at = content.index(b"\0\0\1\xe0", pictures[place])
        content[at + 10 : at + 12] = bytes([value, value | 1])
    path = tmp_path_factory.getbasetemp() / "stamps.ts"
    path.write_bytes(content)
    assert probe_video(path, LIMITS).duration <= 6.5


@pytest.mark.parametrize(("form", "codec", "media"), CONTAINERS)
def test_files_that_were_joined_to_one_are_shown_one_after_the_other(
    file: MakeFile, form: str, codec: str, media: MediaType
) -> None:
    options: dict[str, Any] = {"live": "1"} if media is MediaType.MATROSKA else {}
    parts = (video(3, form=form, codec=codec, picture=shade, **options) for shade in (by_the_second, bright))
    path = file(b"".join(parts))
    info = probe_video(path, LIMITS)
    clip = clip_of(path, 0, info.duration, most=6)
    assert info.duration == pytest.approx(6, abs=0.3)
    assert [second_of(frame) for frame in clip.frames] == [0, 1, 2, 40, 41, 42]
    assert clip.times == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], abs=0.2)
    assert not clip.damaged


def test_a_joined_file_that_cannot_be_shown_is_damage(file: MakeFile) -> None:
    broken = bytearray(video(3))
    broken[broken.index(b"mp4v", broken.index(b"stsd")) :][:4] = b"none"
    broken[broken.index(b"trak") : broken.index(b"trak") + 4] = b"none"
    path = file(video(3) + bytes(broken))
    assert clip_of(path, 0, probe_video(path, LIMITS).duration, most=3).damaged


def shorter(content: bytes, media: MediaType) -> bytes:
    """Return the video with headers that state a third of its length."""
    if media is MediaType.MATROSKA:
        return content.replace(b"00:00:06.", b"00:00:02.")
    name, offset, order = (b"strh", 40, "<I") if media is MediaType.AVI else (b"mdhd", 20, ">I")
    at = content.index(name) + offset
    (stated,) = struct.unpack(order, content[at : at + 4])
    return content[:at] + struct.pack(order, stated // 3) + content[at + 4 :]


@pytest.mark.parametrize(("form", "codec", "media"), [CONTAINERS[0], CONTAINERS[3], CONTAINERS[4]])
def test_frames_behind_the_length_that_the_headers_state_are_shown(
    file: MakeFile, form: str, codec: str, media: MediaType
) -> None:
    content = video(6, form=form, codec=codec)
    short = shorter(content, media)
    assert short != content
    path = file(short)
    assert probe_video(path, LIMITS).duration == pytest.approx(6, abs=0.2)
    assert [second_of(frame) for frame in clip_of(path, 2, 6, most=4).frames] == [2, 3, 4, 5]


@given(
    form=st.sampled_from(CONTAINERS),
    wounds=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=40),
    method=st.sampled_from(["uniform", "scene"]),
)
def test_whatever_is_broken_costs_frames_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, form: Any, wounds: list[tuple[float, int]], method: str
) -> None:
    content = bytearray(WHOLE[form])
    for place, value in wounds:
        content[12 + round(place**3 * (len(content) - 13))] = value  # more of them in the headers
    path = tmp_path_factory.getbasetemp() / "broken"
    path.write_bytes(content)

    with suppress(MediaError):
        clip = clip_of(path, 0, probe_video(path, LIMITS).duration, method=method, most=3)
        assert len(clip.frames) == len(clip.times) > 0


@pytest.mark.parametrize(
    "content",
    [video(0, sound=2), video(1, form="matroska", codec="ffv1"), b"\x89PNG\r\n\x1a\n", b"a text"],
    ids=["sound alone", "a coding that is not admitted", "a picture", "a text"],
)
def test_what_has_nothing_to_caption_is_refused(file: MakeFile, content: bytes) -> None:
    expect(FailureCode.UNSUPPORTED_TYPE, lambda: probe_video(file(content), LIMITS))


@pytest.mark.parametrize("head", [b"\0\0\0\x18ftypmp42", b"\x1a\x45\xdf\xa3", b"RIFF\xff\0\0\0AVI "])
def test_headers_without_a_video_behind_them_are_damaged(file: MakeFile, head: bytes) -> None:
    path = file(head + bytes(600))
    expect(FailureCode.DAMAGED, lambda: probe_video(path, LIMITS))
    expect(FailureCode.DAMAGED, lambda: clip_of(path, 0, 1))


def test_a_header_that_claims_to_last_for_days_is_too_long(file: MakeFile) -> None:
    content = video(3, form="matroska", codec="h264")
    assert content.count(b"00:00:03.") == 1
    path = file(content.replace(b"00:00:03.", b"99:00:03."))
    expect(FailureCode.TOO_LONG, lambda: probe_video(path, LIMITS))


def test_a_video_beyond_the_limits_is_refused(file: MakeFile) -> None:
    path = file(video(3))

    expect(FailureCode.TOO_LONG, lambda: probe_video(path, replace(LIMITS, video_s=2)))
    expect(FailureCode.TOO_LARGE, lambda: probe_video(path, replace(LIMITS, page_pixels=160 * 96 - 1)))
    expect(FailureCode.TOO_LARGE, lambda: probe_video(path, replace(LIMITS, file_bytes=100)))
    stretch = Stretch(start=0, end=3)
    expect(FailureCode.DECODE_TIMEOUT, lambda: load_clip(path, stretch, plan(), replace(LIMITS, decode_s=0)))
    expect(FailureCode.TOO_LONG, lambda: LIMITS.check_segments(1_001))


def test_a_video_without_a_frame_is_empty(file: MakeFile) -> None:
    cut = video(3, movflags="frag_keyframe+empty_moov")
    only_headers = cut[: cut.index(b"moof") - 4]
    expect(FailureCode.EMPTY, lambda: probe_video(file(only_headers), LIMITS))


@pytest.mark.parametrize(
    "hostile",
    [with_edits(video(3), 100_000), with_durations(video(3), 2**31 - 1), with_durations(video(3), 0)],
    ids=["100,000 edits", "frames for years", "frames for no time"],
)
def test_tables_that_mean_no_good_cost_frames_at_most(file: MakeFile, hostile: bytes) -> None:
    path = file(hostile)
    assert len(clip_of(path, 0, probe_video(path, LIMITS).duration).frames)


def test_more_streams_than_a_film_has_are_too_large(file: MakeFile) -> None:
    assert probe_video(file(with_tracks(video(1), 40)), LIMITS).duration == 1
    expect(FailureCode.TOO_LARGE, lambda: probe_video(file(with_tracks(video(1), 1_000)), LIMITS))


def test_a_table_of_more_frames_than_the_file_has_bytes_is_none(file: MakeFile) -> None:
    expect(FailureCode.EMPTY, lambda: probe_video(file(with_sizes(video(1), 2**32 - 1)), LIMITS))


@pytest.mark.parametrize("tag", [b"00:00:0nan", b"00:00:0inf", b"-9:00:03.0", b"1e999:00:3"])
def test_a_length_that_is_no_time_is_counted_instead(file: MakeFile, tag: bytes) -> None:
    content = video(3, form="matroska", codec="h264")
    start = content.index(b"00:00:03.")
    path = file(content[:start] + tag + content[start + len(tag) :])
    assert probe_video(path, LIMITS).duration == pytest.approx(3, abs=0.1)
