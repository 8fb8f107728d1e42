"""How an answer ended, told by its tokens: Ray's processor does not hand on vLLM's own word for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecia_schemas.results import Verdict
from pecia_workers.engines.loops import is_loop

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def ending_of(tokens: Sequence[int], ends: Collection[int]) -> Verdict:
    """Return the verdict of an answer: one that is whole ends with a token that `ends` a text; others were cut off."""
    if tokens and tokens[-1] in ends:
        return Verdict.OK
    return Verdict.REPETITION if is_loop(tokens) else Verdict.TRUNCATED
