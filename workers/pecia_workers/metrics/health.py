"""Whether a process moves, judged by its work: that it lives and turns its loop says little.

A worker that could claim and does not, or holds parts and finishes none, is not healthy, and is better started again.
What it waits for is no fault of its own: while Redis or Postgres is away nothing is judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

_LOOK_S = 5.0
_PATIENCE_S = 60.0
"""How long a worker may claim nothing though something waits: it looks every second."""
_STEP_S = 300.0
"""How long a service may be at one thing: the relay of a million parts takes minutes."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a process is, in a word or two that hold no id."""

    ok: bool
    reason: str


class Health(Protocol):
    """What `/healthz` and `/readyz` say."""

    def live(self) -> Condition:
        """Whether it moves, or has nothing to do; if not, it should be started again."""
        ...

    def ready(self) -> Condition:
        """Whether it takes work now."""
        ...


class Pulse:
    """When a service last came round: finished a step, or looked for work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def beat(self) -> None:
        """Say that it came round."""
        self._last = self._clock()

    def live(self) -> Condition:
        """Return whether it did lately; one that has not begun is starting."""
        if self._last is None:
            return Condition(ok=True, reason="starting")
        silent = self._clock() - self._last
        if silent > _STEP_S:
            return Condition(ok=False, reason=f"stalled for {silent:.0f} s")
        return Condition(ok=True, reason="working")

    def ready(self) -> Condition:
        """Return whether it has begun, and moves."""
        return self.live() if self._last is not None else Condition(ok=False, reason="starting")


PULSE = Pulse()
"""This process's, if it is a service without parts."""


class Holder(Protocol):
    """What a worker has taken."""

    @property
    def held(self) -> int:
        """How many parts it holds."""
        ...

    @property
    def moved_at(self) -> float:
        """When it last claimed a part or was rid of one, by the monotonic clock."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it has started and is not stopping."""
        ...


class WorkerHealth:
    """Of a worker with parts. It looks every few seconds, so that asking it costs nothing and never waits."""

    def __init__(
        self,
        holder: Holder,
        *,
        backlog: Callable[[], int | None],
        database_answers: Callable[[], bool],
        hold_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take how much waits that this worker could do (None: Redis is away) and how long a part may be held."""
        self._holder = holder
        self._backlog = backlog
        self._database_answers = database_answers
        self._hold_limit_s = hold_limit_s
        self._clock = clock
        self._excused_at = clock()
        self._redis_answers = True
        self._stalled = False

    def watch(self) -> None:
        """Begin to look, on a thread of its own, until the process ends."""
        threading.Thread(target=self._keep_looking, name="health", daemon=True).start()

    def live(self) -> Condition:
        """Return what the last look found."""
        if not self._holder.is_open:
            return Condition(ok=True, reason="starting or stopping")
        if self._stalled:
            return Condition(ok=False, reason=f"stalled for {self._still():.0f} s")
        return Condition(ok=True, reason="working" if self._holder.held else "idle")

    def ready(self) -> Condition:
        """Return whether the worker claims."""
        if not self._holder.is_open:
            return Condition(ok=False, reason="starting or stopping")
        if not self._redis_answers:
            return Condition(ok=False, reason="Redis does not answer")
        return self.live()

    def look(self) -> None:
        """Judge once."""
        if not self._holder.is_open:
            self._excused_at = self._clock()
            return
        waiting = self._backlog()
        self._redis_answers = waiting is not None
        nothing_to_do = waiting is None or not (waiting or self._holder.held)
        if nothing_to_do or (self._is_overdue() and not self._database_answers()):
            self._excused_at = self._clock()
        self._stalled = self._is_overdue()

    def _still(self) -> float:
        return self._clock() - max(self._excused_at, self._holder.moved_at)

    def _is_overdue(self) -> bool:
        """Return whether nothing moved for too long; one part alone may take all the time that parts have."""
        return self._still() > _PATIENCE_S + (self._hold_limit_s if self._holder.held else 0.0)

    def _keep_looking(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  a look that fails says nothing about the worker
                log.warning("health_unknown", error=type(error).__name__)
            time.sleep(_LOOK_S)
