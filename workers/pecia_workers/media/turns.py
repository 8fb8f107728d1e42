"""Scheduling of calls on processes: which gets one next, and which is evicted.

Lanes are served in their order, and within a lane the flow that has used least time: a flow whose pages take twenty
seconds each waits until the others have used as much. A flow of a lower lane is served once after a number of other
calls.

A call is slow once it has run for a while, and from its start if the last call for its document was. Slow calls leave
one process to the others: while another call waits they start only on the rest, and if they hold all processes one of
them is evicted, to start again in its turn. A single process is kept to the end of a call.

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
"""Most slow documents that are remembered."""
_MOST_FLOWS: Final = 1_000
_LONGEST_S: Final = 600.0

_Flow = tuple[int, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Scheduling attributes of a call."""

    rank: int = 0
    """Rank of its lane: smaller is sooner."""
    flow: Hashable = None
    """Flow whose calls take turns together."""
    document: Hashable = None
    """Its document; None: none that other calls share."""


ALL_ALIKE: Final = Turn()
"""Turn of calls that are served first come first served."""


class PostponedError(Exception):
    """This worker has too many slow calls: the part must be queued again, for later."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        """Seconds until its turn may come."""


class Call:
    """A call that waits for a process or has one."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.is_slow = False
        """Whether it has run for long; it may also be slow by its document."""
        self.is_leaving = False
        """Whether it was evicted or postponed and still holds its process."""
        self.arrived = 0
        self.since = math.inf
        """When it got its process; infinite while it waits."""

    @property
    def flow(self) -> _Flow:
        """Its flow, in its lane."""
        return self.turn.rank, self.turn.flow

    def ran(self, now: float) -> float:
        """Return for how long it has held its process."""
        return max(0.0, now - self.since)


class Turns:
    """Schedules a number of processes; called when a call arrives, ends or may have become slow."""

    def __init__(self, places: int, *, slow_s: float = math.inf) -> None:
        """`slow_s`: seconds from which a call is slow, or infinite."""
        self._places = places
        self._slow_s = slow_s
        self.most_slow: float = math.inf
        """Most slow calls, waiting and running; further ones are postponed."""
        self._arrivals = 0
        self._waiting: dict[Call, None] = {}
        self._running: dict[Call, None] = {}
        self._used: dict[_Flow, float] = {}
        self._floor: defaultdict[int, float] = defaultdict(float)
        """By lane, the time used by the flow that was served last, with which new flows start."""
        self._overtaken: Counter[_Flow] = Counter()
        self._slow_documents: OrderedDict[Hashable, float] = OrderedDict()
        """Least seconds of the last call for each slow document."""
        self._back_at = 0.0

    def offer(self, call: Call) -> None:
        """Queue a call for a process."""
        self._arrivals += 1
        call.arrived, call.since, call.is_leaving = self._arrivals, math.inf, False
        self._waiting[call] = None

    def withdraw(self, call: Call, now: float, *, answered: bool = False) -> None:
        """Remove a call that was answered, evicted or cancelled; its time is charged to its flow."""
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
        """Return the calls to start now."""
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
        """Return the call that must yield its process to a waiting call, or None."""
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
        """Return a slow call that must leave this worker, if any, and in how many seconds it may return."""
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
        """Return the call of the lowest lane, of the flow with most time used; of several the last."""

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
        """Record a call that has become slow, and its document."""
        if (ran := call.ran(now)) < self._slow_s:
            return
        call.is_slow = True
        if (document := call.turn.document) is not None:
            self._slow_documents[document] = max(ran, self._slow_documents.get(document, 0.0))
            self._slow_documents.move_to_end(document)
            if len(self._slow_documents) > _MOST_DOCUMENTS:
                self._slow_documents.popitem(last=False)
