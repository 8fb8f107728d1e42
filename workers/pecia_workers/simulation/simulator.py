"""Discrete event simulation: requests arrive, wait, are admitted as by a worker, and end in a model of an engine.

Two models of an engine: independent slots, and iterations as vLLM runs them.
"""

import heapq
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pecia_workers.batching.admission import Item
from pecia_workers.batching.learned import Headroom, LearnedLengths
from pecia_workers.batching.policies import Policy
from pecia_workers.engines.simulated import IterationModel, IterationScheduler
from pecia_workers.engines.simulated import Sequence as EngineSequence
from pecia_workers.protocol.base import Budget, Load
from pecia_workers.simulation.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """An engine's work until `now`."""

    now: float
    ended: tuple[tuple[Request, float], ...] = ()
    """Ended requests, each with the time of its first token."""
    busy: float = 0.0
    """Share of the slots that computed, over that time."""


@dataclass(slots=True, kw_only=True)
class _Working:
    request: Request
    entered: float
    done: float
    leaves: float


class SlotMachine:
    """Slots that each compute one request at a time, at a constant speed."""

    def __init__(self, slots: int, token_s: float, *, leave_together: bool) -> None:
        """`token_s`: seconds for each token; `leave_together`: requests that start together end together."""
        self._slots = slots
        self._token_s = token_s
        self._leave_together = leave_together
        self._working: list[_Working] = []

    @property
    def budget(self) -> Budget:
        """Its slots."""
        return Budget(slots=self._slots, tokens=None)

    @property
    def is_busy(self) -> bool:
        """Whether it works on a request."""
        return bool(self._working)

    def load(self) -> Load:
        """Return the number of busy slots."""
        return Load(running=len(self._working), waiting=0)

    def enter(self, requests: Sequence[Request], now: float) -> None:
        """Start requests, each for its own output, or all for the longest."""
        done = [now + request.output * self._token_s for request in requests]
        longest = max(done, default=now)
        self._working += [
            _Working(request=request, entered=now, done=end, leaves=longest if self._leave_together else end)
            for request, end in zip(requests, done, strict=True)
        ]

    def run(self, now: float, until: float) -> Passed:
        """Run until the next request ends, or `until`."""
        to = min([until, *(one.leaves for one in self._working)])
        leaving = [one for one in self._working if one.leaves <= to]
        worked = sum(max(0.0, min(one.done, to) - now) for one in self._working)
        self._working = [one for one in self._working if one.leaves > to]
        return Passed(
            now=to,
            ended=tuple((one.request, one.entered + self._token_s) for one in leaving),
            busy=worked / (self._slots * (to - now)) if to > now else 0.0,
        )


class IterationMachine:
    """The simulated engine's scheduler, iteration by iteration."""

    def __init__(self, model: IterationModel) -> None:
        self._scheduler = IterationScheduler(model)
        self._inside: dict[str, Request] = {}
        self._first: dict[str, float] = {}
        self.longest_iteration = 0.0
        """Longest wait of a writing page for its next token, in seconds, without preemptions."""

    @property
    def budget(self) -> Budget:
        """The model's sequences and its KV cache in tokens."""
        return self._scheduler.model.budget

    @property
    def is_busy(self) -> bool:
        """Whether it works on a request."""
        return bool(self._inside)

    def load(self) -> Load:
        """Return the scheduler's load."""
        return self._scheduler.load

    def enter(self, requests: Sequence[Request], now: float) -> None:  # noqa: ARG002  as the other
        """Queue requests inside the engine. Raises `ValueError` for a request that its cache could never hold."""
        for request in requests:
            sequence = EngineSequence(
                id=request.id, prompt=request.prompt, output=request.output, rank=request.lane.rank
            )
            self._scheduler.add(sequence)
            self._inside[request.id] = request

    def run(self, now: float, until: float) -> Passed:
        """Run one iteration, preceded by all that change only lengths; wait if there is nothing to do."""
        if not self._inside:
            return Passed(now=until)
        each = self._scheduler.model.duration(0, len(self._scheduler.running))
        alike = sys.maxsize if until == math.inf else math.ceil((until - now) / each) - 1
        now += self._scheduler.coast(alike) * each
        iteration = self._scheduler.step()
        self.longest_iteration = max(self.longest_iteration, iteration.duration)
        to = now + iteration.duration
        for sequence in iteration.started:
            self._first.setdefault(sequence.id, to)
        running = len(self._scheduler.running) + len(iteration.finished)
        ended = tuple((self._inside.pop(one.id), self._first.pop(one.id)) for one in iteration.finished)
        return Passed(now=to, ended=ended, busy=running / self.budget.slots)


