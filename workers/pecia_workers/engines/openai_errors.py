"""What a server answers instead of a text, told apart by its status alone: the words may quote a page."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pecia_workers.engines.base import EngineError, EngineRefusedError
from pecia_workers.webhooks.schedule import parse_retry_after

if TYPE_CHECKING:
    from datetime import timedelta

_REFUSALS: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_KEYS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_FAILED: Final = 500


class UnansweredError(Exception):
    """No answer came; another try may bring one."""

    def __init__(self, reason: str, *, status: int | None = None, asked: timedelta | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.asked = asked
        """How long the server wants to be left alone."""


class LockedOutError(Exception):
    """The server does not take the key."""


def error_of(status: int, retry_after: str | None = None) -> Exception:
    """Return what an answer with this status means."""
    if status in _KEYS:
        return LockedOutError()
    if status in _REFUSALS:
        return EngineRefusedError(f"The server refuses the request as it is (HTTP {status}).")
    if status in _LATER or status >= _FAILED:
        return UnansweredError(f"HTTP {status}", status=status, asked=parse_retry_after(retry_after))
    return EngineError(f"The server has no answer for this request (HTTP {status}).")
