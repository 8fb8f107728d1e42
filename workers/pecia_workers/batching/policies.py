"""Four policies that decide when a waiting request may enter the engine.

None of them has a clock or a lock: time is passed in, so that a simulator runs the very same objects. All of them keep
to the room they are shown, by the most that all that runs will come to, but for one: a request larger
than all of it runs alone.

All requests write one token an iteration, so their use grows together and falls whenever one ends: it peaks just before
an end. Source: the future required memory of LightLLM's scheduler (arXiv 2507.10150). The cache is allocated in blocks,
so each request counts the empty rest of its last block, and half a block at least, its mean while writing. Layers with
a sliding window keep only the end of a request: they count its use at the end from the start.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from pecia_schemas.settings import WorkerSettings
from pecia_workers.batching.admission import (
    BESIDE_URGENT,
    LOOK_AGAIN_S,
    Admission,
    Capacity,
    Item,
    UnreadPrompts,
)

MOST_OVERTAKEN: Final = 64
"""Number of later arrivals that may start before a request; then it is next, whatever its lane."""


class Waiting:
    """The waiting requests. Few enough for linear search: all have been claimed, the backlog stays in Redis."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._overtaken: dict[str, int] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def mean_tokens(self) -> float:
        """Mean size of the waiting requests."""
        return self.tokens / max(1, len(self._items))

    @property
    def oldest(self) -> Item | None:
        """The request that has waited longest."""
        return next(iter(self._items.values()), None)

    def add(self, item: Item) -> None:
        """Append a request."""
        self._items[item.id] = item
        self._overtaken[item.id] = 0
        self.tokens += item.tokens

    def remove(self, item_id: str) -> None:
        """Forget a request; an unknown request is ignored."""
        if (item := self._items.pop(item_id, None)) is not None:
            self.tokens -= item.tokens
            del self._overtaken[item_id]

    def take(self, item: Item) -> None:
        """Remove a request that starts; earlier arrivals count as overtaken."""
        for earlier in self._items:
            if earlier == item.id:
                break
            self._overtaken[earlier] += 1
        self.remove(item.id)

    def was_overtaken(self, item: Item) -> bool:
        """Return whether enough later arrivals have overtaken a request that it is next."""
        return self._overtaken[item.id] >= MOST_OVERTAKEN

    def in_order(self) -> list[Item]:
        """Return the waiting requests, next first."""

        def turn(item: Item) -> float:  # requests overtaken too often come first, whatever their lane
            return -math.inf if self.was_overtaken(item) else item.rank

        return sorted(self._items.values(), key=turn)

    def next_lane(self) -> list[Item]:
        """Return the waiting requests of the next lane, by arrival; a request overtaken too often comes alone."""
        if not self._items:
            return []
        head = self.in_order()[0]
        if self.was_overtaken(head):
            return [head]
        return [item for item in self._items.values() if item.rank == head.rank]

    def like_head(self) -> list[Item]:
        """Return the next request, then the others by similarity to its size. At least one must wait."""
        head, *others = self.in_order()
        return [head, *sorted(others, key=lambda item: abs(item.tokens - head.tokens))]


class PolicyName(StrEnum):
    """Names of the policies."""

    CONTINUOUS = "continuous"
    SHORTEST = "shortest"
    DYNAMIC = "dynamic"
    STATIC = "static"


_TOGETHER: Final = 4
"""Requests of mean size that each batch holds, however little capacity there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a batch; the defaults, except for `tokens`, are those of the product's requirements."""

    least: int = 10
    most: int = 100
    tokens: float | None = None
    """Most tokens of a batch; a larger request makes a batch of its own. None: a share of the capacity."""
    concurrent: int = 20
    """Batches in the engine at the same time."""
    window_s: float = 0.1
    """How long the first request of a batch waits for others."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Return the bounds that the settings name."""
        return cls(
            least=settings.batch_min,
            most=settings.batch_max,
            tokens=settings.batch_tokens or None,
            concurrent=settings.batch_concurrent,
            window_s=settings.batch_window.total_seconds(),
        )

    def tokens_of(self, capacity: Capacity, mean_tokens: float) -> float:
        """Return the most tokens of a batch, where waiting requests have this mean size.

        The batches that run at the same time share the capacity, but each holds at least a few requests.
        """
        if self.tokens is not None:
            return self.tokens
        if capacity.tokens is None:
            return math.inf
        return max(capacity.tokens / self.concurrent, _TOGETHER * mean_tokens)

    def size(self, tokens: float, mean_tokens: float) -> int:
        """Return how many requests of this mean size fill a batch of so many tokens."""
        return max(self.least, int(min(self.most, tokens / max(1.0, mean_tokens))))


class Policy(ABC):
    """Decides which requests enter the engine; called on each arrival, withdrawal and end."""

    def __init__(self) -> None:
        self._queue = Waiting()
        self._running: dict[str, Item] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many have started and not ended."""
        return len(self._running)

    def offer(self, item: Item) -> None:
        """Add a waiting request."""
        self._queue.add(item)

    def withdraw(self, item_id: str) -> None:
        """Remove a request, waiting or started; an unknown request is ignored."""
        self._queue.remove(item_id)
        self._running.pop(item_id, None)

    @abstractmethod
    def start(self, now: float, capacity: Capacity) -> list[Item]:
        """Return what enters at this moment; it counts as started."""

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Return in how many seconds to call `start` again although nothing changes; None: never."""
        return None


