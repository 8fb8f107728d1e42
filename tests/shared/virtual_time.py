"""What makes a simulated engine exact: time that passes at once, and answers of one length."""

import asyncio
from dataclasses import dataclass

from pecia_workers.engines.simulated import Clock


class VirtualClock(Clock):
    """Time that passes at once, as far as the simulation says."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Pass the time and let every task that is ready run."""
        self._now += seconds
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every answer has the same length."""

    length: int

    def __call__(self, request_id: str, workload: str) -> int:  # noqa: ARG002  the engine's signature
        return self.length
