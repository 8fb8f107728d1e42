"""Quarantine: parts on which a worker died run apart from all others, and what kills its worker again runs alone."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import PartMessage, publish
from pecia_workers.broker import Capacity, Claimed, LaneRules, LeaseKeeper, Leases, connect, reap
from pecia_workers.broker.leases import LEASES, SERVED, warden_name
from pecia_workers.upkeep.queues import count_waiting, held_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gate

LISTS = [f"read.{lane}" for lane in Lane]
MAX_DEATHS = 3


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client


def send(redis: Redis, count: int = 1, *, lane: Lane = Lane.NORMAL, deaths: int = 0) -> list[str]:
    parts = sorted(uuid4() for _ in range(count))
    publish(
        redis,
        [
            PartMessage(part=part, stage=Stage.READ, lane=lane, cost=1, flow=part, deaths=deaths)
            for part in parts
        ],
    )
    return [str(part) for part in parts]


def claim(
    redis: Redis, owner: str, *, idle: bool = True, slots: int = 100, rules: LaneRules | None = None
) -> list[Claimed]:
    leases = Leases(redis, rules)
    return list(leases.claim(LISTS, owner=owner, slots=slots, tokens=None, idle=idle).parts)


def ids(claimed: list[Claimed]) -> list[str]:
    return [one.part for one in claimed]


def kill(redis: Redis, owner: str, parts: list[str]) -> None:
    """Let the owner die with what it holds."""
    held = Leases(redis).owned(owner)
    assert held == set(parts)
    for part in parts:
        redis.zadd("pecia:leases", {part: 0})
    assert reap(redis, timedelta(minutes=1)) == len(parts)


def test_the_parts_of_a_dead_worker_run_together_and_with_nothing_else(redis: Redis) -> None:
    suspects = send(redis, 3)
    assert ids(claim(redis, "dead")) == suspects
    others = send(redis, 2)
    kill(redis, "dead", suspects)

    warden = claim(redis, "warden")

    assert ids(warden) == suspects
    assert all(one.suspect and one.delivery == 2 and one.lane is Lane.NORMAL for one in warden)
    assert ids(claim(redis, "another")) == others


def test_a_warden_takes_urgent_parts_alone_until_it_holds_nothing(redis: Redis) -> None:
    suspects = send(redis, 2)
    claim(redis, "dead")
    kill(redis, "dead", suspects)
    normal = send(redis)
    urgent = send(redis, lane=Lane.URGENT)

    assert ids(claim(redis, "warden", idle=False)) == urgent
    assert ids(claim(redis, "warden", idle=False)) == []
    assert ids(claim(redis, "warden", idle=True)) == suspects
    assert ids(claim(redis, "another")) == normal


def test_a_warden_that_has_others_to_finish_yields_to_a_worker_that_holds_nothing(redis: Redis) -> None:
    suspects = send(redis, 2)
    claim(redis, "dead")
    kill(redis, "dead", suspects)
    normal = send(redis)
    assert ids(claim(redis, "busy", idle=False)) == []

    assert ids(claim(redis, "free")) == suspects

    assert ids(claim(redis, "busy", idle=False)) == normal


def test_one_worker_at_a_time_is_the_warden_and_another_once_it_is_silent(redis: Redis) -> None:
    first, second = send(redis, 2)
    for owner, part in (("dead", first), ("dying", second)):
        assert ids(claim(redis, owner, slots=1)) == [part]
    kill(redis, "dead", [first])
    assert ids(claim(redis, "warden")) == [first]

    assert ids(claim(redis, "another")) == []
    kill(redis, "dying", [second])
    assert ids(claim(redis, "another")) == []
    assert 0 < redis.pttl(warden_name(Stage.READ)) <= 15_000
    redis.delete(warden_name(Stage.READ))  # as it does when its time is over

    assert ids(claim(redis, "another")) == [second]


def test_a_warden_that_renews_its_leases_stays_warden(redis: Redis) -> None:
    (suspect,) = send(redis)
    claim(redis, "dead")
    kill(redis, "dead", [suspect])
    claim(redis, "warden")
    redis.pexpire(warden_name(Stage.READ), 50)

    Leases(redis).renew("warden", [suspect])

    assert redis.pttl(warden_name(Stage.READ)) > 1000


def test_what_lost_two_workers_runs_alone_and_the_killer_last(redis: Redis) -> None:
    suspects = send(redis, 3)
    claim(redis, "first")
    kill(redis, "first", suspects)
    claim(redis, "second")
    kill(redis, "second", suspects)
    redis.delete(warden_name(Stage.READ))

    killer, *innocent = suspects
    assert ids(claim(redis, "third")) == [killer]
    kill(redis, "third", [killer])
    redis.delete(warden_name(Stage.READ))

    for expected in (*innocent, killer):
        assert ids(claim(redis, "fourth")) == [expected]
        Leases(redis).ack("fourth", [expected])


@pytest.mark.parametrize(("deaths", "together"), [(1, 2), (2, 1)])
def test_postgres_knows_of_deaths_that_redis_has_forgotten(redis: Redis, deaths: int, together: int) -> None:
    parts = send(redis, 2, deaths=deaths)
    normal = send(redis)

    claimed = claim(redis, "warden")

    assert ids(claimed) == parts[:together]
    assert {one.delivery for one in claimed} == {deaths + 1}
    assert ids(claim(redis, "another")) == normal


def test_a_warden_runs_dry_while_a_holder_is_silent_and_goes_on_when_it_renews(redis: Redis) -> None:
    wary = LaneRules(silence=timedelta(seconds=7.5))
    parts = send(redis)
    claim(redis, "silent")
    redis.zincrby(LEASES, -8, parts[0])
    normal, urgent = send(redis), send(redis, lane=Lane.URGENT)

    assert ids(claim(redis, "warden", idle=False, rules=wary)) == urgent
    assert claim(redis, "warden", idle=False, rules=wary) == []

    assert Leases(redis).renew("silent", parts) == []
    assert ids(claim(redis, "warden", idle=False, rules=wary)) == normal


def test_while_one_makes_ready_for_a_silent_holder_the_others_go_on(redis: Redis) -> None:
    wary = LaneRules(silence=timedelta(seconds=7.5))
    parts = send(redis)
    claim(redis, "silent")
    redis.zincrby(LEASES, -8, parts[0])
    normal = send(redis)

    assert claim(redis, "warden", idle=False, rules=wary) == []
    assert ids(claim(redis, "another", idle=False, rules=wary)) == normal

    kill(redis, "silent", parts)
    assert ids(claim(redis, "warden", rules=wary)) == parts


def test_where_one_death_may_be_the_last_but_one_every_suspect_runs_alone(redis: Redis) -> None:
    suspects = send(redis, 2)
    claim(redis, "dead")
    kill(redis, "dead", suspects)

    assert ids(claim(redis, "warden", rules=LaneRules(alone_from=1))) == suspects[:1]


def test_a_graceful_give_back_leads_where_the_part_came_from(redis: Redis) -> None:
    leases = Leases(redis)
    parts = send(redis, 2)
    claim(redis, "leaving")
    assert leases.give_back("leaving", parts) == 2
    assert count_waiting(redis)["read.normal"] == 2
    claim(redis, "dead")
    kill(redis, "dead", parts)
    claim(redis, "leaving")

    assert leases.give_back("leaving", parts) == 2

    redis.delete(warden_name(Stage.READ))
    assert [(one.part, one.delivery) for one in claim(redis, "next")] == [(part, 2) for part in parts]


class OpenGate:
    def capacity(self) -> Capacity:
        return Capacity(slots=100, tokens=None, idle=True)

    def dispatch(self) -> None: ...


def test_what_an_engine_died_on_goes_to_quarantine_and_the_rest_to_its_lane(redis: Redis) -> None:
    died_on, waited = send(redis, 2)
    keeper = LeaseKeeper(redis, lease=timedelta(seconds=15), hold_limit=timedelta(minutes=1))
    keeper.gate = OpenGate()
    keeper.claim(LISTS)

    keeper.suspect(died_on)
    for part in (died_on, waited):
        keeper.give_back(part)
    assert keeper.settle()

    assert ids(claim(redis, "warden")) == [died_on]
    assert ids(claim(redis, "another")) == [waited]


def test_suspects_are_not_shut_out_by_urgent_parts_for_ever(redis: Redis) -> None:
    (suspect,) = send(redis)
    claim(redis, "dead")
    kill(redis, "dead", [suspect])
    (first, second) = send(redis, 2, lane=Lane.URGENT)
    assert ids(claim(redis, "warden", slots=1)) == [first]

    redis.hincrbyfloat(SERVED, "read.quarantine", -16)  # longer ago than a lease

    assert ids(claim(redis, "warden", idle=False)) == []
    assert ids(claim(redis, "warden")) == [suspect]
    assert ids(claim(redis, "another")) == [second]


def test_urgent_suspects_wait_for_no_other_urgent_part(redis: Redis) -> None:
    (suspect,) = send(redis, lane=Lane.URGENT)
    claim(redis, "dead")
    kill(redis, "dead", [suspect])
    (other,) = send(redis, lane=Lane.URGENT)

    assert ids(claim(redis, "warden", idle=False)) == []
    assert ids(claim(redis, "warden")) == [suspect]
    assert ids(claim(redis, "another")) == [other]


def test_an_empty_quarantine_leaves_nothing_in_redis(redis: Redis) -> None:
    parts = send(redis, 2)
    claim(redis, "dead")
    kill(redis, "dead", parts)
    assert held_parts(redis) == set(parts)
    Leases(redis).ack("warden", ids(claim(redis, "warden")))

    claim(redis, "warden")

    assert set(redis.keys()) <= {"pecia:bell:read"}


@given(count=st.integers(1, 40), poisons=st.integers(0, 2), workers=st.integers(1, 3), data=st.data())
def test_a_poison_costs_one_shared_worker_and_no_neighbour_fails_for_it(
    redis: Redis, count: int, poisons: int, workers: int, data: st.DataObject
) -> None:
    """Workers claim, finish or die of a poison in any order, as the ledger counts deaths."""
    redis.flushall()
    parts = send(redis, count)
    poison = set(parts[:poisons])
    deaths: Counter[str] = Counter()
    over: set[str] = set()
    shared_deaths: Counter[str] = Counter()
    alone_deaths: Counter[str] = Counter()
    names = {number: f"worker{number}" for number in range(workers)}
    holds: dict[int, list[Claimed]] = {number: [] for number in names}
    while len(over) < count:
        number = data.draw(st.sampled_from(sorted(names)))
        owner, held = names[number], holds[number]
        if not any(one.suspect for one in held):
            slots = data.draw(st.integers(1, 20))
            held += claim(redis, owner, idle=not held, slots=slots)
        assert len({one.suspect for one in held}) <= 1
        given_up = [one.part for one in held if deaths[one.part] >= MAX_DEATHS]
        killers = [one for one in held if one.part in poison and one.part not in given_up]
        if killers:
            for one in held:
                deaths[one.part] += 1
            shared_deaths.update(one.part for one in killers if not one.suspect)
            alone_deaths.update(one.part for one in killers if len(held) == 1)
            kill(redis, owner, ids(held))
            redis.delete(warden_name(Stage.READ))
            names[number] += "'"
        else:
            Leases(redis).ack(owner, ids(held))
            over.update(ids(held))
        holds[number] = []

    assert all(deaths[part] < MAX_DEATHS for part in set(parts) - poison)
    assert all(deaths[part] == MAX_DEATHS and shared_deaths[part] <= 1 for part in poison)
    assert all(alone_deaths[part] >= 1 for part in poison)


def test_a_suspect_comes_out_under_its_own_lane(redis: Redis) -> None:
    parts = send(redis, lane=Lane.BULK, deaths=1) + send(redis, lane=Lane.URGENT, deaths=1)

    claimed = claim(redis, "warden")

    assert [(one.part, one.queue) for one in claimed] == [
        (parts[0], "read.bulk"),
        (parts[1], "read.urgent"),
    ]
    assert all(UUID(one.part) for one in claimed)
