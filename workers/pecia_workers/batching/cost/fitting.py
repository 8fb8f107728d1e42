"""How far a picture must shrink to cost no more than allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pecia_workers.batching.cost.base import RefusedSizeError, TooManyTokensError

LEAST_SIDE = 28
"""No picture is shrunk below this short side, in pixels: nothing could be read, and rounding would bend its aspect."""


def largest_fit(
    tokens: Callable[[int, int], int], width: int, height: int, most_tokens: int
) -> tuple[int, int]:
    """Return the largest size of the picture's aspect whose `tokens` are at most `most_tokens`.

    Every long side is tried from the picture's own downwards, because no family's cost grows evenly with the size: a
    bisection could step over the largest fit. Raises `TooManyTokensError`; `RefusedSizeError` if the picture itself
    is refused.
    """
    least = tokens(width, height)
    if least <= most_tokens:
        return width, height
    for size in _smaller(width, height):
        cost = _cost(tokens, size)
        if cost is not None and cost <= most_tokens:
            return size
        least = least if cost is None else min(least, cost)
    raise TooManyTokensError(least, most_tokens)


def _smaller(width: int, height: int) -> Iterator[tuple[int, int]]:
    long, short = max(width, height), min(width, height)
    for side in range(long - 1, 0, -1):
        other = round(short * side / long)
        if other < LEAST_SIDE:
            return
        yield (side, other) if width >= height else (other, side)


def _cost(tokens: Callable[[int, int], int], size: tuple[int, int]) -> int | None:
    try:
        return tokens(*size)
    except RefusedSizeError:  # the rounded aspect may fall just outside of what the processor takes
        return None
