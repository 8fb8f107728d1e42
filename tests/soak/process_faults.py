"""Faults of processes: killed, or stopped for longer than a lease."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass

from tests.soak.faults import (
    BEYOND_LEASE,
    LONGEST_PAGE,
    REPAIRED,
    Blow,
    NotNowError,
    committing,
    held_by,
    replaced,
    taken_over,
    worker_of,
)
from tests.soak.observer import Held
from tests.soak.processes import children
from tests.soak.rig import ENGINES, Rig


@dataclass(frozen=True, slots=True)
class KillEngineWorker:
    """An engine worker is gone from one moment to the next, with all it ran."""

    name: str = "engine worker killed"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:
        """Kill one of them."""
        service = chance.choice(ENGINES)
        held = held_by(rig, worker_of(rig, service))
        _kill(rig, service)
        return Blow(limit=rig.lease + BEYOND_LEASE, recovered=taken_over(held), held=held)


@dataclass(frozen=True, slots=True)
class KillIngestWorker:
    """The only worker that cuts documents is gone: they wait for the next."""

    name: str = "ingest worker killed"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Kill it."""
        held = held_by(rig, worker_of(rig, "ingest"))
        _kill(rig, "ingest")
        return Blow(limit=REPAIRED, recovered=taken_over(held), held=held)


@dataclass(frozen=True, slots=True)
class KillService:
    """The worker that calls back, or the one that repairs, is gone."""

    name: str
    service: str

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Kill it."""
        _kill(rig, self.service)
        return Blow(limit=REPAIRED, recovered=replaced(self.service), held=Held([]))


@dataclass(frozen=True, slots=True)
class KillInnerProcess:
    """A process that decodes, or that the engine computes in, is gone; its worker lives."""

    name: str = "decoding or engine process killed"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:
        """Kill one of any engine worker's."""
        service = chance.choice(ENGINES)
        held = held_by(rig, worker_of(rig, service))
        started = children(rig.pid(service) or 0)
        forked = [inner for child in started for inner in children(child.pid)]
        inner = [process for process in (*started, *forked) if process.is_worker]
        if not inner:
            raise NotNowError
        with suppress(ProcessLookupError):
            os.kill(chance.choice(inner).pid, signal.SIGKILL)
        return Blow(limit=REPAIRED, recovered=committing(), held=held)


@dataclass(frozen=True, slots=True)
class PauseEngineWorker:
    """An engine worker stands still for longer than its lease, then wakes up and thinks that nothing happened."""

    name: str = "engine worker paused"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:
        """Stop one of them."""
        service = chance.choice(ENGINES)
        held = held_by(rig, worker_of(rig, service))
        pid = rig.pid(service)
        if pid is None:
            raise NotNowError
        os.kill(pid, signal.SIGSTOP)

        def wake() -> None:
            if rig.pid(service) == pid:
                os.kill(pid, signal.SIGCONT)

        past = rig.lease + BEYOND_LEASE
        limit = past + LONGEST_PAGE
        return Blow(limit=limit, recovered=taken_over(held), held=held, lasts=past, heal=wake)


def _kill(rig: Rig, service: str) -> None:
    if not rig.signal(service, signal.SIGKILL):
        raise NotNowError
