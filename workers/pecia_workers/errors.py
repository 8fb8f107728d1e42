"""Errors that cross the fleet's folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pecia_schemas import FailureCode


class PartFailedError(Exception):
    """A part failed. Its text is the code alone, for Celery shows it to everyone."""

    def __init__(self, code: FailureCode) -> None:
        super().__init__(str(code))
        self.code = code


class PartCancelledError(Exception):
    """A part was cancelled, or erased, before its end."""
