"""A bus on which a test sees what the relay publishes, or does something in its place."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pecia_schemas.messages import PartMessage
from pecia_workers.queue.bus import Bus


class RelayingBus(Bus):
    """Finds room as any other; `publish` takes what the relay brings."""

    def __init__(self, redis_url: str, publish: Callable[[Sequence[PartMessage]], Awaitable[object]]) -> None:
        super().__init__(redis_url)
        self._publish = publish

    async def relay(self, parts: Sequence[PartMessage], served: Any) -> list[PartMessage]:  # noqa: ARG002
        await self._publish(parts)
        return []
