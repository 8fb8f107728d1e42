"""Whatever a model may write or a file may hold, as Postgres and JSON can keep it."""

from __future__ import annotations

from typing import Any, Final

_DEEPEST: Final = 64
"""Levels of nesting; serializers end at a few hundred."""


def storable_text(text: str) -> str:
    """Return the text without NUL, and with a replacement for each half of a character that stands alone."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: Any, depth: int = 0) -> Any:
    """Return the same for every text in a JSON value. Raises `ValueError` if it is nested too deeply."""
    if depth > _DEEPEST:
        message = "nested too deeply"
        raise ValueError(message)
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(name): storable(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner, depth + 1) for inner in value]
    return value
