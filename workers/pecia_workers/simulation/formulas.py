"""What queueing and batching come to, by the formulas of the product's requirements. Times in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
