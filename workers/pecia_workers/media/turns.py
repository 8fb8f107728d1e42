"""Which call gets a process next, and which has to let go of one.

Lanes are served in their order, and within a lane flows by the time that they have taken: a flow whose pages take
twenty seconds each waits until the others have had as much. A flow of a lower lane is served once after so many
calls of others.

A call is slow once it has run for a while, and from its start if the last call about its document was. Slow calls
leave one process to the others: while another call waits they start on no more than the rest, and if they hold all
processes one of them is evicted, to start again in its turn. With a single process they keep it to their end.

No clock and no lock: time is passed in, in seconds.
"""

import math
import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

SLOW_S: Final = 3.0
"""Seconds of decoding from which a call is slow: most pages take a tenth of that."""
MOST_OVERTAKEN: Final = 64
"""Calls of higher lanes that may start before a flow is served once."""

_MOST_DOCUMENTS: Final = 1_000
"""Slow documents that are remembered."""
_MOST_FLOWS: Final = 1_000
_LONGEST_S: Final = 600.0

_Flow = tuple[int, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """For whom a call is made."""

    rank: int = 0
    """Of its lane: smaller is sooner."""
    flow: Hashable = None
    """With which calls it takes turns as one."""
    document: Hashable = None
    """What it is about; None: nothing that another call could be about."""


ALL_ALIKE: Final = Turn()
"""Of calls that are served in the order in which they come."""


class PostponedError(Exception):
    """More slow calls are here than this worker may hold: the part is to be queued again, for later."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        """From now, until its turn may come."""


class Call:
    """A call that waits for a process or has one."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.is_slow = False
        """Whether it has run for long; it may be slow by its document too."""
        self.is_leaving = False
        """Whether it was evicted or postponed and has to let go of its process, which takes a moment."""
        self.arrived = 0
        self.since = math.inf
        """When it got its process; infinite while it waits."""

    @property
    def flow(self) -> _Flow:
        """Its flow, in its lane."""
        return self.turn.rank, self.turn.flow

    def ran(self, now: float) -> float:
        """Return for how long it has had its process."""
        return max(0.0, now - self.since)


class Turns:
    """Decides over a number of processes; called for every call that arrives, ends or may have become slow."""

    def __init__(self, places: int, *, slow_s: float = math.inf) -> None:
        """`slow_s`: seconds from which a call is slow; infinite: none is."""
        self._places = places
        self._slow_s = slow_s
        self.most_slow: float = math.inf
        """Slow calls that may be here, waiting and running; those beyond are postponed."""
        self._arrivals = 0
        self._waiting: dict[Call, None] = {}
        self._running: dict[Call, None] = {}
        self._used: dict[_Flow, float] = {}
        self._floor: defaultdict[int, float] = defaultdict(float)
        """By lane, the time taken by the flow that was served last: a new flow begins there."""
        self._overtaken: Counter[_Flow] = Counter()
        self._slow_documents: OrderedDict[Hashable, float] = OrderedDict()
        """Seconds that the last call about each took at least."""
        self._back_at = 0.0

    def offer(self, call: Call) -> None:
        """Let a call wait for a process."""
        self._arrivals += 1
        call.arrived, call.since, call.is_leaving = self._arrivals, math.inf, False
        self._waiting[call] = None

    def withdraw(self, call: Call, now: float, *, answered: bool = False) -> None:
        """Forget a call that was answered, evicted or given up; what it has taken counts for its flow."""
        self._waiting.pop(call, None)
        if call not in self._running:
            return
        self._look(call, now)
        ran, flow = call.ran(now), call.flow
        self._used[flow] = self._begun_at(flow) + ran
        del self._running[call]
        if answered and ran < self._slow_s:
            self._slow_documents.pop(call.turn.document, None)
        if len(self._used) > _MOST_FLOWS:
            self._used = {flow: used for flow, used in self._used.items() if used > self._floor[flow[0]]}

    def start(self, now: float) -> list[Call]:
        """Return the calls that get a process now."""
        started: list[Call] = []
        while self._waiting and len(self._running) < self._places:
            call = self._next(now)
            rank, flow = call.turn.rank, call.flow
            self._overtaken.update({other.flow for other in self._waiting if other.turn.rank > rank})
            del self._overtaken[flow]
            self._floor[rank] = max(self._floor[rank], self._taken(flow, now))
            del self._waiting[call]
            self._running[call] = None
            call.since = now
            started.append(call)
        return started

    def evicted(self, now: float) -> Call | None:
        """Return the call that must yield its process to a waiting call; None if none must."""
        self._look_at_all(now)
        if self._places == 1 or len(self._running) < self._places:
            return None
        if any(call.is_leaving or not self._is_slow(call) for call in self._running):
            return None
        if all(map(self._is_slow, self._waiting)):
            return None
        call = self._worst(self._running, now)
        call.is_leaving = True
        return call

    def postponed(self, now: float) -> tuple[Call, float] | None:
        """Return a slow call that has to leave this worker, if there is one, and in how many seconds it may return."""
        self._look_at_all(now)
        waiting = [call for call in self._waiting if self._is_slow(call)]
        running = [call for call in self._running if self._is_slow(call) and not call.is_leaving]
        if len(waiting) + len(running) <= self.most_slow:
            return None
        call = self._worst(waiting or running, now)
        call.is_leaving = True
        self._waiting.pop(call, None)
        seconds = max(self._slow_s, self._slow_documents.get(call.turn.document, 0.0))
        self._back_at = max(now, self._back_at) + seconds / max(1, self._places - 1)
        # Those that come back late do not come back together.
        return call, min(self._back_at - now, _LONGEST_S * random.uniform(0.5, 1.0))  # noqa: S311  no secret

    def _is_slow(self, call: Call) -> bool:
        return call.is_slow or call.turn.document in self._slow_documents

    def _next(self, now: float) -> Call:
        calls: Iterable[Call] = self._waiting
        if self._places > 1 and sum(map(self._is_slow, self._running)) >= self._places - 1:
            calls = [call for call in self._waiting if not self._is_slow(call)] or self._waiting
        documents = Counter(call.turn.document for call in self._running)
        turns: dict[_Flow, tuple[float, ...]] = {}
        for flow in {call.flow for call in calls}:
            rank = -1 if self._overtaken[flow] >= MOST_OVERTAKEN else flow[0]
            running = sum(call.flow == flow for call in self._running)
            turns[flow] = rank, self._taken(flow, now), running
        return min(calls, key=lambda call: (*turns[call.flow], documents[call.turn.document], call.arrived))

    def _worst(self, calls: Iterable[Call], now: float) -> Call:
        """Return the call of the lowest lane, of the flow that has taken most; of several the last."""

        def turn(call: Call) -> tuple[float, ...]:
            return call.turn.rank, self._taken(call.flow, now), call.since, call.arrived

        return max(calls, key=turn)

    def _taken(self, flow: _Flow, now: float) -> float:
        return self._begun_at(flow) + sum(call.ran(now) for call in self._running if call.flow == flow)

    def _begun_at(self, flow: _Flow) -> float:
        return max(self._used.get(flow, 0.0), self._floor[flow[0]])

    def _look_at_all(self, now: float) -> None:
        for call in self._running:
            self._look(call, now)

    def _look(self, call: Call, now: float) -> None:
        """Take note of a call that has become slow, and of its document."""
        if (ran := call.ran(now)) < self._slow_s:
            return
        call.is_slow = True
        if (document := call.turn.document) is not None:
            self._slow_documents[document] = max(ran, self._slow_documents.get(document, 0.0))
            self._slow_documents.move_to_end(document)
            if len(self._slow_documents) > _MOST_DOCUMENTS:
                self._slow_documents.popitem(last=False)
