"""When a failed part or a delivery is tried again, and when not any more."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.failures import FailureCode
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import DeliveryState
from pecia_workers.outgoing.guard import parse_retry_after
from pecia_workers.outgoing.webhooks import RETRIES, DeliveryPolicy, Reply, SendFailure
from pecia_workers.protocol.parts import retry_delay


@given(
    code=st.sampled_from(FailureCode),
    strikes=st.integers(0, 9) | st.integers(0, 10**6),
    attempts=st.integers(1, 10**6),
    first_ms=st.integers(1, 10**7),
)
def test_a_wait_doubles_up_to_ten_minutes_give_or_take_and_every_part_gets_all_its_attempts(
    code: FailureCode, strikes: int, attempts: int, first_ms: int
) -> None:
    first = timedelta(milliseconds=first_ms)
    settings = WorkerSettings(max_attempts=attempts, retry_delay=first)
    waits = {retry_delay(code, strikes, settings) for _ in range(20)}
    if not code.retryable or strikes + 1 >= attempts:
        assert waits == {None}
        return
    doubled = min(first * 2 ** min(strikes, 20), timedelta(minutes=10))
    assert all(wait is not None and doubled / 2 <= wait <= doubled for wait in waits)
    assert len(waits) > 1


POLICY = DeliveryPolicy(attempts=12)


def reply(status: int, retry_after: str | None = None) -> Reply:
    return Reply(status=status, retry_after=retry_after)


@given(attempt=st.integers(min_value=1, max_value=10_000))
def test_a_wait_grows_threefold_up_to_half_a_day_give_or_take_a_fifth(attempt: int) -> None:
    middle = min(5 * 3 ** min(attempt - 1, 20), 12 * 3600)
    waits = {RETRIES.wait_s(attempt) for _ in range(20)}
    assert 0.8 * middle <= min(waits) < max(waits) <= 1.2 * middle


PAST = "Mon, 01 Jan 2001 00:00:00 GMT"


@pytest.mark.parametrize(("asked", "granted"), [("1", 5), ("60", 60), (f"{10**9}", 12 * 3600), (PAST, 5)])
def test_a_receiver_gets_the_wait_it_asks_for_within_bounds(asked: str, granted: int) -> None:
    assert POLICY.answered(1, reply(503, asked)).retry_in == timedelta(seconds=granted)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "soon",
        "-1",
        "1.5",
        "²",
        "Mon, 99 Foo",
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        pytest.param("9" * 5_000, id="5,000 digits"),
    ],
)
def test_a_retry_after_without_sense_asks_for_nothing(header: str | None) -> None:
    assert parse_retry_after(header) is None


def test_a_retry_after_is_seconds_or_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    waits = parse_retry_after("120"), parse_retry_after(later)
    assert waits[0] == timedelta(minutes=2)
    assert waits[1] is not None
    assert timedelta(minutes=9) < waits[1] <= timedelta(minutes=10)


@pytest.mark.parametrize("wrong_by", [timedelta(hours=-1), timedelta(days=1)])
def test_a_date_to_come_back_at_is_read_by_the_clock_of_its_server(wrong_by: timedelta) -> None:
    there = datetime.now(UTC) + wrong_by
    later, now = (
        format_datetime(there + timedelta(minutes=10), usegmt=True),
        format_datetime(there, usegmt=True),
    )
    assert parse_retry_after(later, now) == timedelta(minutes=10)


@pytest.mark.parametrize("header", ["9" * 400, "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_a_retry_after_beyond_all_measure_is_bounded(header: str) -> None:
    assert POLICY.answered(1, reply(503, header)).retry_in.total_seconds() <= RETRIES.longest_s


@pytest.mark.parametrize(
    ("state", "statuses"),
    [
        (DeliveryState.DELIVERED, (200, 201, 202, 204, 299)),
        (DeliveryState.DEAD, (410,)),
        (DeliveryState.PENDING, (301, 307, 400, 401, 404, 429, 500, 503)),
    ],
)
def test_2xx_is_delivery_410_the_end_else_try_again(state: DeliveryState, statuses: tuple[int, ...]) -> None:
    for status in statuses:
        outcome = POLICY.answered(1, reply(status))
        assert (outcome.state, outcome.status) == (state, status)
        assert outcome.error == (None if state is DeliveryState.DELIVERED else f"http_{status}")
        assert (outcome.retry_in > timedelta(seconds=3)) is (state is DeliveryState.PENDING)


def test_silence_is_tried_again_an_answer_says_when_and_the_last_try_is_the_last() -> None:
    silent = POLICY.unanswered(2, SendFailure.TIMEOUT)
    assert (silent.state, silent.status, silent.error) == (DeliveryState.PENDING, None, "timeout")
    assert POLICY.answered(1, reply(503, "90")).retry_in == timedelta(seconds=90)
    assert POLICY.answered(11, reply(500)).state is DeliveryState.PENDING
    assert POLICY.answered(12, reply(500)).state is DeliveryState.DEAD
    assert POLICY.unanswered(12, SendFailure.BROKEN).state is DeliveryState.DEAD
