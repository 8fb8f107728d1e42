"""How lanes are served, as far as operators may say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from pecia_schemas import Lane
from pecia_schemas.messages import TURN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pecia_schemas.settings import WorkerSettings

LOWER_LANES = tuple(lane for lane in Lane if lane is not Lane.URGENT)
"""Lanes that others are served before."""


def _no_shares() -> dict[Lane, float]:
    return dict.fromkeys(LOWER_LANES, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """What a claim keeps to beside the order of the lanes. By default nothing: strict order, no patience."""

    shares: Mapping[Lane, float] = field(default_factory=_no_shares)
    """Share of the claimed tokens that a lower lane gets while it has a backlog."""
    patience: timedelta = timedelta()
    """After which a lower lane that was not served is served one part first. 0: never."""
    alone_from: int = 2
    """Workers that died on a part, from which on it runs alone; before, it runs among parts of its kind."""
    drain: timedelta = timedelta(seconds=15)
    """How long suspects wait behind urgent parts, and how long a worker is believed that runs dry for them."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Return the rules that the settings name."""
        return cls(
            shares={lane: settings.lane_shares.get(lane, 0.0) for lane in LOWER_LANES},
            patience=settings.lane_patience,
            alone_from=max(1, settings.max_deaths - 1),
            drain=settings.lease,
        )

    def encode(self) -> str:
        """Return the rules as the claim's script reads them."""
        return json.dumps(
            {
                "lanes": dict.fromkeys(Lane, True),
                "shares": dict(self.shares),
                "patience": self.patience.total_seconds(),
                "alone_from": self.alone_from,
                "drain": self.drain.total_seconds(),
                "turn": TURN,
            }
        )
