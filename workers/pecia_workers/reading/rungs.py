"""What may be changed of a request whose answer was no good, and in which order: data and pure functions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from pecia_schemas.results import Change, Verdict
from pecia_workers.engines.base import EngineRequest, Generation, Sampling
from pecia_workers.engines.fitting import resized

RUNGS: Final = {
    Verdict.REPETITION: (Change.TEMPERATURE, Change.PENALTY, Change.SMALLER),
    Verdict.TRUNCATED: (Change.SMALLER, Change.PENALTY, Change.TEMPERATURE),
    Verdict.UNREADABLE: (Change.TEMPERATURE, Change.SMALLER),
}
"""A loop is left by another word. A smaller picture leaves more of the context to a text that was cut off. A penalty
on repeated words means nothing to a text without any."""

_HOTTER: Final = 0.4
_STRICTER: Final = 0.1
_MOST: Final = 2.0
"""Of either, as a task's options have it."""
_SHRINK: Final = 0.75
"""Of each side."""
_LEAST_SIDE: Final = 112
"""Pixels; four tokens of most families, below which nothing is legible."""


def next_change(verdict: Verdict, tried: Collection[Change]) -> Change | None:
    """Return what to try after an answer with this verdict; None if nothing is left or the answer is good."""
    return next((change for change in RUNGS.get(verdict, ()) if change not in tried), None)


def was_cut_as_asked(request: EngineRequest, generation: Generation) -> bool:
    """Return whether the text ends where the task itself wants it to end."""
    most = request.max_output_tokens
    return generation.verdict is Verdict.TRUNCATED and most is not None and generation.usage.output >= most


def changed(request: EngineRequest, change: Change, seen: tuple[int, int]) -> EngineRequest | None:
    """Return the request with that one change, under an id of its own; None if it cannot be changed any further.

    `seen` are the width and height at which the engine has seen the picture. `smaller` takes up to a second.
    """
    again = replace(request, id=f"{request.id}:{change}")
    match change:
        case Change.TEMPERATURE:
            sampling = request.sampling
            return _resampled(
                again, replace(sampling, temperature=min(_MOST, sampling.temperature + _HOTTER))
            )
        case Change.PENALTY:
            sampling = request.sampling
            penalty = min(_MOST, sampling.repetition_penalty + _STRICTER)
            return _resampled(again, replace(sampling, repetition_penalty=penalty))
        case Change.SMALLER:
            size = (round(seen[0] * _SHRINK), round(seen[1] * _SHRINK))
            if min(size) < _LEAST_SIDE:
                return None
            return replace(again, images=tuple(resized(image, size) for image in request.images))
        case Change.FALLBACK:
            return again


def _resampled(request: EngineRequest, sampling: Sampling) -> EngineRequest | None:
    return replace(request, sampling=sampling) if sampling != request.sampling else None
