"""How long an engine takes: two models that pass simulated time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pecia_workers.engines.base import Budget, Load
from pecia_workers.engines.simulated import Iteration, IterationModel, IterationScheduler
from pecia_workers.engines.simulated import Sequence as EngineSequence
from pecia_workers.simulation.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that has left the engine."""

    request: Request
    first_token: float
    """Seconds since the start of the simulation."""
    worked: float
    """Seconds in which it was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What an engine did until `now`."""

    now: float
    ended: tuple[Ended, ...] = ()
    busy: float = 0.0
    """Share of the slots that computed, over that time."""


@dataclass(slots=True, kw_only=True)
class _Working:
    request: Request
    entered: float
    done: float
    leaves: float


class SlotMachine:
    """Slots that each compute one request at a time, at a speed that depends on nothing else."""

    def __init__(self, slots: int, token_s: float, *, whole_batches: bool) -> None:
        """Take `token_s` seconds for each token written; `whole_batches`: who starts together leaves together."""
        self._slots = slots
        self._token_s = token_s
        self._whole_batches = whole_batches
        self._working: list[_Working] = []

    @property
    def budget(self) -> Budget:
        """Its slots."""
        return Budget(slots=self._slots, tokens=None)

    @property
    def is_busy(self) -> bool:
        """Whether anything is in it."""
        return bool(self._working)

    def load(self) -> Load:
        """Return how many work."""
        return Load(running=len(self._working), waiting=0)

    def enter(self, requests: Sequence[Request], now: float) -> None:
        """Take in requests, each for as long as it writes, or all for as long as the longest."""
        done = [now + request.output * self._token_s for request in requests]
        longest = max(done, default=now)
        self._working += [
            _Working(request=request, entered=now, done=end, leaves=longest if self._whole_batches else end)
            for request, end in zip(requests, done, strict=True)
        ]

    def run(self, now: float, until: float) -> Passed:
        """Work until the next one leaves, or `until`."""
        to = min([until, *(one.leaves for one in self._working)])
        leaving = [one for one in self._working if one.leaves <= to]
        worked = sum(max(0.0, min(one.done, to) - now) for one in self._working)
        self._working = [one for one in self._working if one.leaves > to]
        return Passed(
            now=to,
            ended=tuple(
                Ended(
                    request=one.request,
                    first_token=one.entered + self._token_s,
                    worked=one.done - one.entered,
                )
                for one in leaving
            ),
            busy=worked / (self._slots * (to - now)) if to > now else 0.0,
        )


class IterationMachine:
    """The simulated engine's scheduler, iteration by iteration."""

    def __init__(self, model: IterationModel) -> None:
        self._scheduler = IterationScheduler(model)
        self._inside: dict[str, tuple[Request, float]] = {}
        self._first: dict[str, float] = {}
        self.longest_iteration = 0.0
        """Seconds: the longest that a page which writes waited for its next token, unless it was preempted."""

    @property
    def budget(self) -> Budget:
        """The model's sequences and its KV cache in tokens."""
        return self._scheduler.model.budget

    @property
    def is_busy(self) -> bool:
        """Whether anything is in it."""
        return bool(self._inside)

    def load(self) -> Load:
        """Return what the scheduler holds."""
        return self._scheduler.load

    def enter(self, requests: Sequence[Request], now: float) -> None:
        """Queue requests inside the engine. Raises `ValueError` for one that its cache could never hold."""
        for request in requests:
            sequence = EngineSequence(id=request.id, prompt=request.prompt, output=request.output)
            self._scheduler.add(sequence)
            self._inside[request.id] = (request, now)

    def run(self, now: float, until: float) -> Passed:
        """Run an iteration, or as many as change nothing but the lengths, then one; without anything to do, wait."""
        if not self._inside:
            return Passed(now=until)
        now += self._coast(until - now)
        iteration = self._scheduler.step()
        self.longest_iteration = max(self.longest_iteration, iteration.duration)
        to = now + iteration.duration
        for sequence in iteration.started:
            self._first.setdefault(sequence.id, to)
        running = len(self._scheduler.running) + len(iteration.finished)
        return Passed(now=to, ended=self._ended(iteration, to), busy=running / self.budget.slots)

    def _coast(self, seconds: float) -> float:
        """Pass less than these seconds in iterations that are all alike; return how many seconds they were."""
        each = self._scheduler.model.duration(0, len(self._scheduler.running))
        most = sys.maxsize if seconds == math.inf else math.ceil(seconds / each) - 1
        return self._scheduler.coast(most) * each

    def _ended(self, iteration: Iteration, now: float) -> tuple[Ended, ...]:
        ended = []
        for sequence in iteration.finished:
            request, entered = self._inside.pop(sequence.id)
            first = self._first.pop(sequence.id)
            ended.append(Ended(request=request, first_token=first, worked=now - entered))
        return tuple(ended)


Machine = SlotMachine | IterationMachine
"""An engine, as far as time goes."""
