"""How long a test waits, and how it does on a loop and in a thread. Imports no pytest: the Makefile reads it too."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal, TypeVar

R = TypeVar("R")

WAIT_S = 480.0
"""Until what must come is there: no statement on how long it takes, but enough for a machine under a load of thirty."""


async def until(predicate: Callable[[], R | Literal[False] | None]) -> R:
    """Return the first outcome that is true: for what wakes no one, as an engine, a process or a database."""
    async with asyncio.timeout(WAIT_S):
        while not (outcome := predicate()):  # noqa: ASYNC110  as said above
            await asyncio.sleep(0.01)
    return outcome


def eventually(
    predicate: Callable[[], R | Literal[False] | None], interval: float = 0.02, *, what: str = ""
) -> R:
    """Return the first outcome that is true, as `until` does on a loop; fail with a sentence after `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not (outcome := predicate()):
        if time.monotonic() > deadline:
            subject = what or f"`{getattr(predicate, '__qualname__', predicate)}`"
            raise AssertionError(
                f"{subject} did not come true within {WAIT_S:g} s; it was {outcome!r} at last."
            )
        time.sleep(interval)
    return outcome
