"""How many tokens an answer takes, by workload: what the product is sized for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, DocumentType

OutputLengths = Callable[[str, str], int]
"""Returns how many tokens the answer to a request of a workload has, at least 1; the same for the same request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    mean: float
    std: float
    most: int


_SPREADS: Final[dict[str, _Spread]] = {
    DocumentType.PRESCRIPTION: _Spread(mean=200, std=80, most=500),
    DocumentType.DIAGNOSIS: _Spread(mean=800, std=300, most=2000),
    DocumentType.LAB_RESULT: _Spread(mean=400, std=150, most=1000),
    DocumentType.CHART: _Spread(mean=2000, std=800, most=5000),
    DocumentType.MIXED: _Spread(mean=600, std=700, most=5000),
}
"""Pages, from the medical workload; the rest spreads around its expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLengths:
    """Log-normal lengths with each type's mean and deviation, cut at its maximum: never negative, with a long tail."""

    seed: int = 0

    def __call__(self, request_id: str, workload: str) -> int:
        """Return a length drawn for this request."""
        spread = _SPREADS.get(workload)
        if spread is None:
            mean = EXPECTED_OUTPUT_TOKENS[workload]
            spread = _Spread(mean=mean, std=mean / 2, most=2 * mean)
        variance = math.log(1 + (spread.std / spread.mean) ** 2)
        rng = random.Random(f"{self.seed}:{request_id}")  # noqa: S311  a workload, no secret
        drawn = rng.lognormvariate(math.log(spread.mean) - variance / 2, math.sqrt(variance))
        return min(spread.most, max(1, round(drawn)))
