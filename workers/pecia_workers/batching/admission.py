"""Admission: whether a request may enter the engine beside those inside.

Three bounds, by the tokens that each request has written so far: the KV cache must hold all requests to their ends;
unread prompts inside the engine are at most two steps long, so that requests outside can be overtaken; and while an
urgent request is inside, lower lanes start only within a share of the engine's time. Without the last two, all pages
that fit would be inside at once, and an urgent page would wait for each of their prompts, whatever its priority there.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pecia_schemas.states import Lane
from pecia_workers.protocol.base import Budget

BESIDE_URGENT: Final = 0.1
"""Default share of the engine's time in which lower lanes start while an urgent request is inside."""
LOOK_AGAIN_S: Final = 0.03
"""Seconds after which held requests are checked again: no event tells when a prompt has been read."""
_STEPS_UNREAD: Final = 2
_URGENT: Final = Lane.URGENT.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A waiting or running request."""

    id: str
    prompt: int
    """Tokens of its prompt."""
    output: int
    """Expected output tokens, which determine its time in the engine."""
    longer: Callable[[int], int] | None = None
    """Returns its expected output in all, given the tokens written so far; None: always `output`."""
    rank: int
    """Rank of its lane: smaller is sooner."""
    arrived: float
    """Arrival, in seconds by the caller's clock."""

    @property
    def tokens(self) -> int:
        """Tokens of KV cache at its expected end."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Budget):
    """The engine's whole capacity, and the progress of running requests."""

    written: Mapping[str, int] = field(default_factory=dict)
    """Tokens that each request has written; a missing request counts as 0."""

    def is_exceeded_by(self, item: Item) -> bool:
        """Return whether a request is larger than all of it, and so runs alone."""
        return self.tokens is not None and item.tokens > self.tokens


Growth = tuple[int, int]
"""Growth of one request: remaining output tokens, and tokens held, including unused space in its blocks."""


def peak(growths: Iterable[Growth], full: float = 1.0) -> float:
    """Return the peak of tokens held by requests, sorted by remaining output; each token takes `full`."""
    held, most = 0, 0.0
    for number, (left, holds) in enumerate(reversed(list(growths)), start=1):
        held += holds
        most = max(most, held + number * left * full)
    return most


class Admission:
    """Starts requests that fit beside the running ones at one moment; the capacity has the progress of each."""

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
    """Bounds unread prompts inside an engine, and holds lower lanes back while an urgent request is inside.

    Lower lanes keep a share of the engine's time meanwhile, measured by its progress: the time until the last prompt of
    a lower lane was read, less that of the prompts before it, is charged to the share.
    """

    def __init__(self, beside_urgent: float) -> None:
        """Set the share of lower lanes; 1 holds no lane back."""
        self._share = beside_urgent
        self._last: Item | None = None
        """The last started request of a lower lane, until its prompt has been read."""
        self._began_at = self._next_at = 0.0
        self._own = 0.0
        """Its share of the unread prompts at its start."""

    def allow(self, item: Item, running: Mapping[str, Item], capacity: Capacity) -> bool:
        """Return whether few enough unread tokens are ahead of this request."""
        step = capacity.step_tokens
        return step is None or _unread(item, running, capacity) < _STEPS_UNREAD * step

    def yield_to(self, running: Mapping[str, Item], item: Item, capacity: Capacity, now: float) -> bool:
        """Return whether a request is held for a running urgent one, at `now`, in seconds."""
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
        """Record the start of a request, which is among the running ones."""
        if item.rank > _URGENT:
            self._last, self._began_at = item, now
            self._own = item.prompt / max(1, _unread(item, running, capacity))


def _unread(item: Item, running: Mapping[str, Item], capacity: Capacity) -> int:
    """Return the unread prompt tokens in the engine that it reads before or with this request's prompt."""
    ahead = (other for other in running.values() if other.rank <= item.rank)
    return sum(other.prompt for other in ahead if not capacity.written.get(other.id))


def _growths(items: Iterable[Item], capacity: Capacity) -> list[Growth]:
    """Return the growth of each request. Without calls in its loop: it runs at each request's end."""
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
