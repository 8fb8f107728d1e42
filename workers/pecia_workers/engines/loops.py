"""When a text counts as a loop, for every engine that can end one early."""

from __future__ import annotations

from typing import Final

LOOPS: Final = {"min_pattern_size": 8, "max_pattern_size": 48, "min_count": 12}
"""So many equal patterns of so many tokens at the end of the text; the names are vLLM's.

A shorter pattern repeats within the shortest; an empty table of a dozen rows is not yet a loop.
"""
