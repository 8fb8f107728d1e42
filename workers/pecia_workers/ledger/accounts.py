"""What a part took: tokens and seconds, added up in columns of its own row by the transaction that ends the attempt.

On the part and not with its result, because results are deleted long before anybody has been charged for them, and
because a part that failed has spent something and has no result. What a killed or cancelled attempt spent is not
known, and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pecia_schemas import Page, Segment, Summary, Timings, TokenUsage

_ADDED = {
    "prompt_tokens": "int",
    "image_tokens": "int",
    "cached_tokens": "int",
    "output_tokens": "int",
    "wasted_tokens": "int",
    "queued_s": "float",
    "decode_s": "float",
    "engine_s": "float",
    "saved_tokens": "int",
}
_REPLACED = {"engine": "text", "first_token_s": "float"}
_TYPES = _ADDED | _REPLACED

COLUMNS = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
"""Columns of `parts` with their types, as `jsonb_to_recordset` wants them."""
ADD_TO_PART = ", ".join(
    [f"{name} = coalesce(parts.{name} + chosen.{name}, chosen.{name}, parts.{name})" for name in _ADDED]
    + [f"{name} = coalesce(chosen.{name}, parts.{name})" for name in _REPLACED]
)
"""For `moving`: attempts add up, but for the engine and the first token, which are the last's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one attempt at a part took."""

    engine: str
    usage: TokenUsage
    timings: Timings
    saved_tokens: int | None = None
    """What it did not take, because an earlier result was used; None if none was."""

    @classmethod
    def on(cls, result: Page | Segment | Summary) -> Spent:
        """Return what a result took."""
        earlier = result.cached_from and result.cached_from.usage
        saved = earlier.prompt + earlier.output if earlier else None
        return cls(engine=result.engine, usage=result.usage, timings=result.timings, saved_tokens=saved)

    @property
    def in_vain(self) -> Spent:
        """The same for an attempt that failed: all its tokens are wasted."""
        wasted = self.usage.prompt + self.usage.output
        usage = self.usage.model_copy(update={"wasted": wasted})
        return Spent(engine=self.engine, usage=usage, timings=self.timings)


def account_of(spent: Spent | None) -> dict[str, Any]:
    """Return the values of `COLUMNS`; none if the attempt reached no engine."""
    if spent is None:
        return {}
    return {
        "engine": spent.engine,
        "saved_tokens": spent.saved_tokens,
        **{f"{name}_tokens": tokens for name, tokens in spent.usage},
        **{f"{name}_s": seconds for name, seconds in spent.timings},
    }
