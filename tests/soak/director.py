"""Strikes as a plan says, heals what is to be healed, and takes the time until the fleet has recovered.

The plan is drawn from a seed: the same seed breaks the same things in the same order.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.soak.catalogue import FAULTS, Blow, NotNowError
from tests.soak.rig import Rig
from tests.soak.surroundings import CannotInjectError

_NEVER_S = 120.0
"""After which nobody waits any more, for the fleet to recover or for something to be there to be broken."""
_ROOM_BEFORE = 0.04
_ROOM_AFTER = 0.1
"""Shares of the pages before the first fault and after the last."""
_HASTY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault and when it strikes."""

    number: int
    fault: str
    mark: int
    """As soon as so many pages are over."""
    hasty: bool
    """Whether it does not wait until the fleet has recovered from the one before."""


def plan(seed: int, *, pages: int, faults: Sequence[str], count: int) -> list[Strike]:
    """Return `count` strikes of these faults while so many pages are read: each once, in any order, then all again."""
    chance = random.Random(f"plan {seed}")  # noqa: S311  a plan, no secret
    first, last = int(pages * _ROOM_BEFORE), int(pages * (1 - _ROOM_AFTER))
    marks = sorted(chance.randint(first, last) for _ in range(count))
    drawn = _shuffled(chance, faults)
    return [
        Strike(number=number, fault=next(drawn), mark=mark, hasty=number > 0 and chance.random() < _HASTY)
        for number, mark in enumerate(marks)
    ]


def _shuffled(chance: random.Random, faults: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(faults, len(faults))


@dataclass(slots=True, kw_only=True)
class Injection:
    """One strike of the plan and what came of it."""

    strike: Strike
    blow: Blow | None = None
    skipped: str = ""
    """Why it could not be injected on this machine."""
    struck: float = 0.0
    """By the monotonic clock, in seconds."""
    since: datetime | None = None
    """When it struck, by the clock of Postgres."""
    healed: float | None = None
    recovered_s: float | None = None
    """Seconds until the fleet had recovered; None: it has not."""
    given_up: bool = False
    """Whether nobody waits for it any more."""
    alone: bool = True
    """Whether the fleet had recovered from everything else meanwhile: only then does the limit hold."""

    @property
    def name(self) -> str:
        return FAULTS[self.strike.fault].name

    @property
    def pending(self) -> bool:
        """Whether it has struck and is not healed, or the fleet has not recovered."""
        recovering = self.recovered_s is None and not self.given_up
        return self.blow is not None and (recovering or self.healed is None)

    def is_late(self, slack: timedelta) -> bool:
        """Return whether the fleet took longer than it promises, and so much longer."""
        if self.blow is None:
            return False
        if self.recovered_s is None:
            return True
        return self.alone and self.recovered_s > (self.blow.limit + slack).total_seconds()


class Director:
    """Runs a plan against a rig. `tick` is called again and again and never waits."""

    def __init__(self, rig: Rig, plan: Sequence[Strike], *, seed: int, tell: Callable[[str], object]) -> None:
        self.injections: list[Injection] = []
        """What has struck, in that order."""
        self._ahead = list(plan)
        self._impossible: list[Strike] = []
        self._rig = rig
        self._seed = seed
        self._tell = tell
        self._trying_since: float | None = None

    @property
    def finished(self) -> bool:
        """Whether everything has struck and the fleet has recovered from it."""
        return not self._ahead and not self._pending

    @property
    def unstruck(self) -> list[str]:
        """Faults that have not struck yet, or never found anything to break."""
        return [strike.fault for strike in (*self._impossible, *self._ahead)]

    @property
    def struck_workers(self) -> set[str]:
        """The workers that were killed or stopped."""
        return {blow.worker for one in self.injections if (blow := one.blow) and blow.worker}

    @property
    def wants_submits(self) -> bool:
        """Whether a fault is pending that only those feel who submit."""
        return any(injection.blow and injection.blow.of_submits for injection in self._pending)

    @property
    def _pending(self) -> list[Injection]:
        return [injection for injection in self.injections if injection.pending]

    def tick(self, over: int) -> None:
        """Do what is due when so many pages are over."""
        for injection in self._pending:
            self._heal(injection)
            self._watch(injection)
        if self._ahead and over >= self._ahead[0].mark and (self._ahead[0].hasty or not self._pending):
            self._strike(self._ahead[0])

    def heal_all(self) -> None:
        """End every fault that lasts, due or not."""
        for injection in self._pending:
            self._heal(injection, now=True)

    def _strike(self, strike: Strike) -> None:
        try:
            injection = self._inject(strike)
        except NotNowError:
            self._try_again(strike)
            return
        for other in self._pending:
            other.alone = injection.alone = False
        self._ahead.pop(0)
        self._trying_since = None
        self.injections.append(injection)
        self._tell(f"{injection.name}{f': skipped, {injection.skipped}' if injection.skipped else ''}")

    def _inject(self, strike: Strike) -> Injection:
        injection = Injection(strike=strike, since=self._rig.observer.now())
        if injection.since is None:
            raise NotNowError
        # Its own generator: what one fault draws does not depend on those before.
        chance = random.Random(f"strike {self._seed} {strike.number}")  # noqa: S311
        try:
            injection.blow = FAULTS[strike.fault].strike(self._rig, chance)
        except CannotInjectError as reason:
            injection.skipped = str(reason)
        injection.struck = time.monotonic()
        return injection

    def _try_again(self, strike: Strike) -> None:
        now = time.monotonic()
        self._trying_since = self._trying_since or now
        if now - self._trying_since > _NEVER_S:
            self._impossible.append(self._ahead.pop(0))
            self._trying_since = None
            self._tell(f"{FAULTS[strike.fault].name}: found nothing to break")

    def _heal(self, injection: Injection, *, now: bool = False) -> None:
        blow = injection.blow
        due = blow and time.monotonic() - injection.struck >= blow.lasts.total_seconds()
        if blow is None or injection.healed is not None or not (due or now):
            return
        if blow.heal:
            try:
                blow.heal()
            except NotNowError:
                return
            if blow.outage:
                injection.since = self._rig.observer.now() or injection.since
        injection.healed = time.monotonic()

    def _watch(self, injection: Injection) -> None:
        blow, since = injection.blow, injection.since
        if blow is None or since is None or injection.recovered_s is not None:
            return
        begun = injection.healed if blow.outage else injection.struck
        if begun is None:
            return
        if blow.recovered(self._rig.observer, since):
            injection.recovered_s = time.monotonic() - begun
            self._tell(f"  recovered from: {injection.name}, {injection.recovered_s:.1f} s")
        elif time.monotonic() - begun > _NEVER_S and not injection.given_up:
            injection.given_up = True
            self._tell(f"  NOT recovered from: {injection.name}")
