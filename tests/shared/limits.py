"""How long a test waits, and how it does on a loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

WAIT_S = 480.0
"""Until what must come is there: no statement on how long it takes, but enough for a machine under a load of thirty."""


async def until(predicate: Callable[[], R]) -> R:
    """Return the first outcome that is true: for what wakes no one, as an engine, a process or a database."""
    async with asyncio.timeout(WAIT_S):
        while not (outcome := predicate()):  # noqa: ASYNC110  as said above
            await asyncio.sleep(0.01)
    return outcome
