"""Print on the back of a page that shines through: mirrored, and often paler and softer than the page's own print."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_schemas.blocks import Box, Line, Word, mean_confidence
from pecia_workers.layout.ink import from_paper
from pecia_workers.layout.lines import around

Quad: TypeAlias = NDArray[np.float32]
"""Four corners of a piece of text: top left, top right, bottom right, bottom left of the text."""

_WEAK: Final = 0.75
"""Contrast, relative to the page's own print, below which a piece may be on the back."""
_DARK: Final = 120.0
"""Contrast, in levels, from which a mirrored piece is not on the back, on a page without own print."""
_SURE, _UNSURE = 0.9, 0.8
"""Confidence from which a piece is own print, and below which a piece as pale as the back is on the back."""
_MIRRORED, _BETTER = 0.8, 0.05
"""Confidence of a mirrored reading, and its lead over the plain reading, from which a piece is on the back."""
_MIN_LETTERS: Final = 3
_CLEANED, _PALER = 1.3, 0.6
"""Contrast up to which ink is removed, relative to the back's palest pieces; and its limit, relative to own print."""
_SPREAD: Final = 1.15
"""Contrast of a further piece on the back, relative to most known ones."""


class BackOfPage:
    """Finds the pieces of a page that are on its back."""

    def __init__(self, pixels: NDArray[np.uint8], read_mirrored: Callable[[Quad], tuple[str, float]]) -> None:
        """`read_mirrored` returns the text of a mirrored piece, and its confidence."""
        self._grey = np.ascontiguousarray(pixels[:, :, 1])
        self._read_mirrored = read_mirrored
        self._own = 0.0
        self._palest_kept = 0.0
        self._found: list[float] = []
        self.palest = 0.0
        """Contrast up to which print counts as pale as the back's."""

    def find(self, pieces: Sequence[tuple[Quad, Line]]) -> list[bool]:
        """Return for each piece whether it is on the back."""
        sure = [self._contrast(quad) for quad, piece in pieces if (piece.confidence or 0) >= _SURE]
        self._own = float(np.percentile(sure, 75)) if sure else 0.0
        mirrored = [self._is_mirrored(quad, piece) for quad, piece in pieces]
        for _, piece in pieces:
            self._look_at_ends(piece.words)
        found = [one or self._is_as_pale(*piece) for one, piece in zip(mirrored, pieces, strict=True)]
        kept = [
            self._contrast(quad)
            for (quad, piece), is_back in zip(pieces, found, strict=True)
            if not is_back and (piece.confidence or 0) >= _SURE
        ]
        self._palest_kept = min(kept, default=0.0)
        return found

    def cleaned(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Return the page without ink as pale as its back's; None if it has none, or own print is as pale."""
        most = _CLEANED * self.palest
        if not 0 < most < min(_PALER * self._own, self._palest_kept / _CLEANED):
            return None
        grey = Image.fromarray(pixels).convert("L")
        pale = from_paper(grey) <= most
        paper = np.percentile(pixels[pale], 50, axis=0) if pale.any() else 255
        return np.where(pale[:, :, np.newaxis], paper, pixels).astype(np.uint8)

    def has(self, quad: Quad, piece: Line) -> bool:
        """Return whether a further piece is on the back."""
        return self._is_as_pale(quad, piece) or self._is_mirrored(quad, piece)

    def _is_mirrored(self, quad: Quad, piece: Line) -> bool:
        sure, contrast = piece.confidence or 0, self._contrast(quad)
        if contrast >= (_WEAK * self._own if self._own else _DARK):
            return False
        text, mirrored = self._read_mirrored(quad)
        better = _BETTER if contrast > self.palest else -_BETTER
        if mirrored < max(_MIRRORED, sure + better) or sum(map(str.isalnum, text)) < _MIN_LETTERS:
            return False
        self._found.append(contrast)
        self.palest = _SPREAD * float(np.median(self._found))
        return True

    def _is_as_pale(self, quad: Quad, piece: Line) -> bool:
        """Return whether a piece is as pale as the back's print, and was not read with confidence."""
        is_short = sum(map(str.isalnum, piece.text)) < _MIN_LETTERS  # which say little either way
        is_unsure = is_short or (piece.confidence or 0) < _UNSURE
        return is_unsure and self._contrast(quad) <= self.palest

    def _look_at_ends(self, words: Sequence[Word]) -> None:
        """Find words of the back at the ends of a line of own print, next to a line of the back."""
        pale = [self._contrast(_quad(word.box)) < _PALER * self._own for word in words]
        if any(pale) and not all(pale):
            for run in (words[: pale.index(False)], words[len(pale) - pale[::-1].index(False) :]):
                if sum(len(word.text) for word in run) >= _MIN_LETTERS:
                    box, sure = around(word.box for word in run), mean_confidence(run)
                    self._is_mirrored(_quad(box), Line(text="", box=box, confidence=sure))

    def _contrast(self, quad: Quad) -> float:
        """Return the contrast of a piece's ink with its paper."""
        (left, top), (right, bottom) = quad.min(axis=0).astype(int), quad.max(axis=0).astype(int)
        crop = self._grey[max(0, top) : bottom + 1, max(0, left) : right + 1]
        if not crop.size:
            return 0.0
        up_to = cv2.calcHist([crop], [0], None, [256], [0, 256]).cumsum()  # many times faster than to sort
        places = (crop.size - 1) * np.array([0.03, 0.9])
        low, high = (
            np.searchsorted(up_to, ends, side="right") for ends in (np.floor(places), np.ceil(places))
        )
        darkest, paper = low + (high - low) * (places % 1)
        return float(paper - darkest)


def _quad(box: Box) -> Quad:
    corners = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom))
    return np.array(corners, np.float32)
