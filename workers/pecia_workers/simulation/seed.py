"""The comparison that the product grew out of: 200 requests on 8 slots, drawn as its source drew them."""

from __future__ import annotations

import random
from typing import Final

from pecia_schemas.tasks import DocumentType
from pecia_workers.simulation.requests import Request

REQUESTS: Final = 200
SLOTS: Final = 8
TOKEN_S: Final = 1 / 300
"""Seconds a token takes here, so that the source's times are about the lengths that the product expects of each type.

The policies never see a time or a drawn length: they reckon with the product's table until they have learned better.
"""
_SEED: Final = 42
_TIMES: Final = {
    "prescription": (DocumentType.PRESCRIPTION, 0.5, 1.0, 0.4),
    "diagnosis": (DocumentType.DIAGNOSIS, 1.0, 3.0, 1.2),
    "test": (DocumentType.LAB_RESULT, 0.8, 2.0, 0.8),
    "chart": (DocumentType.CHART, 2.0, 6.0, 2.5),
}
"""By the source's name: our type, and the seconds of its service: least, mean, deviation."""


def seed_requests(seed: int = _SEED) -> list[Request]:
    """Return the source's workload, all of it there at the start; another seed draws another of its kind."""
    rng = random.Random(seed)  # noqa: S311  the source's own draw
    requests = []
    for number in range(REQUESTS):
        workload, least, mean, deviation = _TIMES[rng.choice(list(_TIMES))]
        seconds = round(max(least, rng.gauss(mean, deviation)), 2)
        output = round(seconds / TOKEN_S)
        requests.append(Request(id=str(number), arrived=0.0, workload=workload, prompt=0, output=output))
    return requests
