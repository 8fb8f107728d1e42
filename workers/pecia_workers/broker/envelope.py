"""The Celery message of a claimed part, built here so that nothing in Redis can name a task or its arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pecia_schemas import Stage
    from pecia_workers.broker.lists import Claimed

NO_ARGUMENTS: Final[tuple[list[Any], dict[str, Any], dict[str, Any]]] = (
    [],
    {},
    dict.fromkeys(("callbacks", "errbacks", "chain", "chord")),
)
"""What each message holds, decoded: Celery need not do it for each part. No text in Redis can name this object."""
_BODY = json.dumps(NO_ARGUMENTS)


def task_name(stage: Stage) -> str:
    """Return the name under which Celery and Flower show the parts of a stage."""
    return f"pecia.{stage}"


def envelope(claimed: Claimed) -> dict[str, Any]:
    """Return a message of Celery's protocol 2; its id and delivery tag are the part's id."""
    return {
        "body": _BODY,
        "decoded": NO_ARGUMENTS,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": _headers(claimed),
        "properties": {
            "correlation_id": claimed.part,
            "delivery_tag": claimed.part,
            "priority": 0,
            "delivery_info": {
                "exchange": "",
                "routing_key": claimed.queue,
                "redelivered": claimed.deaths > 0,
            },
        },
    }


def _headers(claimed: Claimed) -> dict[str, Any]:
    trace = {"traceparent": claimed.traceparent} if claimed.traceparent else {}
    return {
        **trace,
        "lang": "py",
        "task": task_name(claimed.stage),
        "id": claimed.part,
        "root_id": claimed.part,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "ignore_result": True,
        "redelivered": claimed.deaths > 0,
        "x-lane": claimed.lane,
        "x-cost": claimed.cost,
        "x-deliveries": claimed.deaths + 1,
        "x-suspect": claimed.suspect,
    }
