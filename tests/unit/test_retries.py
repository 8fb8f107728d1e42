"""When a failed part is tried again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pecia_schemas import FailureCode
from pecia_schemas.settings import WorkerSettings
from pecia_workers.retries import retry_delay

SETTINGS = WorkerSettings(max_attempts=10_000, retry_delay=timedelta(seconds=2))


@pytest.mark.parametrize(("strikes", "longest_s"), [(0, 2), (1, 4), (3, 16), (9, 600), (5_000, 600)])
def test_the_wait_doubles_up_to_ten_minutes_however_many_attempts_there_are(
    strikes: int, longest_s: int
) -> None:
    waits = [retry_delay(FailureCode.TIMEOUT, strikes, SETTINGS) for _ in range(50)]
    assert all(wait is not None and longest_s / 2 <= wait.total_seconds() <= longest_s for wait in waits)
    assert len(set(waits)) > 1


@pytest.mark.parametrize(
    ("code", "strikes"),
    [(FailureCode.DAMAGED, 0), (FailureCode.TIMEOUT, 9_999)],
    ids=["in vain", "too often"],
)
def test_some_parts_are_not_tried_again(code: FailureCode, strikes: int) -> None:
    assert retry_delay(code, strikes, SETTINGS) is None
