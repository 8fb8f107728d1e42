"""When a waiting request may enter the engine: four policies over the same room.

None of them has a clock or a lock: time is passed in, so that a simulator runs the very same objects. All of them keep
to the room they are shown, by the most that all that runs will come to, but for one: a request larger
than all of it runs alone.

All that write write one token an iteration, so what they hold grows together and falls whenever one ends: it is largest
just before an end. Source: the future required memory of LightLLM's scheduler (arXiv 2507.10150). The cache is given
out in blocks, so each counts with what it will leave empty of its last one, and with half a block at least: that is
what it leaves empty in the mean while it writes. Layers with a sliding window keep the end of a request alone: they
count with what they will have at its end, from its start.
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
"""How many later arrivals may start before a request whose turn it then is, whatever its lane."""


class Waiting:
    """Few enough to be looked through: what waits here has been claimed already, the backlog stays in Redis."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._overtaken: dict[str, int] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def mean_tokens(self) -> float:
        """Mean size of what waits."""
        return self.tokens / max(1, len(self._items))

    @property
    def oldest(self) -> Item | None:
        """The request that has waited longest."""
        return next(iter(self._items.values()), None)

    def add(self, item: Item) -> None:
        """Let a request wait, behind all that came before it."""
        self._items[item.id] = item
        self._overtaken[item.id] = 0
        self.tokens += item.tokens

    def remove(self, item_id: str) -> None:
        """Forget a request; an unknown request is ignored."""
        if (item := self._items.pop(item_id, None)) is not None:
            self.tokens -= item.tokens
            del self._overtaken[item_id]

    def take(self, item: Item) -> None:
        """Remove a request that starts; those that came before it have been overtaken."""
        for earlier in self._items:
            if earlier == item.id:
                break
            self._overtaken[earlier] += 1
        self.remove(item.id)

    def was_overtaken(self, item: Item) -> bool:
        """Return whether so many others have started before a request that its turn has come."""
        return self._overtaken[item.id] >= MOST_OVERTAKEN

    def in_order(self) -> list[Item]:
        """Return what waits, next first."""

        def turn(item: Item) -> float:  # requests overtaken too often come first, whatever their lane
            return -math.inf if self.was_overtaken(item) else item.rank

        return sorted(self._items.values(), key=turn)

    def next_lane(self) -> list[Item]:
        """Return the waiting requests of the lane whose turn it is, by arrival; one overtaken too often, alone."""
        if not self._items:
            return []
        head = self.in_order()[0]
        if self.was_overtaken(head):
            return [head]
        return [item for item in self._items.values() if item.rank == head.rank]

    def like_head(self) -> list[Item]:
        """Return the next request, then the others by how near they are to it in size; there must be one."""
        head, *others = self.in_order()
        return [head, *sorted(others, key=lambda item: abs(item.tokens - head.tokens))]


class PolicyName(StrEnum):
    """The policies there are."""

    CONTINUOUS = "continuous"
    SHORTEST = "shortest"
    DYNAMIC = "dynamic"
    STATIC = "static"


_TOGETHER: Final = 4
"""Requests for which each batch has tokens, however little room there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a batch; the defaults are those of the product's requirements, but for the tokens."""

    least: int = 10
    most: int = 100
    tokens: float | None = None
    """Most tokens of a batch; a single request that is larger makes a batch of its own. None: a share of the room."""
    concurrent: int = 20
    """Batches in the engine at a time."""
    window_s: float = 0.1
    """How long the first of a batch waits for others."""

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
        """Return the most tokens of a batch, where what waits has this mean size.

        The batches that run at a time share the room, but not so finely that each holds fewer than a few requests.
        """
        if self.tokens is not None:
            return self.tokens
        if capacity.tokens is None:
            return math.inf
        return max(capacity.tokens / self.concurrent, _TOGETHER * mean_tokens)

    def size(self, tokens: float, mean_tokens: float) -> int:
        """Return how many requests of this mean size make a full batch of so many tokens."""
        return max(self.least, int(min(self.most, tokens / max(1.0, mean_tokens))))


class Policy(ABC):
    """Decides what enters; called for everything that arrives, leaves and ends."""

    def __init__(self) -> None:
        self._queue = Waiting()
        self._running: dict[str, Item] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many have started and not been withdrawn."""
        return len(self._running)

    def offer(self, item: Item) -> None:
        """Note that a request waits."""
        self._queue.add(item)

    def withdraw(self, item_id: str) -> None:
        """Forget a request, waiting or started; an unknown request is ignored."""
        self._queue.remove(item_id)
        self._running.pop(item_id, None)

    @abstractmethod
    def start(self, now: float, capacity: Capacity) -> list[Item]:
        """Return what enters at this moment; it counts as started."""

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Return in how many seconds `start` is to be asked again though nothing changes; None: never."""
        return None


class ContinuousPolicy(Policy):
    """Starts the next request as soon as it fits; nothing behind it goes first, so nothing starves."""

    def __init__(self, beside_urgent: float = BESIDE_URGENT) -> None:
        """Let lower lanes begin at this share of the engine's time while an urgent request is in it."""
        super().__init__()
        self._unread = UnreadPrompts(beside_urgent)
        self._held = False
        """Whether the next request waits until the engine has read more."""

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
        """Return when a request that was held is looked at again."""
        return LOOK_AGAIN_S if self._held else None

    def _following(self, capacity: Capacity) -> Item | None:  # noqa: ARG002  the order of arrival knows no room
        return next(iter(self._queue.in_order()), None)


class ShortestPolicy(ContinuousPolicy):
    """Starts the requests expected to write least, but keeps enough of them to run beside the longest.

    Shortest first makes the mean wait least and ends badly: the longest start last, and one after the other ends with
    the engine empty beside them. So a longer one starts as soon as the shorter that wait are no longer enough to fill
    the engine while it runs. What is known is each request's expected length, and only of those that have been claimed.
    Within a lane; a request that 64 later ones have overtaken is next, however long it is.
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
    """Closes a batch when it is full or its first request has waited for the window; refills when one has ended.

    With `similar` the batch is filled up with requests of about the size of its first, which is always the one whose
    turn it is: the others are overtaken, it is not.
    """

    def __init__(self, limits: BatchLimits, *, similar: bool) -> None:
        super().__init__()
        self._limits = limits
        self._similar = similar
        self._batches: list[set[str]] = []
        """Requests of each that is running."""

    def withdraw(self, item_id: str) -> None:
        """Forget a request; with the last of its batch the batch has ended."""
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
        """Return when the window of the request that has waited longest ends."""
        end = self._window_end()
        return end - now if end is not None and now < end else None

    def _window_end(self) -> float | None:
        """Return until when a batch waits for more; None if nothing waits, or no further batch may run."""
        oldest = self._queue.oldest
        if oldest is None or len(self._batches) >= self._limits.concurrent:
            return None
        return oldest.arrived + self._limits.window_s


_STATIC: Final = BatchLimits(least=8, most=8, tokens=math.inf, concurrent=1, window_s=1.0)


def policy_named(name: PolicyName, limits: BatchLimits, beside_urgent: float = BESIDE_URGENT) -> Policy:
    """Return a policy; a static one has batches of one size and runs one at a time.

    Batches yield to no urgent request: they start together.
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
