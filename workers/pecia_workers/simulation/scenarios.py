"""Scenarios: policies, engines and requests of a fleet or of the source; figures of a run, and engines for a load."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, BatchPolicy, PolicyName, policy_named
from pecia_workers.engines.plan import EnginePlan
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.engines.speed import PageLoad, Speed, pace
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix, Request, drawn, poisson
from pecia_workers.simulation.simulator import IterationMachine, Machine, Run, Simulator, SlotMachine, Use

REQUESTS: Final = 200
SLOTS: Final = 8
TOKEN_S: Final = 1 / 300
"""Seconds for each token, chosen so that the source's times match the lengths that the product expects of each type.

Policies never see times or drawn lengths: they use the product's table until they have learned lengths.
"""
_SEED: Final = 42
_TIMES: Final = {
    "prescription": (DocumentType.PRESCRIPTION, 0.5, 1.0, 0.4),
    "diagnosis": (DocumentType.DIAGNOSIS, 1.0, 3.0, 1.2),
    "test": (DocumentType.LAB_RESULT, 0.8, 2.0, 0.8),
    "chart": (DocumentType.CHART, 2.0, 6.0, 2.5),
}
"""By the source's name: our type, and its service time in seconds: least, mean, deviation."""


def seed_requests() -> list[Request]:
    """Return the source's workload, all of it there at the start."""
    rng = random.Random(_SEED)  # noqa: S311  the source's own draw
    requests = []
    for number in range(REQUESTS):
        workload, least, mean, deviation = _TIMES[rng.choice(list(_TIMES))]
        seconds = round(max(least, rng.gauss(mean, deviation)), 2)
        output = round(seconds / TOKEN_S)
        requests.append(Request(id=str(number), arrived=0.0, workload=workload, prompt=0, output=output))
    return requests


SHARE: Final = 0.5
"""Share of a workload's outputs that the expected length covers: the worker's default."""
BATCHED: Final = frozenset({PolicyName.STATIC, PolicyName.DYNAMIC})
SEED_LIMITS: Final = BatchLimits(least=1, most=16, tokens=16_384, concurrent=1, window_s=0.1)
"""Limits of the source's dynamic batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy's run and its figures."""

    policy: PolicyName
    figures: Figures
    run: Run


def simulated_seed(name: PolicyName, *, ahead: int | None = None) -> Result:
    """Return what a policy makes of the source's comparison, where all of a batch leave with its longest."""
    machine = SlotMachine(SLOTS, TOKEN_S, leave_together=name in BATCHED)
    return _result(name, SEED_LIMITS, machine, seed_requests(), ahead)


def simulated(
    name: PolicyName,
    requests: Sequence[Request],
    model: IterationModel,
    *,
    limits: BatchLimits | None = None,
    ahead: int | None = None,
) -> Result:
    """Run a policy with these requests on the simulated engine."""
    return _result(name, limits or BatchLimits(), IterationMachine(model), requests, ahead)


def simulated_batches(
    requests: Sequence[Request], model: IterationModel, *, size: int, window: float, concurrent: int
) -> Figures:
    """Return the figures of batches in the order of arrival, `concurrent` at a time.

    The first page of a batch waits at most `window` seconds for others.
    """
    limits = BatchLimits(least=size, most=size, tokens=math.inf, concurrent=concurrent, window_s=window)
    policy = BatchPolicy(limits, similar=False)
    return figures(
        Simulator(policy, IterationMachine(model), LearnedLengths(SHARE)).run(requests), batches=True
    )


def _result(
    name: PolicyName, limits: BatchLimits, machine: Machine, requests: Sequence[Request], ahead: int | None
) -> Result:
    simulator = Simulator(policy_named(name, limits), machine, LearnedLengths(SHARE), ahead=ahead)
    run = simulator.run(requests)
    return Result(policy=name, figures=figures(run, batches=name in BATCHED), run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Statistics over all requests, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a run; times in seconds."""

    requests: int
    total: float
    """From the first arrival to the last end."""
    requests_per_s: float
    output_tokens_per_s: float
    service: Times
    """In the engine."""
    waiting: Times
    """Before the engine."""
    in_system: Times
    """From arrival to end."""
    first_token: Times
    """From arrival."""
    utilisation: float
    """Share of the slots that computed for an unfinished request."""
    kv_used: float | None
    """Share of the KV cache's blocks in use, on average; None without one."""
    padding: float | None
    """1 - sum len / sum (max len x n) of all batches: the share that would be padding if each were padded to one
    length; None without batches."""
    preemptions: int
    oversize: int
    """Requests larger than the budget, which ran alone."""
    lanes: dict[Lane, Times]
    """`in_system` by lane."""


def figures(run: Run, *, batches: bool) -> Figures:
    """Return the figures of a run with at least one request; `batches`: whether its policy forms batches."""
    served = run.served
    total = max(one.ended for one in served) - min(one.request.arrived for one in served)
    lanes: dict[Lane, list[float]] = defaultdict(list)
    together: dict[float, list[int]] = defaultdict(list)  # who started at the same moment is one batch
    for one in served:
        lanes[one.request.lane].append(one.ended - one.request.arrived)
        together[one.started].append(one.request.prompt + one.request.output)
    padded = sum(max(lengths) * len(lengths) for lengths in together.values())
    return Figures(
        requests=len(served),
        total=total,
        requests_per_s=len(served) / total,
        output_tokens_per_s=sum(one.request.output for one in served) / total,
        service=_times(one.ended - one.started for one in served),
        waiting=_times(one.started - one.request.arrived for one in served),
        in_system=_times(one.ended - one.request.arrived for one in served),
        first_token=_times(one.first_token - one.request.arrived for one in served),
        utilisation=_mean_over(run.use, total, lambda use: use.busy),
        kv_used=_mean_over(run.use, total, lambda use: use.kv_used or 0.0) if run.budget.tokens else None,
        padding=1 - sum(map(sum, together.values())) / padded if batches else None,
        preemptions=run.preemptions,
        oversize=sum(one.oversize for one in served),
        lanes={lane: _times(lanes[lane]) for lane in Lane if lane in lanes},
    )


def _times(values: Iterable[float]) -> Times:
    ordered = sorted(values)
    p50, p95, p99 = (at_share(ordered, share) for share in (0.5, 0.95, 0.99))
    return Times(mean=fmean(ordered), p50=p50, p95=p95, p99=p99)


def at_share(ordered: Sequence[float], share: float) -> float:
    """Return the quantile `share` of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _mean_over(uses: Iterable[Use], total: float, value: Callable[[Use], float]) -> float:
    return sum(value(use) * (use.until - use.since) for use in uses) / total


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
