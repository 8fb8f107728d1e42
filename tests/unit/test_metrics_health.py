"""A process is healthy while it moves, or has a good reason not to."""

from dataclasses import dataclass

import pytest

from pecia_workers.metrics import Pulse, WorkerHealth

HOLD_LIMIT_S = 315.0


@dataclass
class Surroundings:
    """A worker, its lists and the stores, as the test says."""

    now: float = 1000.0
    held: int = 0
    moved_at: float = 1000.0
    is_open: bool = True
    waiting: int | None = 0
    database: bool = True

    def health(self) -> WorkerHealth:
        return WorkerHealth(
            self,
            backlog=lambda: self.waiting,
            database_answers=lambda: self.database,
            hold_limit_s=HOLD_LIMIT_S,
            clock=lambda: self.now,
        )

    def pass_time(self, health: WorkerHealth, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 5
            health.look()


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


def test_a_worker_with_nothing_to_do_is_healthy_for_ever(around: Surroundings) -> None:
    health = around.health()
    around.pass_time(health, 100_000)
    assert health.live().ok
    assert health.ready().ok
    around.waiting = 1
    around.pass_time(health, 30)
    assert health.live().ok, "the long rest was counted"


def test_a_worker_that_claims_nothing_of_what_waits_is_not_until_it_moves(around: Surroundings) -> None:
    health = around.health()
    around.waiting = 3
    around.pass_time(health, 55)
    assert health.live().ok
    around.pass_time(health, 15)
    assert not health.live().ok
    assert not health.ready().ok
    around.moved_at = around.now
    around.pass_time(health, 5)
    assert health.live().ok


def test_one_long_part_has_all_the_time_that_parts_have(around: Surroundings) -> None:
    health = around.health()
    around.held = 1
    around.pass_time(health, HOLD_LIMIT_S)
    assert health.live().ok
    around.pass_time(health, 70)
    assert not health.live().ok


def test_a_busy_worker_behind_which_others_wait_is_healthy(around: Surroundings) -> None:
    health = around.health()
    around.held, around.waiting = 8, 1000
    for _ in range(100):
        around.pass_time(health, 60)
        around.moved_at = around.now
        assert health.live().ok


@pytest.mark.parametrize("away", ["redis", "postgres"])
def test_a_worker_is_not_blamed_for_a_store_that_is_away(around: Surroundings, away: str) -> None:
    health = around.health()
    around.held = 2
    around.waiting, around.database = (None, True) if away == "redis" else (5, False)
    around.pass_time(health, 10_000)
    assert health.live().ok
    assert health.ready().ok is (away == "postgres")

    around.waiting, around.database = 5, True
    around.pass_time(health, 60)
    assert health.live().ok, "it was given no time to go on"


def test_a_worker_that_starts_for_an_hour_is_healthy_and_not_ready(around: Surroundings) -> None:
    health = around.health()
    around.is_open, around.waiting = False, 1000
    around.pass_time(health, 3600)
    assert health.live().ok
    assert not health.ready().ok

    around.is_open = True
    around.pass_time(health, 30)
    assert health.live().ok, "the time before the start was counted"
    assert health.ready().ok


def test_a_service_is_healthy_while_it_comes_round() -> None:
    now = 0.0
    pulse = Pulse(lambda: now)
    assert pulse.live().ok
    assert not pulse.ready().ok

    pulse.beat()
    assert pulse.ready().ok
    now = 301.0
    assert not pulse.live().ok
    assert not pulse.ready().ok
    pulse.beat()
    assert pulse.live().ok
