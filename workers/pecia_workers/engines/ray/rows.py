"""What of ours runs inside Ray: rows out of a queue, and answers out of what vLLM's processor says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ray.util.queue import Queue

ERROR: Final = "__inference_error__"
"""Where Ray's processor says why a row has no answer."""


def be_quiet() -> None:
    """Have a process of Ray log errors alone: a warning of the processor may quote a request."""
    logging.disable(logging.WARNING)


def arriving(_: dict[str, Any], queue: Queue) -> Iterator[dict[str, list[Any]]]:
    """Yield each row of the queue as it comes; None ends them."""
    while (row := queue.get()) is not None:
        yield {column: [value] for column, value in row.items()}


def answered(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine said to a row."""
    return {
        "name": row["name"],
        "text": row["generated_text"],
        "tokens": list(row["generated_tokens"]),
        "prompt": row["num_input_tokens"],
    }
