"""Times within a video, as people and players write them."""

from __future__ import annotations

from datetime import timedelta

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
