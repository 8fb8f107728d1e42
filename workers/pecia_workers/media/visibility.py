"""Which characters of a text layer can be seen on the page that was drawn.

A character is seen by its edges, of ink or of light print: as many as its box is wide and high, or more. Of dark print
each is judged by itself, for a bar may cover part of a word. Pale print is visible in full or not at all: the edges of
some of its letters are just sharp enough, those of others are not.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_workers.layout.ink import sum_within
from pecia_workers.media.layer_characters import Character
from pecia_workers.media.layer_text import gap_between

_LEAST_POINTS, _MOST_PIXELS = 1.55, 6.5
"""Font size up to which print is hidden, in points; at most so many pixels, however large the page is drawn."""
_LEAST_CONTRAST: Final = 6
"""From pixel to pixel, of an edge."""
_LEAST_EDGES: Final = 1.0
"""Of a character, by the sum of its width and height."""
_PALE: Final = 48
"""Grey levels between print and ground up to which it is pale."""
_PAPER: Final = 200
"""Grey from which paper is light."""


def visible_characters(
    characters: Sequence[Character | None], grey: NDArray[np.uint8], *, scale: float
) -> set[int]:
    """Return the `id` of those that can be seen, and of those that would be if their font were there.

    `scale`: pixels in a point.
    """
    least_size = min(_LEAST_POINTS * scale, _MOST_PIXELS)
    shown = [one for one in characters if one and not one.invisible and one.size >= least_size]
    edges, least = _edges(shown, grey), _least_edges(shown)
    seen = {id(one) for one, is_seen in zip(shown, (edges >= least).tolist(), strict=True) if is_seen}
    if len(seen) == len(shown):
        return seen
    surplus = dict(zip(map(id, shown), (edges - least).tolist(), strict=True))
    for run in _runs([one if one is None or id(one) in surplus else None for one in characters]):
        unseen = [one for one in run if id(one) not in seen]
        if unseen and len(unseen) < len(run):
            kept = set(map(id, _seen_of(run, seen, surplus, grey)))
            seen.difference_update(map(id, run))
            seen |= kept
    return seen | {
        id(one) for one in shown if not one.has_glyph and _part(one, grey).min(initial=255) >= _PAPER
    }


def _seen_of(
    run: Sequence[Character], seen: set[int], surplus: dict[int, float], grey: NDArray[np.uint8]
) -> Iterator[Character]:
    """Yield the visible text of a run whose characters are not all visible by themselves."""
    parts = [_part(one, grey) for one in run]
    contrasts = [np.ptp(part) for one, part in zip(run, parts, strict=True) if id(one) in seen]
    if np.median(contrasts) >= _PALE:
        yield from (one for one in run if id(one) in seen)
    elif sum(surplus[id(one)] for one in run) >= 0:
        levels = [float(part.mean()) for part in parts]
        usual = float(np.median(levels))  # bars are below it
        yield from (one for one, level in zip(run, levels, strict=True) if abs(level - usual) < _PALE)


def _runs(characters: Sequence[Character | None]) -> Iterator[list[Character]]:
    """Yield words, or runs drawn at once if longer: mostly of one print."""
    run: list[Character] = []
    spaced = False
    for character in characters:
        if character is None:
            spaced = True
            continue
        is_word = bool(run) and not spaced and gap_between(run[-1], character) is not None
        if run and not is_word and run[-1].order != character.order:
            yield run
            run = []
        run.append(character)
        spaced = False
    if run:
        yield run


def _part(character: Character, grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    left, top, right, bottom = (max(0, int(side)) for side in character.box)
    return grey[top : bottom + 1, left : right + 1]


def _least_edges(characters: Sequence[Character]) -> NDArray[np.float64]:
    boxes = np.array([one.box for one in characters]).reshape(-1, 4)
    least: NDArray[np.float64] = _LEAST_EDGES * (boxes[:, 2] - boxes[:, 0] + boxes[:, 3] - boxes[:, 1])
    return least


def _edges(characters: Sequence[Character], grey: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return how many edges there are in and around the box of each."""
    page = grey.astype(np.int16)
    sums = np.zeros((grey.shape[0] + 1, grey.shape[1] + 1), dtype=np.int32)
    sums[1:-1, 1:] += np.abs(np.diff(page, axis=0)) >= _LEAST_CONTRAST
    sums[1:, 1:-1] += np.abs(np.diff(page, axis=1)) >= _LEAST_CONTRAST
    sums.cumsum(axis=0, out=sums).cumsum(axis=1, out=sums)
    boxes = np.array([one.box for one in characters]).reshape(-1, 4)
    left, top = (np.floor(boxes[:, :2].T) - 1).astype(np.intp)
    right, bottom = (np.ceil(boxes[:, 2:].T) + 1).astype(np.intp)
    return sum_within(sums, left, top, right, bottom)
