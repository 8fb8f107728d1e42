"""How many engines a load needs: Little's law, a queue of pages before the slots, and the time model of one engine.

In an engine with n pages each writes a token an iteration of `base + n d` seconds, and stands still while the others'
prompts are read, n of them in its time: W(n) = p (1 + n) + o (base + n d), with p the seconds to read a prompt and o
the tokens that are written. With Little's law n = rate x W(n) this is solved for n. Who finds all places taken waits,
by Erlang's formula, corrected for how much lengths differ (Allen and Cunneen). That leaves out how n varies, so the
simulator has the last word.

The time model is estimated from what a GPU can move and compute. Writing reads all weights once an iteration, and each
sequence's keys and values; reading a prompt is arithmetic, two operations for each weight and token. GPUs reach a part
of what their data sheets say; the shares below are taken from what is usual for large matrix products, so a plan is an
estimate until its speed was measured on the machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pvariance
from typing import Final

from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.profiles import EnginePlan, Profile, Speed, known_model
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix, Request, drawn, poisson
from pecia_workers.simulation.scenarios import Figures, simulated

_MOST_ENGINES: Final = 100_000
_CHECKED: Final = 1_000
"""Pages that the simulator is given."""
_TRIES: Final = 16
_SLOWER: Final = (1, 2, 4)
_MOST_SEQUENCES: Final = 256
"""vLLM's own default, and the most that is proposed."""
_OF_BANDWIDTH: Final = 0.7
_OF_ARITHMETIC: Final = 0.5
_ITERATION_S: Final = 0.002
"""What scheduling and launching take of an iteration."""
_BYTES: Final = {"none": 2.0, "fp8": 1.0}
_FOUR_BITS: Final = 0.6
"""Bytes of a weight where most have four bits, embeddings and the vision tower sixteen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What pages of a mix are like, in tokens."""

    prompt: float
    output: float
    """Mean."""
    spread: float
    """Coefficient of variation of the output: deviation by mean."""
    held: float
    """That a page's sequence holds on average while it writes; long ones are seen for longer."""


def load_of(requests: Sequence[Request]) -> Demand:
    """Return what a sample of pages is like."""
    outputs = [request.output for request in requests]
    mean, prompt = fmean(outputs), fmean(request.prompt for request in requests)
    return Demand(
        prompt=prompt,
        output=mean,
        spread=math.sqrt(pvariance(outputs)) / mean,
        held=prompt + fmean(output**2 for output in outputs) / (2 * mean),
    )


