"""Whether there is room in a lane, by what was counted and what was handed over since."""

import pytest

from pecia.bulk import Backlog, RoomWait
from pecia.errors import QueueFullError
from pecia.records import LaneLoad
from pecia_schemas.states import Lane


def counted(waiting: int, *, ended: int = 0, limit: int = 100) -> Backlog:
    backlog = Backlog({Lane.BULK: limit})
    backlog.saw(Lane.BULK, LaneLoad(waiting=waiting, ended=ended), took=0)
    return backlog


def test_there_is_room_up_to_the_limit() -> None:
    assert counted(99).refusal(Lane.BULK) is None
    assert isinstance(counted(100).refusal(Lane.BULK), QueueFullError)


def test_what_the_client_hands_over_itself_counts_before_the_next_look() -> None:
    backlog = counted(90)
    backlog.add(Lane.BULK, 9)
    assert backlog.refusal(Lane.BULK) is None
    backlog.add(Lane.BULK, 1)
    assert backlog.refusal(Lane.BULK) is not None


def test_a_lane_without_a_limit_is_never_full_and_one_that_was_not_counted_yet_has_to_be() -> None:
    assert Backlog({Lane.BULK: 100}).is_stale(Lane.BULK)
    backlog = counted(100)
    assert not backlog.is_stale(Lane.BULK)
    backlog.saw(Lane.URGENT, LaneLoad(waiting=10**6, ended=0), took=0)
    assert backlog.limit(Lane.URGENT) is None
    assert backlog.refusal(Lane.URGENT) is None


@pytest.mark.parametrize(("ended", "seconds"), [(0, 10), (60, 10), (120, 5), (1, 60), (6_000, 1)], ids=str)
def test_a_client_may_come_again_after_a_tenth_of_the_limit(ended: int, seconds: float) -> None:
    refusal = counted(100, ended=ended).refusal(Lane.BULK)
    assert refusal is not None
    assert (refusal.lane, refusal.retry_after, refusal.retryable) == (Lane.BULK, seconds, True)


def test_without_block_there_is_no_wait_whatever_the_timeout() -> None:
    refusal = QueueFullError(Lane.BULK, 100, retry_after=1)
    with pytest.raises(QueueFullError):
        RoomWait(block=False, timeout=60).pause(refusal)
    with pytest.raises(QueueFullError):
        RoomWait(block=True, timeout=0).pause(refusal)
    assert 0 < RoomWait(block=True, timeout=0.5).pause(refusal) <= 0.5
    assert RoomWait(block=True, timeout=None).pause(refusal) > 0