Machine = SlotMachine | IterationMachine
"""Model of an engine's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request, from its arrival to its end; times in seconds since the start."""

    request: Request
    price: int
    """Cost in tokens at its admission."""
    oversize: bool
    started: float
    first_token: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Use of the engine in one stretch of time."""

    since: float
    until: float
    busy: float
    """Share of the slots that computed."""
    running: int
    kv_used: float | None
    """Share of the KV cache; None without one."""
    waiting: int
    """Requests that have arrived and wait outside of the engine."""


@dataclass(slots=True, kw_only=True)
class Run:
    """The record of a run."""

    budget: Budget
    served: list[Served] = field(default_factory=list)
    use: list[Use] = field(default_factory=list)
    preemptions: int = 0


class Simulator:
    """Simulates one worker and its engine: claims by lane, admits by a policy, learns lengths from ended requests."""

    def __init__(
        self, policy: Policy, machine: Machine, lengths: LearnedLengths, *, ahead: int | None = None
    ) -> None:
        """`ahead`: most requests that wait at the worker, where the policy sees them; None: all that have arrived."""
        self._policy = policy
        self._machine = machine
        self._lengths = lengths
        self._ahead = math.inf if ahead is None else ahead
        self._headroom = Headroom()
        self._backlog: list[tuple[int, int, Request]] = []
        self._inside: dict[str, Request] = {}
        self._started: dict[str, tuple[Item, bool, float]] = {}
        """By id: what was offered, whether it exceeded the capacity, when it started."""
        self._run = Run(budget=machine.budget)

    def run(self, requests: Iterable[Request]) -> Run:
        """Run these requests, which must have unique ids, and return the record."""
        arriving = sorted(requests, key=lambda request: request.arrived)
        now, number = 0.0, 0
        while number < len(arriving) or self._inside or self._backlog:
            while number < len(arriving) and arriving[number].arrived <= now:
                request = arriving[number]
                heapq.heappush(self._backlog, (request.lane.rank, number, request))
                number += 1
            self._admit(now)
            until = arriving[number].arrived if number < len(arriving) else math.inf
            now = self._pass(now, until)
        self._run.preemptions = self._machine.load().preemptions
        return self._run

    def _admit(self, now: float) -> None:
        """Claim and start alternately until neither makes progress."""
        while True:
            while self._backlog and self._policy.waiting < self._ahead:
                _, _, request = heapq.heappop(self._backlog)
                self._inside[request.id] = request
                self._policy.offer(
                    Item(
                        id=request.id,
                        prompt=request.prompt,
                        output=self._lengths.expected(request.workload),
                        longer=partial(self._lengths.expected, request.workload),
                        rank=request.lane.rank,
                        arrived=now,
                    )
                )
            capacity = self._headroom.capacity(self._machine.budget, self._machine.load(), now)
            starts = self._policy.start(now, capacity)
            for item in starts:
                self._started[item.id] = (item, capacity.is_exceeded_by(item), now)
            self._machine.enter([self._inside[item.id] for item in starts], now)
            if not starts or not self._backlog:
                return

    def _pass(self, now: float, until: float) -> float:
        due = self._policy.due(now)
        # `now` may be too large to tell a window's last nanosecond from its end
        until = min(until, math.inf if due is None else max(now + due, math.nextafter(now, math.inf)))
        if until == math.inf and not self._machine.is_busy:
            raise RuntimeError("The policy starts no request although nothing runs or arrives any more.")
        running = len(self._started)
        passed = self._machine.run(now, until)
        if passed.now > now:
            waiting = len(self._backlog) + self._policy.waiting
            kv_used = self._machine.load().kv_used
            use = Use(
                since=now,
                until=passed.now,
                busy=passed.busy,
                running=running,
                kv_used=kv_used,
                waiting=waiting,
            )
            self._run.use.append(use)
        for request, first_token in passed.ended:
            item, oversize, began = self._started.pop(request.id)
            del self._inside[request.id]
            self._policy.withdraw(request.id)
            self._lengths.observe(request.workload, request.output)
            served = Served(
                request=request,
                price=item.tokens,
                oversize=oversize,
                started=began,
                first_token=first_token,
                ended=passed.now,
            )
            self._run.served.append(served)
        return passed.now
