"""How well a text was read."""

from __future__ import annotations

from rapidfuzz.distance import Levenshtein


def accuracy(read: str, known: str) -> float:
    """Return 1 minus the character error rate, white space aside: 1.0 is exact, 0.0 is nothing right.

    The rate is the edit distance by the known text's length; an empty known text is exact only if nothing was read.
    """
    found, expected = "".join(read.split()), "".join(known.split())
    if not expected:
        return 0.0 if found else 1.0
    return max(0.0, 1 - Levenshtein.distance(found, expected) / len(expected))
