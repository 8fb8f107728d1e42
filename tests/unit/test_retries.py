"""When a failed part is tried again."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.failures import FailureCode
from pecia_schemas.settings import WorkerSettings
from pecia_workers.worker.attempts import retry_delay

SETTINGS = WorkerSettings(max_attempts=10_000, retry_delay=timedelta(seconds=2))


@pytest.mark.parametrize(("strikes", "longest_s"), [(0, 2), (1, 4), (3, 16), (9, 600), (5_000, 600)])
def test_the_wait_doubles_up_to_ten_minutes(strikes: int, longest_s: int) -> None:
    waits = [retry_delay(FailureCode.TIMEOUT, strikes, SETTINGS) for _ in range(50)]
    assert all(wait is not None and longest_s / 2 <= wait.total_seconds() <= longest_s for wait in waits)
    assert len(set(waits)) > 1


@given(
    code=st.sampled_from(FailureCode),
    strikes=st.integers(0, 10**6),
    attempts=st.integers(1, 10**6),
    first_ms=st.integers(1, 10**7),
)
def test_every_wait_is_within_its_bounds_and_every_part_gets_all_its_attempts(
    code: FailureCode, strikes: int, attempts: int, first_ms: int
) -> None:
    first = timedelta(milliseconds=first_ms)
    wait = retry_delay(code, strikes, WorkerSettings(max_attempts=attempts, retry_delay=first))
    assert (wait is not None) is (code.retryable and strikes + 1 < attempts)
    if wait is not None:
        doubled = min(first * 2 ** min(strikes, 20), timedelta(minutes=10))
        assert doubled / 2 <= wait <= doubled
