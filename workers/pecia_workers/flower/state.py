"""What Flower knows of parts, from Celery's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import states
from flower.events import EventsState

if TYPE_CHECKING:
    from celery.events.state import Task

_ENDS = ("task-succeeded", "task-failed", "task-revoked")


class PartsState(EventsState):
    """Knows that a part may be given back, or run again after it has ended, and how long one took that failed."""

    def event(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        task = self.tasks.data.get(event.get("uuid"))
        if task:
            if _runs_again(task, event):
                _reopen(task)
            if event["type"] == "task-rejected" and not task.ready:
                task.state = states.REJECTED  # given back: by Celery's order that could not follow a start
            if event["type"] in ("task-failed", "task-retried") and task.started:
                event = {"runtime": max(0.0, event["timestamp"] - task.started)} | event
        super().event(event)


def _runs_again(task: Task, event: dict[str, Any]) -> bool:
    """Return whether the part ends anew, after it had ended.

    Not as soon as it begins: until then its message may be a repetition, which is not run and has no end.
    """
    if not task.ready or event["type"] not in _ENDS:
        return False
    ended = max(moment or 0.0 for moment in (task.succeeded, task.failed, task.revoked))
    return bool(task.started and task.started > ended)


def _reopen(task: Task) -> None:
    """Let its next events count: by Celery's order none of them could follow an end."""
    task.state = states.RECEIVED
    for field in ("succeeded", "failed", "retried", "revoked", "runtime", "result", "exception", "traceback"):
        setattr(task, field, None)
