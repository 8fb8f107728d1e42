"""Captions as subtitles: WebVTT (https://www.w3.org/TR/webvtt1/) and SubRip, which has no written standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import escape

from pecia.formats import missing
from pecia_schemas.results import Captions, Segment, SegmentFailure

_MILLISECOND = timedelta(milliseconds=1)


def short(moment: timedelta) -> str:
    """Return hours, minutes and seconds, as in `0:01:30`."""
    minutes, seconds = divmod(round(moment.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def milliseconds(moment: timedelta) -> int:
    """Return the nearest whole millisecond."""
    return round(moment / _MILLISECOND)


def stamp(millisecond: int, point: str) -> str:
    """Return a subtitle's timestamp, as in `00:01:30.250` with `point` before the milliseconds."""
    seconds, millisecond = divmod(millisecond, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{millisecond:03}"


_BREAKS = re.compile(r"[ \t]*(?:\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])\s*")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_ARROW = re.compile("-{2,}>")
_TAG = re.compile(r"<(?=[/A-Za-z])")


def webvtt(captions: Captions) -> str:
    """Return WebVTT: a cue for each segment; notes hold the summary and say what is missing."""
    blocks = ["WEBVTT"]
    if captions.summary:
        blocks.append(_note(captions.summary.text))
    for one in missing.segments(captions):
        if isinstance(one, SegmentFailure):
            blocks.append(_note(missing.segment(one)))
        elif text := _cue(one.text):
            blocks.append(f"{one.number}\n{_times(one, '.')}\n{escape(text, quote=False)}")
        else:
            blocks.append(_note(f"Segment {one.number} has no caption: {one.verdict}."))
    return "\n\n".join(blocks) + "\n"


def srt(captions: Captions) -> str:
    """Return SubRip: a cue for each segment that has a caption. It has no place for anything else."""
    cues = [(one, text) for one in captions.segments if (text := _cue(one.text))]
    return "\n".join(
        f"{number}\n{_times(one, ',')}\n{_unmarked(text)}\n" for number, (one, text) in enumerate(cues, 1)
    )


def _times(segment: Segment, point: str) -> str:
    """Return the line of a cue that says when it is shown: for a millisecond at least, or players drop it."""
    start, end = milliseconds(segment.start), milliseconds(segment.end)
    return f"{stamp(start, point)} --> {stamp(max(end, start + 1), point)}"


def _cue(text: str) -> str:
    """Return a caption as lines none of which is empty, for an empty one ends its cue."""
    return "\n".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
    for line in _BREAKS.split(text):
        if cleaned := _CONTROLS.sub("", line).strip():
            yield cleaned


def _note(text: str) -> str:
    return "\n".join(["NOTE", *(_ARROW.sub("->", line) for line in _lines(text))])


def _unmarked(text: str) -> str:
    """Return what no player takes for a time or a tag: SubRip knows no escapes, so look-alikes stand in."""
    return _TAG.sub("\u2039", _ARROW.sub("->", text)).replace("{\\", "(\\")
