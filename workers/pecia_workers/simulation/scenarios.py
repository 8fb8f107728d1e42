"""Policies, machines and requests put together as a fleet does it, or as the source of the product did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.figures import Figures, figures
from pecia_workers.simulation.machines import IterationMachine, Machine, SlotMachine
from pecia_workers.simulation.requests import Request
from pecia_workers.simulation.simulator import Run, Simulator

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


SHARE: Final = 0.5
"""Of a workload's outputs that the expected length covers: the worker's default."""
BATCHED: Final = frozenset({PolicyName.STATIC, PolicyName.DYNAMIC})
SEED_LIMITS: Final = BatchLimits(least=1, most=16, tokens=16_384, concurrent=1, window_s=0.1)
"""Of the source's dynamic batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy's run and what it comes to."""

    policy: PolicyName
    figures: Figures
    run: Run


def simulated_seed(name: PolicyName, *, ahead: int | None = None, number: int | None = None) -> Result:
    """Return what a policy makes of the source's comparison, or of another draw of its kind.

    Batches run as a whole there: all of one leave with its longest.
    """
    machine = SlotMachine(SLOTS, TOKEN_S, whole_batches=name in BATCHED)
    requests = seed_requests() if number is None else seed_requests(number)
    return _result(name, SEED_LIMITS, machine, requests, ahead)


def simulated(
    name: PolicyName,
    requests: Sequence[Request],
    model: IterationModel,
    *,
    limits: BatchLimits | None = None,
    ahead: int | None = None,
) -> Result:
    """Return what a policy makes of these requests on the simulated engine."""
    return _result(name, limits or BatchLimits(), IterationMachine(model), requests, ahead)


def _result(
    name: PolicyName, limits: BatchLimits, machine: Machine, requests: Sequence[Request], ahead: int | None
) -> Result:
    simulator = Simulator(policy_named(name, limits), machine, LearnedLengths(SHARE), ahead=ahead)
    run = simulator.run(requests)
    return Result(policy=name, figures=figures(run, batches=name in BATCHED), run=run)
