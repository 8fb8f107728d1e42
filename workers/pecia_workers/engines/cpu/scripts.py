"""Detection of a page's script, where the library that read it does not know that script.

A detector finds text in any script; a recogniser is unsure of letters that it does not know, which stay unread although
their ink is sharp. Hangul has distinctive shapes; other scripts, and handwriting, are not distinguished.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, mean_confidence, text_of
from pecia_workers.layout.ink import View
from pecia_workers.media.orientation import stands_on_head, text_spans

HANGUL: Final = "Hangul"
_MOST_COVERED: Final = 0.6
"""Share of the letters that were read up to which a script may be unknown. Measured: Hangul 0.2, Greek 0.4 to 0.6,
others less; known scripts 1.0."""
_LEAST_STEP: Final = 0.3
"""Of the page's contrast, between two pixels at the edge of sharp print. Measured: 0.5 and more; blurred so that known
letters are not read either, 0.2."""
_LEAST_HANGUL, _LEAST_CONFIDENCE = 0.2, 0.6
"""Share of syllables in a reading, and its confidence, from which a page is Korean."""


def unread_script(pixels: NDArray[np.uint8], coverage: float | None) -> str | None:
    """Return the script of a page by the share that was read: empty if unknown; None: the page was read."""
    if coverage is None or coverage > _MOST_COVERED or not _is_sharp(pixels):
        return None
    level = View.of(pixels).levelled()
    return "" if stands_on_head(level.letters, text_spans(level.letters)) is None else HANGUL


def _is_sharp(pixels: NDArray[np.uint8]) -> bool:
    green = pixels[:, :, 1].astype(np.int16)
    contrast = float(np.ptp(np.percentile(green, (0.5, 99.5))))
    steps = np.abs(np.diff(green, axis=1))
    edges = steps[steps > contrast / 10]
    return bool(edges.size) and float(np.percentile(edges, 90)) >= _LEAST_STEP * contrast


def is_korean(blocks: Sequence[Block]) -> bool:
    """Return whether a reading is Korean text."""
    letters = [letter for letter in text_of(blocks) if letter.isalpha()]
    syllables = sum("\uac00" <= letter <= "\ud7a3" for letter in letters)
    confidence = mean_confidence(line for block in blocks for line in block.lines) or 0.0
    return syllables >= _LEAST_HANGUL * max(1, len(letters)) and confidence >= _LEAST_CONFIDENCE