def speed_of(
    plan: EnginePlan, profile: Profile, load: Demand, measured: Speed | None = None
) -> IterationModel:
    """Return the time model of a planned engine under this load. `measured` goes before all estimates.

    Raises `EngineUnavailableError` if it does not start, or without `measured` if nothing is known of the GPU's speed
    or of the weights.
    """
    model, speed = known_model(plan.model), measured
    if model is None or not plan.starts:
        raise EngineUnavailableError(f"{plan.model} does not start there: see `pecia engine plan`.")
    if speed is None:
        if not profile.memory_gbs or not profile.tflops:
            raise EngineUnavailableError(
                f"Nothing is known of the speed of {profile.title}: name a GPU with --gpu."
            )
        if not plan.memory.weights:
            raise EngineUnavailableError(
                f"The weights of {plan.model} are not here: the speed follows from their size."
            )
        bandwidth = profile.memory_gbs * 1e9 * _OF_BANDWIDTH * plan.memory.gpus
        parameters_b = model.parameters_b or model.weights_gb / _BYTES.get(model.quantization, _FOUR_BITS)
        token_s = 2e9 * parameters_b / (profile.tflops * 1e12 * _OF_ARITHMETIC * plan.memory.gpus)
        speed = Speed(
            base_s=_ITERATION_S + plan.memory.weights / bandwidth,
            prefill_token_s=token_s,
            decode_sequence_s=token_s + plan.kv_bytes_per_token * load.held / bandwidth,
        )
    return IterationModel(
        max_num_seqs=plan.sizes.get("max_num_seqs") or max(1, plan.pages_in_cache),
        max_num_batched_tokens=plan.sizes.get("max_num_batched_tokens") or plan.context,
        kv_blocks=plan.kv_blocks,
        **speed.model_dump(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One engine under its share of the load."""

    places: int
    """Pages at a time, by slots and KV cache."""
    in_engine: float
    """Pages, on average."""
    service: float
    """Seconds in the engine."""
    waiting: float
    """Seconds before it."""

    @property
    def in_system(self) -> float:
        """Seconds from arrival to end, on average."""
        return self.service + self.waiting


def places_in(model: IterationModel, load: Demand) -> int:
    """Return how many pages admission lets run at a time: as many as fill the KV cache with what they hold."""
    return max(1, min(model.max_num_seqs, int(model.kv_blocks * BLOCK_TOKENS / load.held)))


def station(model: IterationModel, load: Demand, rate: float) -> Station | None:
    """Return what one engine does with `rate` pages a second; None if that is more than it can do."""
    prompt_s = load.prompt * model.prefill_token_s
    each = prompt_s + load.output * model.decode_sequence_s
    alone = prompt_s + load.output * model.base_s
    places = places_in(model, load)
    if rate * each >= 1:
        return None
    held = rate * alone / (1 - rate * each)
    if held >= places:
        return None
    service = alone + held * each
    waiting = erlang_c(places, held) * service / (places - held) * (1 + load.spread**2) / 2
    return Station(places=places, in_engine=held, service=service, waiting=waiting)


def most_rate(model: IterationModel, load: Demand) -> float:
    """Return how many pages a second one engine reads that is always full."""
    prompt_s, places = load.prompt * model.prefill_token_s, places_in(model, load)
    each = prompt_s + load.output * model.decode_sequence_s
    return places / (prompt_s + load.output * model.base_s + places * each)


def erlang_c(places: int, offered: float) -> float:
    """Return the probability that all places are taken, with `offered` pages in service on average, fewer than places.

    Source: Erlang's second formula, by the recursion of his first, which overflows nowhere.
    """
    blocked = 1.0
    for place in range(1, places + 1):
        blocked = offered * blocked / (place + offered * blocked)
    return places * blocked / (places - offered * (1 - blocked))


def engines_for(in_flight: float, places: int) -> int:
    """Return how many engines of so many places hold the pages in flight; an exact multiple needs no more."""
    return math.ceil(round(in_flight / places, 9))


def engines_needed(
    model: IterationModel, load: Demand, rate: float, latency: float
) -> tuple[int, Station] | None:
    """Return the fewest engines with which a page takes `latency` seconds on average, and one of them.

    None if a page alone takes longer, or no number that anyone has would do.
    """

    def good(engines: int) -> Station | None:
        found = station(model, load, rate / engines)
        return found if found and found.in_system <= latency else None

    most = 1
    while not good(most):
        most *= 2
        if most > _MOST_ENGINES:
            return None
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if good(middle) else (middle, most)
    best = good(most)
    return (most, best) if best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What fewer places or more time would cost, by the formulas alone."""

    sequences: int
    """Of one engine, `PECIA_MAX_NUM_SEQS`."""
    latency: float
    """Seconds that a page may take on average."""
    engines: int


def choices(model: IterationModel, load: Demand, rate: float, latency: float) -> tuple[Choice, ...]:
    """Return the engines needed with more sequences (doubled while the KV cache holds them) and with more time.

    In order of engines, time and sequences, the cheapest first; what no number of engines does is left out.
    """
    most = min(_MOST_SEQUENCES, places_in(replace(model, max_num_seqs=_MOST_SEQUENCES), load))
    sizes = [min(model.max_num_seqs << doublings, most) for doublings in range(most.bit_length())]
    found = [
        Choice(sequences=size, latency=factor * latency, engines=needed[0])
        for size in dict.fromkeys([model.max_num_seqs, *sizes])
        for factor in _SLOWER
        if (needed := engines_needed(replace(model, max_num_seqs=size), load, rate, factor * latency))
    ]
    return tuple(sorted(found, key=lambda one: (one.engines, one.latency, one.sequences)))


def cost_per_million(engines: int, rate: float, price_per_hour: float) -> float:
    """Return what a million pages cost with so many engines kept running, in the currency of the price."""
    return engines * price_per_hour / (rate * 3600) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """A fleet for a load. Times in seconds."""

    engines: int
    rate: float
    """Pages a second, of all."""
    latency: float
    """That was asked for, on average."""
    one: Station
    in_flight: float
    """Pages in the system, of all, by Little's law."""
    kv_bytes: int
    """Of the pages that run in one engine on average."""
    kv_budget: int
    """Bytes of one engine's KV cache."""


def plan_capacity(
    model: IterationModel, load: Demand, mix: Mix, *, rate: float, latency: float, kv_cache: int
) -> tuple[CapacityPlan, Figures] | None:
    """Return the smallest fleet that is fast enough on average, and one of its engines simulated; None without one.

    `kv_cache`: bytes of one engine's.

    The formulas say where to begin; engines are added, by a twentieth, until the simulated one is fast enough too.
    """
    found = engines_needed(model, load, rate, latency)
    engines = found[0] if found else 0
    for _ in range(_TRIES if found else 0):
        one = station(model, load, rate / engines)
        arriving = drawn(poisson(_CHECKED, rate / engines, 0), mix, 1)
        seen = simulated(PolicyName.CONTINUOUS, arriving, model).figures
        if one and seen.in_system.mean <= latency:
            plan = CapacityPlan(
                engines=engines,
                rate=rate,
                latency=latency,
                one=one,
                in_flight=rate * one.in_system,
                kv_bytes=round(kv_cache * load.held * one.in_engine / (model.kv_blocks * BLOCK_TOKENS)),
                kv_budget=kv_cache,
            )
            return plan, seen
        engines += max(1, engines // 20)
    return None
