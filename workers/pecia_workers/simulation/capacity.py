"""How many engines a load needs: as many as make a page fast enough in the simulator, which has the plan's own speed.

The arithmetic of `engines.speed` says where to begin: so many engines that each, with as many pages at a time as its
memory holds and the latency allows, reads its share. It has no wait in it and all pages alike; the simulator has both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.plan import EnginePlan
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel
from pecia_workers.engines.speed import PageLoad, Speed, pace, within
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix, Request, all_at_once, drawn, poisson
from pecia_workers.simulation.scenarios import Figures, simulated

_MOST_ENGINES: Final = 100_000
_SAMPLE: Final = 4_000
"""Pages that a mix is known by."""
_SIMULATED: Final = 1_000


def load_of(requests: Sequence[Request]) -> PageLoad:
    """Return the tokens of a sample of pages."""
    outputs = [request.output for request in requests]
    mean, prompt = fmean(outputs), fmean(request.prompt for request in requests)
    # Long ones are seen for longer.
    held = prompt + fmean(output**2 for output in outputs) / (2 * mean)
    return PageLoad(prompt=prompt, output=mean, held=held)


def load_of_mix(mix: Mix) -> PageLoad:
    """Return the tokens of the pages of a mix."""
    return load_of(drawn(all_at_once(_SAMPLE), mix, 0))


def planned_model(plan: EnginePlan) -> tuple[IterationModel, Speed]:
    """Return the planned engine for the simulator.

    Raises `EngineUnavailableError` if it does not start, or nothing is known of its speed.
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


def places_in(model: IterationModel, load: PageLoad) -> int:
    """Return how many pages admission lets run at a time: as many as fill the KV cache with what they hold."""
    return max(1, min(model.max_num_seqs, int(model.kv_blocks * BLOCK_TOKENS / load.held)))


def engines_for(in_flight: float, places: int) -> int:
    """Return how many engines of so many places hold the pages in flight; an exact multiple needs no more."""
    return math.ceil(round(in_flight / places, 9))


def cost_per_million(engines: int, rate: float, price_per_hour: float) -> float:
    """Return what a million pages cost with so many engines kept running, in the currency of the price."""
    return engines * price_per_hour / (rate * 3600) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """A fleet for a load, and one of its engines simulated. Times in seconds."""

    engines: int
    rate: float
    """Pages a second, of all."""
    latency: float
    """That was asked for, on average."""
    simulated: Figures

    @property
    def in_flight(self) -> float:
        """Pages in the system, of all, by Little's law."""
        return self.rate * self.simulated.in_system.mean


def plan_capacity(
    model: IterationModel, speed: Speed, mix: Mix, *, rate: float, latency: float
) -> CapacityPlan | None:
    """Return the smallest fleet that is fast enough on average; None if no number of engines is."""
    load = load_of_mix(mix)
    pages = within(speed, load, latency, places_in(model, load))
    if not pages:
        return None

    def tried(engines: int) -> CapacityPlan:
        arriving = drawn(poisson(_SIMULATED, rate / engines, 0), mix, 1)
        figures = simulated(PolicyName.CONTINUOUS, arriving, model).figures
        return CapacityPlan(engines=engines, rate=rate, latency=latency, simulated=figures)

    best = tried(math.ceil(rate / pace(speed, load, pages).pages_per_s))
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
