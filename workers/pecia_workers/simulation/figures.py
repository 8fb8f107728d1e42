"""What a simulated run comes to, in one row."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pecia_schemas.states import Lane
from pecia_workers.simulation.simulator import Run, Served, Use


def static_throughput(times: Sequence[float]) -> float:
    """Return requests per second of a batch that ends with its longest: B / max t."""
    return len(times) / max(times)


def static_utilisation(times: Sequence[float]) -> float:
    """Return the share of a batch's slots that is used: sum t / (B max t)."""
    return sum(times) / (len(times) * max(times))


def continuous_throughput(slots: int, mean_time: float) -> float:
    """Return requests per second where a slot is refilled at once: B / mean t."""
    return slots / mean_time


def gain_over_static(times: Sequence[float]) -> float:
    """Return how many times the throughput of static batches a refill at once has: max t / mean t."""
    return max(times) * len(times) / sum(times)


def mean_batch_wait(size: int, rate: float, window: float) -> float:
    """Return how long a request waits for its batch on average: min((B - 1) / (2 lambda), window)."""
    return min((size - 1) / (2 * rate), window)


def padding_waste(lengths: Sequence[int]) -> float:
    """Return the share of a padded batch that is padding: 1 - sum len / (max len x n)."""
    return 1 - sum(lengths) / (max(lengths) * len(lengths))


def in_flight(rate: float, time: float) -> float:
    """Return how many requests are in the system, by Little's law: L = lambda W."""
    return rate * time


def engines_for(in_flight_requests: float, per_engine: int) -> int:
    """Return how many engines hold so many requests; an exact multiple needs no more."""
    return math.ceil(round(in_flight_requests / per_engine, 9))


def prefill_chunks(prompt: int, chunk: int) -> int:
    """Return in how many chunks a prompt is read: K = ceil(N / C)."""
    return -(-prompt // chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, over all requests."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run in numbers; times in seconds."""

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
    """Share of the slots that computed for a request that was not over."""
    kv_used: float | None
    """Share of the KV cache's blocks in use, on average; None without one."""
    padding: float | None
    """Share that would be padding if who started together were padded to one length; None without batches."""
    preemptions: int
    oversize: int
    """Requests larger than the whole budget, which ran alone."""
    lanes: dict[Lane, Times]
    """`in_system` by lane."""


def figures(run: Run, *, batches: bool) -> Figures:
    """Return what a run comes to; `batches`: its policy forms some. There must be one request at least."""
    served = run.served
    total = max(one.ended for one in served) - min(one.request.arrived for one in served)
    lanes: dict[Lane, list[Served]] = defaultdict(list)
    for one in served:
        lanes[one.request.lane].append(one)
    return Figures(
        requests=len(served),
        total=total,
        requests_per_s=len(served) / total,
        output_tokens_per_s=sum(one.request.output for one in served) / total,
        service=_times(one.ended - one.started for one in served),
        waiting=_times(one.started - one.request.arrived for one in served),
        in_system=_in_system(served),
        first_token=_times(one.first_token - one.request.arrived for one in served),
        utilisation=_mean_over(run.use, total, lambda use: use.busy),
        kv_used=_mean_over(run.use, total, lambda use: use.kv_used or 0.0) if run.budget.tokens else None,
        padding=_padding(served) if batches else None,
        preemptions=run.preemptions,
        oversize=sum(one.oversize for one in served),
        lanes={lane: _in_system(lanes[lane]) for lane in Lane if lane in lanes},
    )


def _in_system(served: Iterable[Served]) -> Times:
    return _times(one.ended - one.request.arrived for one in served)


def _times(values: Iterable[float]) -> Times:
    ordered = sorted(values)
    return Times(
        mean=fmean(ordered),
        p50=at_share(ordered, 0.5),
        p95=at_share(ordered, 0.95),
        p99=at_share(ordered, 0.99),
    )


def at_share(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of them, sorted, lies below."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _mean_over(uses: Iterable[Use], total: float, value: Callable[[Use], float]) -> float:
    return sum(value(use) * (use.until - use.since) for use in uses) / total


def _padding(served: Iterable[Served]) -> float:
    """Return the padding of all batches together: who started at the same moment is one."""
    batches: dict[float, list[int]] = defaultdict(list)
    for one in served:
        batches[one.started].append(one.request.prompt + one.request.output)
    padded = {started: max(lengths) * len(lengths) for started, lengths in batches.items()}
    wasted = sum(padding_waste(lengths) * padded[started] for started, lengths in batches.items())
    return wasted / sum(padded.values())
