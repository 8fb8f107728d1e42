"""One part in the pool: what Celery handed over, how it ended, and what Celery and Flower show of it: no text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from enum import Enum, auto
from typing import Any
from uuid import UUID

from billiard.exceptions import Terminated
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import Request

from pecia_schemas import Stage
from pecia_workers.ledger.commit import ClaimedPart, Cut, Done, Outcome
from pecia_workers.worker.attempts import PartCancelledError, PartFailedError

CANCELLED = "cancelled"
"""What Celery is told for the signal that ended a part which was cancelled in Postgres: it then calls it revoked."""


class Interruption(Enum):
    """Why a part was cancelled before its end."""

    REVOKED = auto()
    """An operator revoked it: Celery has acknowledged it already."""
    LOST = auto()
    """It is no longer ours, or has been held for too long."""
    STOPPED = auto()
    """The worker stops."""


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Job:
    """A part in flight. Celery keeps it as the request's result and terminates it through that."""

    headers: InitVar[dict[str, Any]]
    begun: Callable[[Mapping[str, Any]], None]
    callback: Callable[[Any], None]
    timeout_callback: Callable[[bool, float], None]
    soft_limit_s: InitVar[float | None]
    hard_limit_s: InitVar[float | None]
    started: float
    part: UUID = field(init=False)
    cost: int = field(init=False)
    deaths: int = field(init=False)
    suspect: bool = field(init=False)
    limit_s: float | None = field(init=False)
    soft: bool = field(init=False)
    task: asyncio.Task[None] | None = None
    former: Job | None = None
    interruption: Interruption | None = None
    on_interrupt: Callable[[Job], object] | None = None

    def __post_init__(
        self, headers: dict[str, Any], soft_limit_s: float | None, hard_limit_s: float | None
    ) -> None:
        self.part = UUID(headers["id"])
        self.cost, self.deaths = headers["x-cost"], headers["x-deliveries"] - 1
        self.suspect = headers["x-suspect"]
        self.limit_s = min((limit for limit in (soft_limit_s, hard_limit_s) if limit), default=None)
        self.soft = self.limit_s is not None and self.limit_s == soft_limit_s

    def interrupt(self, why: Interruption) -> None:
        """Cancel it, unless that was done already. From any thread."""
        if self.interruption is not None:
            return
        self.interruption = why
        if self.on_interrupt:
            self.on_interrupt(self)

    def terminate(self, _signal: int | None = None) -> None:
        """Cancel it because Celery says so: a cold shutdown, unless the revocation was announced before."""
        self.interrupt(Interruption.STOPPED)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception as Celery's request wants it, without the traceback, whose lines may quote a document."""

    exception: Exception
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a part ended, as Celery's callback takes it: failed, result or error, seconds. None: tell Celery nothing."""

    result: tuple[int, Any, float] | None
    timed_out: bool = False

    @classmethod
    def done(cls, result: Mapping[str, Any] | None, seconds: float) -> Ending:
        """Say that it is committed."""
        return cls(result=(0, None if result is None else repr(result), seconds))

    @classmethod
    def failed(cls, error: Exception, seconds: float) -> Ending:
        """Say that it ended with one of the exceptions that a runtime may raise."""
        return cls(result=(1, ErrorInfo(_bare(error)), seconds))

    @classmethod
    def given_back(cls, seconds: float, *, timed_out: bool = False) -> Ending:
        """Say that it did not end here: its message goes back to its list."""
        return cls(result=(1, ErrorInfo(Reject(requeue=True)), seconds), timed_out=timed_out)


def _bare(error: Exception) -> Exception:
    """Return the error with nothing but its code, whatever the runtime put into it."""
    bare = error
    if isinstance(error, Retry):
        bare = Retry(exc=error.exc if isinstance(error.exc, PartFailedError) else None)
    elif isinstance(error, Ignore):
        bare = Ignore()
    elif isinstance(error, PartCancelledError):
        bare = Terminated(CANCELLED)
    return bare


_NUMBERED = {Stage.READ: "page", Stage.CAPTION: "segment"}


class PartRequest(Request):  # type: ignore[misc]
    """Celery's request, which says that the part has started once Postgres has handed it out."""

    _arguments: Mapping[str, str] | None = None

    def begun(self, about: Mapping[str, Any]) -> None:
        """Send the event of the start. It and all later ones have `about` as the task's keyword arguments."""
        self._arguments = {"kwargs": repr(about)}
        self.send_event("task-started")

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002  Celery's name
        """Send an event, unless it is of the start that Celery means: a claim from Redis, when nothing runs yet."""
        if self._arguments is not None or type != "task-started":
            super().send_event(type, **(self._arguments or {}), **fields)


def task_arguments(part: ClaimedPart) -> dict[str, Any]:
    """Return what a claimed part is; its job last, since a list of tasks cuts the line off."""
    about: dict[str, Any] = {}
    if part.stage in _NUMBERED:
        about[_NUMBERED[part.stage]] = part.ordinal + 1
    about |= {"lane": str(part.lane), "attempt": part.attempt}
    if document_type := part.stored_task.get("document_type"):
        about["document_type"] = document_type
    return about | {"job": str(part.job_id)}


def task_result(outcome: Outcome) -> dict[str, Any] | None:
    """Return what became of a part that did not fail."""
    match outcome:
        case Done(content=content):
            prompt, output = content.usage.prompt, content.usage.output
            return {"verdict": str(content.verdict), "prompt_tokens": prompt, "output_tokens": output}
        case Cut(parts=parts):
            return {"parts": len(parts)}
    return None
