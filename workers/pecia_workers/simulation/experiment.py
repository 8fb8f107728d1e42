"""What a batch's size and its wait for others do to pages: the same pages through one policy, simulated."""

import math
from dataclasses import dataclass
from statistics import fmean

from pecia_workers.batching import policies
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.requests import Request
from pecia_workers.simulation.scenarios import SHARE, figures
from pecia_workers.simulation.simulator import IterationMachine, Simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one size and one window came to; times in seconds."""

    size: int
    window: float
    mean: float
    """From arrival to end."""
    p95: float
    waiting: float
    """Of it, before the engine, on average."""
    tokens_per_s: float
    """Written."""
    utilisation: float
    """Share of the engine's places that were taken, over the time."""


def limits_of(size: int, window: float, concurrent: int) -> policies.BatchLimits:
    """Return batches of this size at most, `concurrent` at a time, whose first waits `window` seconds at most."""
    return policies.BatchLimits(
        least=size, most=size, tokens=math.inf, concurrent=concurrent, window_s=window
    )


def simulated_cell(requests: list[Request], model: IterationModel, limits: policies.BatchLimits) -> Cell:
    """Return what becomes of the requests on the simulated engine."""
    policy = policies.BatchPolicy(limits, similar=False)
    run = Simulator(policy, IterationMachine(model), LearnedLengths(SHARE)).run(requests)
    result = figures(run, batches=True)
    taken = fmean(page.ended - page.started for page in run.served) * len(run.served)
    return Cell(
        size=limits.most,
        window=limits.window_s,
        mean=result.in_system.mean,
        p95=result.in_system.p95,
        waiting=result.waiting.mean,
        tokens_per_s=result.output_tokens_per_s,
        utilisation=taken / (model.max_num_seqs * result.total),
    )
