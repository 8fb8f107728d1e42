"""What Celery, and so Flower, hears of a part: ids, enumerations and numbers, as arguments and result of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.request import Request

from pecia_schemas import Stage
from pecia_workers.ledger import Cut, Done

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pecia_workers.ledger import ClaimedPart, Outcome

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


def arguments(part: ClaimedPart) -> dict[str, Any]:
    """Return what a claimed part is; its job last, since a list of tasks cuts the line off."""
    about: dict[str, Any] = {}
    if part.stage in _NUMBERED:
        about[_NUMBERED[part.stage]] = part.ordinal + 1
    about |= {"lane": str(part.lane), "attempt": part.attempt}
    if document_type := part.stored_task.get("document_type"):
        about["document_type"] = document_type
    return about | {"job": str(part.job_id)}


def result(outcome: Outcome) -> dict[str, Any] | None:
    """Return what became of a part that did not fail."""
    match outcome:
        case Done(content=content):
            usage = content.usage
            return {
                "verdict": str(content.verdict),
                "prompt_tokens": usage.prompt,
                "output_tokens": usage.output,
            }
        case Cut(parts=parts):
            return {"parts": len(parts)}
    return None
