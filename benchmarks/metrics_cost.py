"""What metrics cost: microseconds for each part that is counted, milliseconds and bytes for each scrape."""

import time
from collections.abc import Callable
from uuid import uuid4

from prometheus_client import generate_latest

from harness.report import Report, Table, parser
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Page, TokenUsage, Verdict
from pecia_schemas.states import Lane, Stage
from pecia_workers.batching.batcher import generated
from pecia_workers.observability.metrics import BATCH_KV_USED, BATCH_SIZE, REGISTRY
from pecia_workers.observability.tracing import ended, processing
from pecia_workers.protocol.base import Generation
from pecia_workers.protocol.parts import ClaimedPart, Done, Failed


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
    made = parser(__doc__)
    made.add_argument("--parts", type=int, default=20_000)
    made.add_argument("--scrapes", type=int, default=50)
    asked = made.parse_args()
    usage = TokenUsage(prompt=1500, cached=100, output=400)
    page = Page(number=1, verdict=Verdict.OK, width=1, height=1, engine="vllm", usage=usage)
    answer = Generation(text="", verdict=Verdict.OK, usage=usage, first_token_s=0.2)
    part = _part(Lane.NORMAL)

    def count() -> None:
        with processing(part, claimed_at=0):
            BATCH_SIZE.observe(16)
            BATCH_KV_USED.observe(0.9)
            generated("vllm", answer, 2.0)
            ended(part, Done(page), 2.5, committed=True)

    each = _timed(count, asked.parts)
    for lane in Lane:
        for code in FailureCode:
            with processing(part := _part(lane), claimed_at=0):
                ended(part, Failed(Failure.of(code)), 1.0, committed=True)
    scrape, size = _timed(lambda: generate_latest(REGISTRY), asked.scrapes), len(generate_latest(REGISTRY))
    rows = [
        ["counting one part", f"{each * 1e6:,.1f} µs", ""],
        ["one scrape", f"{scrape * 1e3:,.1f} ms", f"{size:,} bytes"],
    ]
    figures = {"part_us": each * 1e6, "scrape_ms": scrape * 1e3, "scrape_bytes": size}
    Report(tables=[Table(headings=("", "takes", "is"), rows=rows)], figures=figures).tell(as_json=asked.json)


if __name__ == "__main__":
    main()
