"""Faults of the network between the fleet and its servers, injected by the proxies."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import timedelta

from tests.soak.faults import RECONNECTED, REPAIRED, Blow, everyone_hit
from tests.soak.rig import Rig, Server

_DELAY_S = 0.1
_SLOW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class CutConnections:
    """Every connection to a server breaks at once."""

    name: str
    server: Server

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  all of them
        """Cut them."""
        blow = everyone_hit(rig, RECONNECTED)
        rig.proxies[self.server].cut()
        return blow


@dataclass(frozen=True, slots=True)
class SilenceConnections:
    """Every connection to a server is half-open: nobody closes it, nothing comes through. New ones work."""

    name: str
    server: Server

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  all of them
        """Let them fall silent."""
        blow = everyone_hit(rig, RECONNECTED)
        rig.proxies[self.server].silence()
        return blow


@dataclass(frozen=True, slots=True)
class SlowConnections:
    """Everything takes a tenth of a second longer for some seconds."""

    name: str = "connections slow"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  all of them
        """Slow both servers down."""
        blow = everyone_hit(rig, REPAIRED)
        for proxy in rig.proxies.values():
            proxy.delay(_DELAY_S)

        def heal() -> None:
            for proxy in rig.proxies.values():
                proxy.delay(0)

        return replace(blow, lasts=_SLOW, heal=heal)
