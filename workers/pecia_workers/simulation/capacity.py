"""Capacity planning: the number of engines for a load, simulated with the planned engine's speed."""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.plan import EnginePlan
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.engines.speed import PageLoad, Speed, pace
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix, drawn, poisson
from pecia_workers.simulation.scenarios import Figures, simulated

_MOST_ENGINES: Final = 100_000
_SAMPLE: Final = 4_000
"""Pages drawn to estimate a mix."""
_SIMULATED: Final = 1_000


def load_of_mix(mix: Mix) -> PageLoad:
    """Return the tokens of the pages of a mix."""
    requests = drawn([0.0] * _SAMPLE, mix, 0)
    prompt, output = (fmean(getattr(one, name) for one in requests) for name in ("prompt", "output"))
    return PageLoad(prompt=prompt, output=output, held=prompt + output / 2)


def planned_model(plan: EnginePlan) -> tuple[IterationModel, Speed]:
    """Return the planned engine for the simulator.

    Raises `EngineUnavailableError` if it does not start, or its speed is unknown.
    """
    if not plan.starts:
        raise EngineUnavailableError(f"{plan.model} does not start there: see `pecia engine plan`.")
    if plan.speed is None:
        raise EngineUnavailableError(
            f"Nothing is known of the speed of {plan.model} on {plan.profile}: name a GPU with --gpu, or the file that"
            " `pecia engine tune` wrote there."
        )
    model = IterationModel(
        max_num_seqs=plan.pages_at_a_time,
        max_num_batched_tokens=plan.sizes.get("max_num_batched_tokens") or plan.context,
        kv_blocks=plan.kv_blocks,
        **plan.speed.model_dump(),
    )
    return model, plan.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """A fleet for a load, and one of its engines simulated. Times in seconds."""

    engines: int
    rate: float
    """Pages a second, of all."""
    latency: float
    """Mean latency that was requested."""
    simulated: Figures

    @property
    def in_flight(self) -> float:
        """Pages in the system, of all, by Little's law."""
        return self.rate * self.simulated.in_system.mean


def plan_capacity(
    model: IterationModel, speed: Speed, mix: Mix, *, rate: float, latency: float
) -> CapacityPlan | None:
    """Return the smallest fleet whose mean latency is low enough, or None if no number of engines suffices."""

    def tried(engines: int) -> CapacityPlan:
        arriving = drawn(poisson(_SIMULATED, rate / engines, 0), mix, 1)
        figures = simulated(PolicyName.CONTINUOUS, arriving, model).figures
        return CapacityPlan(engines=engines, rate=rate, latency=latency, simulated=figures)

    fastest = pace(speed, load_of_mix(mix), model.max_num_seqs).pages_per_s
    best = tried(math.ceil(rate / fastest))  # no fewer keep up
    few = best.engines - 1
    while best.simulated.in_system.mean > latency:
        few = best.engines
        if 2 * few > _MOST_ENGINES:
            return None
        best = tried(2 * few)
    while best.engines - few > 1:
        between = tried((few + best.engines) // 2)
        if between.simulated.in_system.mean <= latency:
            best = between
        else:
            few = between.engines
    return best
