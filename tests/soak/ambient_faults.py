"""Faults of what a fleet stands on: the disk under the documents, the clocks of its machines."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from tests.soak.faults import RECONNECTED, REPAIRED, Blow, everyone_hit
from tests.soak.observer import Held
from tests.soak.rig import ENGINES, Rig
from tests.soak.surroundings import CannotInjectError

_FULL = timedelta(seconds=3)
_JUMPS_S = (-3_600.0, -30.0, 30.0, 3_600.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class FillDisk:
    """There is no room for another document: producers get errors until there is."""

    name: str = "disk of the documents full"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Fill it for some seconds."""
        if rig.disk is None:
            raise CannotInjectError("needs root, to mount a small file system")
        rig.disk.fill()
        return Blow(
            limit=REPAIRED,
            recovered=lambda observer, since: observer.has_accepted(since),
            held=Held([]),
            lasts=_FULL,
            heal=rig.disk.empty,
            of_submits=True,
        )


@dataclass(frozen=True, slots=True)
class JumpClock:
    """The clock of one worker's machine is set, and stays as it is."""

    name: str = "clock jumped"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:
        """Set an engine worker's clock ahead or back."""
        blow = everyone_hit(rig, RECONNECTED)
        rig.clocks[chance.choice(ENGINES)].jump(chance.choice(_JUMPS_S))
        return blow