class ContinuousPolicy(Policy):
    """Starts the next request as soon as it fits; no later one goes first, so none starves."""

    def __init__(self, beside_urgent: float = BESIDE_URGENT) -> None:
        """Set the share of the engine's time in which lower lanes start while an urgent request is inside."""
        super().__init__()
        self._unread = UnreadPrompts(beside_urgent)
        self._held = False
        """Whether the next request waits for the engine to read more prompts."""

    def start(self, now: float, capacity: Capacity) -> list[Item]:
        """Return the requests that fit, by lane and arrival; a request overtaken too often yields to none."""
        starts: list[Item] = []
        admission = Admission(self._running, capacity)
        self._held = False
        while len(self._running) < capacity.slots and (following := self._following(capacity)):
            yields = self._unread.yield_to(self._running, following, capacity, now)
            allowed = self._unread.allow(following, self._running, capacity)
            self._held = not allowed or (yields and not self._queue.was_overtaken(following))
            if self._held or not admission.start(following):
                break
            self._unread.begin(following, self._running, capacity, now)
            self._queue.take(following)
            starts.append(following)
        return starts

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Return when to check a held request again."""
        return LOOK_AGAIN_S if self._held else None

    def _following(self, capacity: Capacity) -> Item | None:  # noqa: ARG002  the order of arrival knows no room
        return next(iter(self._queue.in_order()), None)


class ShortestPolicy(ContinuousPolicy):
    """Starts the requests expected to write least, but keeps enough of them to run beside the longest.

    Shortest first minimises the mean wait but ends badly: the longest start last and run in an engine that empties. So
    a longer request starts as soon as the waiting shorter ones no longer fill the engine while it runs. Known are the
    expected lengths of claimed requests only. Applies within a lane; a request that 64 later ones have overtaken is
    next, however long it is.
    """

    def _following(self, capacity: Capacity) -> Item | None:
        waiting = self._queue.next_lane()
        first: dict[int, Item] = {}
        work: Counter[int] = Counter()
        for item in waiting:
            first.setdefault(item.output, item)
            work[item.output] += item.output
        abreast: float = capacity.slots  # about how many of what waits run at a time
        if capacity.tokens is not None:
            abreast = min(abreast, max(1.0, capacity.tokens / max(1.0, self._queue.mean_tokens)))
        following, shorter = None, 0
        for length in sorted(work):
            if shorter < abreast * length:
                following = first[length]
            shorter += work[length]
        return following


class BatchPolicy(Policy):
    """Closes a batch when it is full or its first request has waited for the window; a new batch starts when one ends.

    With `similar` a batch is filled with requests of about the size of its first, which is always the next request and
    therefore never overtaken.
    """

    def __init__(self, limits: BatchLimits, *, similar: bool) -> None:
        super().__init__()
        self._limits = limits
        self._similar = similar
        self._batches: list[set[str]] = []
        """Requests of each running batch."""

    def withdraw(self, item_id: str) -> None:
        """Remove a request; the batch ends with its last."""
        super().withdraw(item_id)
        for batch in self._batches:
            batch.discard(item_id)
        self._batches = [batch for batch in self._batches if batch]

    def start(self, now: float, capacity: Capacity) -> list[Item]:
        """Return the batches that close now."""
        starts: list[Item] = []
        while (end := self._window_end()) is not None:
            tokens = self._limits.tokens_of(capacity, self._queue.mean_tokens)
            size = self._limits.size(tokens, self._queue.mean_tokens)
            if now < end and len(self._queue) < size and self._queue.tokens < tokens:
                break
            batch: list[Item] = []
            taken, admission = 0, Admission(self._running, capacity)
            for item in self._queue.like_head() if self._similar else self._queue.in_order():
                fits = not batch or taken + item.tokens <= tokens
                if len(batch) >= size or not fits or not admission.start(item):
                    break
                taken += item.tokens
                batch.append(item)
            if not batch:
                break
            self._batches.append({item.id for item in batch})
            for item in batch:
                self._queue.take(item)
            starts += batch
        return starts

    def due(self, now: float) -> float | None:
        """Return when the window of the longest waiting request ends."""
        end = self._window_end()
        return end - now if end is not None and now < end else None

    def _window_end(self) -> float | None:
        """Return when a batch stops waiting for more requests, or None if none waits or no further batch may run."""
        oldest = self._queue.oldest
        if oldest is None or len(self._batches) >= self._limits.concurrent:
            return None
        return oldest.arrived + self._limits.window_s


_STATIC: Final = BatchLimits(least=8, most=8, tokens=math.inf, concurrent=1, window_s=1.0)


def policy_named(name: PolicyName, limits: BatchLimits, beside_urgent: float = BESIDE_URGENT) -> Policy:
    """Return the policy of this name; the static one runs batches of a fixed size, one at a time.

    Batches do not yield to urgent requests: their requests start together.
    """
    match name:
        case PolicyName.CONTINUOUS:
            return ContinuousPolicy(beside_urgent)
        case PolicyName.SHORTEST:
            return ShortestPolicy(beside_urgent)
        case PolicyName.DYNAMIC:
            return BatchPolicy(limits, similar=True)
        case PolicyName.STATIC:
            return BatchPolicy(_STATIC, similar=False)
