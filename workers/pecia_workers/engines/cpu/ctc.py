"""Decoding of a CTC recogniser's output: the characters of a line, each with its runner-up.

A network that was trained by connectionist temporal classification (Graves et al., ICML 2006) gives each column of a
line a probability for every character and for none. A character is the best class of one or more consecutive columns;
its rival is the second-best character there.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_workers.layout.characters import Character

_NONE: Final = 0
"""Class of a column without a character."""
_LEAST: Final = 1e-9
"""Least probability, so that no single column excludes a character."""


def decoded(scores: NDArray[np.float32], signs: Sequence[str], columns: float) -> list[Character]:
    """Return the characters of a line.

    `scores`: a row for each column, with a probability for each of `signs`. `columns`: width of the line in columns;
    the rest is padding.
    """
    best = scores.argmax(axis=1)
    starts = np.flatnonzero(np.diff(best, prepend=_NONE))
    ends = np.append(starts, len(best))[1:]
    found: list[Character] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        sign = int(best[start])
        if sign == _NONE:
            continue
        peaks = scores[start:end].max(axis=0)
        confidence = float(scores[start, sign])
        peaks[[_NONE, sign]] = 0.0
        rival = int(peaks.argmax())
        place = -1.0 if signs[sign].isspace() else (start + 0.5) / columns
        found.append(
            Character(signs[sign], place, min(1.0, confidence), signs[rival], min(1.0, float(peaks[rival])))
        )
    return found


def log_likelihood(scores: NDArray[np.float32], classes: Sequence[int]) -> float:
    """Return the log-likelihood of these characters, given by class, summed over all alignments with the columns."""
    states = np.array([_NONE, *(one for sign in classes for one in (sign, _NONE))])
    may_skip = np.zeros(len(states), np.bool_)  # a blank between two characters, unless they are the same
    may_skip[2:] = states[2:] != states[:-2]
    logs = np.log(np.maximum(scores[:, states], _LEAST)).astype(np.float64)
    reached = np.full(len(states) + 2, -np.inf)  # after two that are never reached
    reached[2] = 0.0
    for log in logs:
        skipped = np.where(may_skip, reached[:-2], -np.inf)
        reached[2:] = np.logaddexp(np.logaddexp(reached[2:], reached[1:-1]), skipped) + log
    return float(np.logaddexp(reached[-1], reached[-2]))
