"""When a text counts as a loop, for every engine that can end one early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LOOPS: Final = {"min_pattern_size": 8, "max_pattern_size": 48, "min_count": 12}
"""So many equal patterns of so many tokens at the end of the text; the names are vLLM's.

A shorter pattern repeats within the shortest; an empty table of a dozen rows is not yet a loop.
"""


def is_loop(pieces: Sequence[object]) -> bool:
    """Return whether a text that came in these pieces, of a token each, ends in a loop."""
    sizes = range(LOOPS["min_pattern_size"], LOOPS["max_pattern_size"] + 1)
    return any(_repeats(pieces, size) for size in sizes)


def _repeats(pieces: Sequence[object], size: int) -> bool:
    """Return whether the end is one pattern of `size` pieces, often enough: then it equals itself, shifted by one."""
    length = size * LOOPS["min_count"]
    if len(pieces) < length or pieces[-1] != pieces[-1 - size]:
        return False
    return pieces[-length:-size] == pieces[-length + size :]
