"""What is counted of parts and requests, and that nothing of a document comes with it."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Timings, TokenUsage, Verdict
from pecia_schemas.states import Stage
from pecia_workers.batching.batcher import EngineWatch, generated
from pecia_workers.observability import metrics_page
from pecia_workers.observability.metrics import REGISTRY
from pecia_workers.observability.tracing import ended, processing
from pecia_workers.protocol.base import Generation, Load
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, NewPart, Outcome, Spent
from tests.shared.parts import claimed_part
from tests.shared.samples import page

WORD = "Quillfeather"


def part() -> ClaimedPart:
    return claimed_part(stored_task={"note": WORD}, client=WORD, metadata={"ward": WORD}, queued_s=7.0)


class Counts:
    """What a metric has grown by since the test began."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                self._before[sample.name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - self._before.get((name, frozenset(labels.items())), 0.0)

    def of_engine(self, *names: str) -> list[float]:
        return [self(f"pecia_{name}", engine="test") for name in names]


@pytest.fixture
def grown() -> Counts:
    return Counts()


def test_an_attempt_is_counted_with_its_wait(grown: Counts) -> None:
    with processing(part(), claimed_at=0):
        pass
    assert grown("pecia_attempts_total", stage="read", lane="urgent") == 1
    assert grown("pecia_queue_seconds_sum", stage="read", lane="urgent") == 7


_FAILURE = Failure.of(FailureCode.ENGINE_ERROR)


@pytest.mark.parametrize(
    ("outcome", "committed", "name"),
    [
        (Done(page(text=WORD)), True, "done"),
        (Cut(Stage.READ, [NewPart(ordinal=0, cost=1)]), True, "done"),
        (Failed(_FAILURE), True, "failed"),
        (Failed(_FAILURE, timedelta(seconds=2)), True, "retried"),
        (Done(page(text=WORD)), False, "lost"),
    ],
    ids=["done", "cut", "failed", "retried", "lost"],
)
def test_an_attempt_ends_in_one_way(outcome: Outcome, committed: bool, name: str, grown: Counts) -> None:
    ended(part(), outcome, 3.0, committed=committed)
    ends = {
        end: grown("pecia_parts_total", stage="read", outcome=end)
        for end in ("done", "failed", "retried", "lost")
    }
    assert ends == {**dict.fromkeys(ends, 0), name: 1}
    assert grown("pecia_part_seconds_sum", stage="read") == 3


def test_a_failure_counts_by_its_code_and_all_its_tokens_as_wasted(grown: Counts) -> None:
    spent = Spent(engine="test", usage=TokenUsage(prompt=100, output=20), timings=Timings())
    ended(part(), Failed(_FAILURE, None, spent), 1, committed=True)
    assert grown("pecia_failures_total", stage="read", code="engine_error") == 1
    assert grown("pecia_wasted_tokens_total", engine="test") == 120


def test_a_committed_page_counts_by_its_verdict_with_the_tokens_thrown_away(grown: Counts) -> None:
    done = Done(page(text=WORD, usage=TokenUsage(prompt=100, output=20, wasted=60)))
    ended(part(), done, 1, committed=False)
    assert grown("pecia_pages_read_total", engine="test", verdict="ok") == 0
    assert grown("pecia_wasted_tokens_total", engine="test") == 0
    ended(part(), done, 1, committed=True)
    assert grown("pecia_pages_read_total", engine="test", verdict="ok") == 1
    assert grown("pecia_wasted_tokens_total", engine="test") == 60


def test_a_request_counts_its_tokens_and_not_its_wait_as_the_engines(grown: Counts) -> None:
    usage = TokenUsage(prompt=100, cached=40, output=20)
    answer = Generation(text=WORD, verdict=Verdict.OK, usage=usage, first_token_s=0.5, waited_s=2.0)
    generated("test", answer, 5.0)
    tokens = ("prompt_tokens_total", "cached_tokens_total", "output_tokens_total")
    assert grown.of_engine(*tokens) == [100, 40, 20]
    assert grown.of_engine("engine_request_seconds_sum", "first_token_seconds_sum") == [3, 0.5]
    assert grown("pecia_admission_wait_seconds_sum") == 2
    generated("mute", Generation(text="", verdict=Verdict.OK), 1.0)
    assert grown("pecia_first_token_seconds_count", engine="mute") == 0


LOOK = Load(running=4, waiting=2, preparing=5, kv_used=0.5, preemptions=7, drifted=3, drafted=50, accepted=36)


def test_sums_since_an_engines_start_are_added_once(grown: Counts) -> None:
    seen = EngineWatch("test")
    for _ in range(3):
        seen.saw(LOOK, 0.75)
    sums = ("preemptions", "mispriced_requests", "draft_tokens", "accepted_draft_tokens")
    assert grown.of_engine(*(f"engine_{name}_total" for name in sums)) == [7, 3, 50, 36]
    now = ("running_requests", "preparing_requests", "kv_cache_used_ratio", "budget_share_ratio")
    values = [REGISTRY.get_sample_value(f"pecia_engine_{name}", {"engine": "test"}) for name in now]
    assert values == [4, 5, 0.5, 0.75]


def test_nothing_of_a_part_is_in_the_metrics() -> None:
    claimed = part()
    with processing(claimed, claimed_at=0):
        ended(claimed, Done(page(text=WORD)), 1, committed=True)
    generated("test", Generation(text=WORD, verdict=Verdict.OK), 1)
    told = generate_latest(REGISTRY).decode()
    assert WORD not in told
    assert str(claimed.id) not in told
    assert str(claimed.job_id) not in told


class Driver:
    """NVML as `pynvml` binds it, for a machine without a card: two GPUs, one of which tells nothing of its use."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802
        return int(handle[-1])

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802, ARG002
        return SimpleNamespace(total=80 * 2**30, used=60 * 2**30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if handle.endswith("1"):
            raise self.NVMLError
        return SimpleNamespace(gpu=87)


def test_a_gpu_tells_its_use_and_memory_as_far_as_its_driver_does() -> None:
    samples = {
        (sample.name, sample.labels["gpu"]): sample.value
        for family in metrics_page.GpuCollector(Driver(), ["GPU-0", "GPU-1"]).collect()
        for sample in family.samples
    }
    assert samples == {
        ("pecia_gpu_utilization_ratio", "0"): 0.87,
        ("pecia_gpu_memory_used_bytes", "0"): 60 * 2**30,
        ("pecia_gpu_memory_used_bytes", "1"): 60 * 2**30,
        ("pecia_gpu_memory_bytes", "0"): 80 * 2**30,
        ("pecia_gpu_memory_bytes", "1"): 80 * 2**30,
    }
