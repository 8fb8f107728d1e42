"""Cancellation that is never swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def attentive(call: Awaitable[T]) -> T:
    """Await a call of a driver; raise `CancelledError` if the task was cancelled meanwhile.

    Before Python 3.12 `asyncio.wait_for`, by which both drivers wait, loses a cancellation that comes at the moment at
    which what it waits for is there.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
