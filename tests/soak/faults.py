"""What a fault is, and how it is seen that the fleet has recovered from one."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.soak.observer import Held, Observer
from tests.soak.rig import ENGINES, Rig

BEYOND_LEASE = timedelta(seconds=5)
"""A dead worker's parts run again within its lease and this: a worker makes ready as soon as it falls silent."""
LONGEST_PAGE = timedelta(seconds=25)
"""What a worker holds that makes ready to run another's parts, which run apart."""
RECONNECTED = timedelta(seconds=15)
"""Within which a fleet works again whose connections broke."""
REPAIRED = timedelta(seconds=60)
"""Where no other limit is promised."""

Recovered = Callable[[Observer, datetime], bool | None]
"""Whether the fleet has recovered from what happened at a moment; None: nobody knows now."""


class NotNowError(Exception):
    """What the fault is about is away at this moment: try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A fault that has struck."""

    limit: timedelta
    """Within which the fleet promises to have recovered."""
    recovered: Recovered
    held: Held
    """The parts that it may have interrupted."""
    lasts: timedelta = timedelta()
    heal: Callable[[], object] | None = None
    """Ends the fault after `lasts`. Raises `NotNowError` while what it mends is away: then it is called again."""
    outage: bool = False
    """Whether nothing can recover before the healing: then the time to recover counts from there."""
    of_submits: bool = False
    """Whether only those feel it who submit."""
    worker: str | None = None
    """The worker that it killed or stopped: only of those may deaths be counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break something."""

    name: str
    """What the table says."""
    strike: Callable[[Rig, random.Random], Blow]
    """Breaks it. Raises `NotNowError`, or `CannotInjectError` where the machine does not permit it."""


def held_by(rig: Rig, worker: str | None) -> Held:
    """Return what a worker runs at this moment, None: all of them. Raises `NotNowError`."""
    held = rig.observer.held_by(worker)
    if held is None:
        raise NotNowError
    return held


def worker_of(rig: Rig, service: str) -> str:
    """Return the name of a service's worker in Postgres. Raises `NotNowError` if it is not on duty."""
    pid = rig.pid(service)
    name = rig.observer.worker_named(pid) if pid else None
    if name is None:
        raise NotNowError
    return name


def taken_over(held: Held) -> Recovered:
    """As soon as each of the parts runs again or is over, and something was committed."""
    return lambda observer, since: observer.are_taken_over(held) and observer.has_committed(since)


def everyone_hit(rig: Rig, limit: timedelta) -> Blow:
    """Return a blow to the whole fleet, which has recovered when every engine worker works."""
    return Blow(
        limit=limit,
        recovered=lambda observer, since: (observer.at_work(since) or 0) >= len(ENGINES),
        held=held_by(rig, None),
    )
