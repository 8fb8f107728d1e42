"""Whether a request may enter the engine beside all that is in it.

Three bounds, all by what each request has written so far: its KV cache must hold them to their ends; at most two
steps' worth of prompts waits inside it to be read, so that everything else can still be overtaken; and while an urgent
request is inside, lower lanes begin at a share of its time. Pages that all fit would otherwise be inside at once, and
an urgent one would wait for each of their prompts whatever its priority there.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pecia_schemas.states import Lane
from pecia_workers.protocol.base import Budget

BESIDE_URGENT: Final = 0.1
"""Share of an engine's time in which lower lanes begin while an urgent request is in it, unless a setting says else."""
LOOK_AGAIN_S: Final = 0.03
"""After which a request that was held is looked at again: nothing calls when a prompt has been read."""
_STEPS_UNREAD: Final = 2
_URGENT: Final = Lane.URGENT.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request that waits or runs."""

    id: str
    prompt: int
    """Tokens it reads."""
    output: int
    """Tokens it is expected to write, which its time in the engine goes by."""
    longer: Callable[[int], int] | None = None
    """Returns what it is expected to write in all once it has written so much; None: it stays at `output`."""
    rank: int
    """Of its lane: smaller is sooner."""
    arrived: float
    """Seconds, by the clock of the caller."""

    @property
    def tokens(self) -> int:
        """What it takes of the KV cache when it ends as expected."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Budget):
    """What the engine can hold, all of it, and how far what it holds has come."""

    written: Mapping[str, int] = field(default_factory=dict)
    """Tokens that each request has written; a missing request counts as 0."""

    def is_exceeded_by(self, item: Item) -> bool:
        """Return whether a request is larger than all of it, and so runs alone."""
        return self.tokens is not None and item.tokens > self.tokens


Growth = tuple[int, int]
"""Of one request: tokens that it will still write, and what it holds, with what its blocks leave empty."""


def peak(growths: Iterable[Growth], full: float = 1.0) -> float:
    """Return the most that requests, in the order of what they will write, hold at a time; a token takes `full`."""
    held, most = 0, 0.0
    for number, (left, holds) in enumerate(reversed(list(growths)), start=1):
        held += holds
        most = max(most, held + number * left * full)
    return most


class Admission:
    """Starts what fits beside all that runs, at one moment: the room tells how far each has come."""

    def __init__(self, items: dict[str, Item], capacity: Capacity) -> None:
        self._items = items
        self._capacity = capacity
        self._growths: list[Growth] | None = None

    def start(self, item: Item) -> bool:
        """Start a request if it fits, or is alone; return whether it has started."""
        if len(self._items) >= self._capacity.slots:
            return False
        if self._capacity.tokens is not None:
            if self._growths is None:
                self._growths = sorted(_growths(self._items.values(), self._capacity))
            (growth,) = _growths([item], self._capacity)
            insort(self._growths, growth)
            if self._items and peak(self._growths, self._capacity.layers.full) > self._capacity.tokens:
                self._growths.remove(growth)
                return False
        self._items[item.id] = item
        return True


class UnreadPrompts:
    """Bounds the prompts that wait inside an engine to be read, and holds lower lanes while an urgent request is there.

    Of the engine's time lower lanes keep a share meanwhile. Its progress is the clock: the time in which it has read
    the last prompt of a lower lane, less that of the prompts before it, is what that request took of the share.
    """

    def __init__(self, beside_urgent: float) -> None:
        """Take 1 for the share to hold no lane back."""
        self._share = beside_urgent
        self._last: Item | None = None
        """The last of a lower lane that began, until its prompt has been read."""
        self._began_at = self._next_at = 0.0
        self._own = 0.0
        """Its share of the prompts that were to be read when it began."""

    def allow(self, item: Item, running: Mapping[str, Item], capacity: Capacity) -> bool:
        """Return whether few enough tokens wait before this request's."""
        step = capacity.step_tokens
        return step is None or _unread(item, running, capacity) < _STEPS_UNREAD * step

    def yield_to(self, running: Mapping[str, Item], item: Item, capacity: Capacity, now: float) -> bool:
        """Return whether a request is held for an urgent running one, at `now`, in seconds."""
        if item.rank <= _URGENT or capacity.step_tokens is None or self._share >= 1:
            return False
        if all(other.rank > _URGENT for other in running.values()):
            return False
        if self._last is not None:
            if self._last.id in running and not capacity.written.get(self._last.id):
                return True
            took = self._own * (now - self._began_at)
            self._next_at, self._last = self._began_at + took / self._share, None
        return now < self._next_at

    def begin(self, item: Item, running: Mapping[str, Item], capacity: Capacity, now: float) -> None:
        """Note that a request begins; it is among those that run."""
        if item.rank > _URGENT:
            self._last, self._began_at = item, now
            self._own = item.prompt / max(1, _unread(item, running, capacity))


def _unread(item: Item, running: Mapping[str, Item], capacity: Capacity) -> int:
    """Return the tokens of prompts in the engine that it reads before this request's, or with it."""
    ahead = (other for other in running.values() if other.rank <= item.rank)
    return sum(other.prompt for other in ahead if not capacity.written.get(other.id))


def _growths(items: Iterable[Item], capacity: Capacity) -> list[Growth]:
    """Return how each request grows. Without calls in the loop: it runs whenever one of hundreds of requests ends."""
    growths = []
    written, block, layers = capacity.written, capacity.block, capacity.layers
    half = (block - 1) // 2
    for item in items:
        done = written.get(item.id, 0)
        total = item.longer(done) if done and item.longer else item.output
        left = total - done if total > done else 0
        holds = item.prompt + done
        holds += max(half, -(holds + left) % block)
        growths.append((left, layers.held(holds, left, begun=done > 0) if layers.windows else holds))
    return growths
