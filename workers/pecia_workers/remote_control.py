"""What Celery's remote control may do to a worker: any publisher in Redis can send it commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.control import Panel

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_LOOK = frozenset(
    {
        *("ping", "clock", "stats", "registered", "active_queues"),
        *("active", "reserved", "scheduled", "revoked", "query_task"),
        *("enable_events", "heartbeat"),
    }
)
"""What Flower and `celery inspect` ask for."""


def restrict(settings: WorkerSettings) -> None:
    """Take every other command from this process: those that stop it, change its queues or limits, dump its memory."""
    allowed = _LOOK | {"revoke"} if settings.remote_control == "revoke" else _LOOK
    for name in Panel.data.keys() - allowed:
        del Panel.data[name]
    Panel.data["conf"] = _nothing


def _nothing(_state: Any, **_arguments: Any) -> dict[str, Any]:
    """Tell nothing of the configuration to Flower, which asks whenever its page is opened."""
    return {}
