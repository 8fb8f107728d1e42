"""How full the engine is kept while there is work for it."""

from __future__ import annotations


class Packing:
    """Mean use of the KV cache over the time in which requests waited for it; of the slots where there is no cache."""

    def __init__(self) -> None:
        self._used = 0.0
        self._backlog = False
        self._since = 0.0
        self._used_s = 0.0
        self._waited_s = 0.0

    @property
    def share(self) -> float | None:
        """The mean; None before anything waited."""
        return self._used_s / self._waited_s if self._waited_s else None

    def look(self, used: float, now: float, *, waiting: int) -> None:
        """Take note of the share in use at `now`, in seconds, while so many requests wait for room."""
        if self._backlog:
            passed = now - self._since
            self._waited_s += passed
            self._used_s += passed * self._used
        self._used, self._backlog, self._since = used, waiting > 0, now
