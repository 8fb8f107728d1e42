"""Discrete events: what arrives waits, is priced and admitted as by a worker, and leaves when its engine is done."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from pecia_workers.batching.learned import Headroom, LearnedLengths
from pecia_workers.batching.policies import Item, Policy, Room, Start
from pecia_workers.engines.base import Budget
from pecia_workers.simulation.machines import Ended, Machine
from pecia_workers.simulation.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request, from its arrival to its end; moments in seconds since the start."""

    request: Request
    price: int
    """Tokens that it was admitted with."""
    oversize: bool
    started: float
    first_token: float
    ended: float
    worked: float
    """Seconds in which it was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What the engine was used for in one stretch of time."""

    since: float
    until: float
    busy: float
    """Share of the slots that computed."""
    running: int
    kv_used: float | None
    """Share of the KV cache; None without one."""
    waiting: int
    """Requests that have arrived and are not in the engine."""


@dataclass(slots=True, kw_only=True)
class Run:
    """All that happened."""

    budget: Budget
    served: list[Served] = field(default_factory=list)
    use: list[Use] = field(default_factory=list)
    preemptions: int = 0


class Simulator:
    """One worker and its engine: claims in the order of lanes, admits by a policy, learns lengths from what ends."""

    def __init__(
        self, policy: Policy, machine: Machine, lengths: LearnedLengths, *, ahead: int | None = None
    ) -> None:
        """Let at most `ahead` requests wait at the worker, where the policy sees them; None: all that have arrived."""
        self._policy = policy
        self._machine = machine
        self._lengths = lengths
        self._ahead = math.inf if ahead is None else ahead
        self._headroom = Headroom()
        self._backlog: list[tuple[int, int, Request]] = []
        self._inside: dict[str, tuple[Request, Item]] = {}
        self._started: dict[str, tuple[Start, float]] = {}
        self._run = Run(budget=machine.budget)

    def run(self, requests: Iterable[Request]) -> Run:
        """Return what happens to these requests, which must have ids of their own."""
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
        """Claim and start until neither makes room for the other."""
        while True:
            self._claim(now)
            starts = self._policy.start(now, self._room(now))
            for start in starts:
                self._started[start.item.id] = (start, now)
            self._machine.enter([self._inside[start.item.id][0] for start in starts], now)
            if not starts or not self._backlog:
                return

    def _claim(self, now: float) -> None:
        while self._backlog and self._policy.waiting < self._ahead:
            _, _, request = heapq.heappop(self._backlog)
            expected = self._lengths.expected(request.workload)
            item = Item(
                id=request.id,
                prompt=request.prompt,
                output=expected,
                longer=partial(self._lengths.expected, request.workload),
                rank=request.lane.rank,
                arrived=now,
            )
            self._inside[request.id] = (request, item)
            self._policy.offer(item)

    def _room(self, now: float) -> Room:
        budget, load = self._machine.budget, self._machine.load()
        if budget.tokens is None:
            return Room(slots=budget.slots, tokens=None)
        self._headroom.look(load, now)
        tokens = math.floor(budget.tokens * self._headroom.share)
        return Room(slots=budget.slots, tokens=tokens, block=budget.block, written=load.written)

    def _pass(self, now: float, until: float) -> float:
        due = self._policy.due(now)
        # `now` may be too large to tell a window's last nanosecond from its end
        until = min(until, math.inf if due is None else max(now + due, math.nextafter(now, math.inf)))
        if until == math.inf and not self._machine.is_busy:
            raise RuntimeError("The policy starts nothing, and nothing is left to wait for.")
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
        for ended in passed.ended:
            self._end(ended, passed.now)
        return passed.now

    def _end(self, ended: Ended, now: float) -> None:
        request = ended.request
        start, began = self._started.pop(request.id)
        del self._inside[request.id]
        self._policy.withdraw(request.id)
        self._lengths.observe(request.workload, request.output)
        self._run.served.append(
            Served(
                request=request,
                price=start.item.tokens,
                oversize=start.oversize,
                started=began,
                first_token=ended.first_token,
                ended=now,
                worked=ended.worked,
            )
        )
