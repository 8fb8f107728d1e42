"""What metrics cost: microseconds for each part that is counted, milliseconds and bytes for each scrape.

python benchmarks/metrics_cost.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

from prometheus_client import generate_latest

from pecia_schemas import Failure, FailureCode, Lane, Page, Stage, TokenUsage, Verdict
from pecia_workers.engines.base import Generation
from pecia_workers.ledger import ClaimedPart, Done, Failed
from pecia_workers.metrics import recording
from pecia_workers.metrics.declared import REGISTRY

_PARTS = 20_000
_SCRAPES = 50


def _part(lane: Lane) -> ClaimedPart:
    return ClaimedPart(
        id=uuid4(),
        job_id=uuid4(),
        stage=Stage.READ,
        ordinal=0,
        attempt=1,
        strikes=0,
        deaths=0,
        lane=lane,
        start_s=None,
        end_s=None,
        kind="document.read",
        stored_task={},
        queued_s=1.0,
    )


def _timed(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def main() -> None:
    """Measure and print."""
    usage = TokenUsage(prompt=1500, cached=100, output=400)
    page = Page(number=1, text="", verdict=Verdict.OK, width=1, height=1, engine="vllm", usage=usage)
    answer = Generation(text="", verdict=Verdict.OK, usage=usage, first_token_s=0.2)
    part = _part(Lane.NORMAL)

    def count() -> None:
        recording.begun(part)
        recording.admitted(16, 0.9)
        recording.generated("vllm", answer, 2.0)
        recording.ended(part, Done(page), 2.5, committed=True)

    each = _timed(count, _PARTS)
    for lane in Lane:
        for code in FailureCode:
            recording.begun(_part(lane))
            recording.ended(_part(lane), Failed(Failure.of(code)), 1.0, committed=True)
    scrape = _timed(lambda: generate_latest(REGISTRY), _SCRAPES)
    print(f"counting one part    {each * 1e6:8.1f} us")
    print(f"one scrape           {scrape * 1e3:8.1f} ms, {len(generate_latest(REGISTRY)):,} bytes")


if __name__ == "__main__":
    main()
