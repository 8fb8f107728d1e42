"""Quarantine: parts on which a worker died run apart from all others, and what kills its worker again runs alone."""

from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas.messages import PartMessage, publish
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import SERVED, LaneRules, claimed_name, drainers_name, held_parts
from tests.shared import queueing
from tests.shared.queueing import messages, put_back

pytestmark = pytest.mark.gate

LISTS = [f"read.{lane}" for lane in Lane]
MAX_DEATHS = 3


def send(redis: Redis, count: int = 1, **about: Any) -> list[UUID]:
    sent = messages(count, **about)
    publish(redis, sent)
    return [one.part for one in sent]


def claim(redis: Redis, worker: str, **more: Any) -> list[PartMessage]:
    return list(queueing.claim(redis, LISTS, worker=worker, **more).parts)


def ids(claimed: list[PartMessage]) -> list[UUID]:
    return [one.part for one in claimed]


def reap(redis: Redis, held: list[PartMessage]) -> None:
    """Do what judge and relay do when a worker died on all that it held."""
    publish(redis, [replace(one, deaths=one.deaths + 1) for one in held])


def send_suspects(redis: Redis, count: int = 1, *, lane: Lane = Lane.NORMAL) -> list[UUID]:
    return send(redis, count, lane=lane, deaths=1)


def test_the_parts_of_a_dead_worker_run_together_and_with_nothing_else(redis: Redis) -> None:
    suspects = send_suspects(redis, 3)
    others = send(redis, 2)
    claimed = claim(redis, "one")
    assert ids(claimed) == suspects
    assert all(one.deaths == 1 and one.lane is Lane.NORMAL for one in claimed)
    assert ids(claim(redis, "another")) == others


def test_workers_that_hold_nothing_share_the_suspects(redis: Redis) -> None:
    suspects = send_suspects(redis, 5)
    normal = send(redis)
    taken = [ids(claim(redis, worker, slots=2)) for worker in ("one", "two", "three", "four")]
    assert taken == [suspects[:2], suspects[2:4], suspects[4:], normal]


def test_a_worker_that_runs_dry_takes_urgent_parts_alone_until_it_holds_nothing(redis: Redis) -> None:
    suspects = send_suspects(redis, 2)
    normal = send(redis)
    urgent = send(redis, lane=Lane.URGENT)
    assert ids(claim(redis, "busy", idle=False)) == urgent
    assert ids(claim(redis, "busy", idle=False)) == []
    assert ids(claim(redis, "busy", idle=True)) == suspects
    assert ids(claim(redis, "another")) == normal


def test_a_worker_that_runs_dry_goes_on_once_others_have_the_suspects(redis: Redis) -> None:
    suspects = send_suspects(redis, 2)
    normal = send(redis)
    assert ids(claim(redis, "busy", idle=False)) == []
    assert ids(claim(redis, "free")) == suspects
    assert ids(claim(redis, "busy", idle=False)) == normal


@pytest.mark.parametrize(("suspects", "drainers"), [(1, 1), (2, 2), (20, 2)])
def test_few_workers_run_dry_and_the_others_go_on(redis: Redis, suspects: int, drainers: int) -> None:
    send_suspects(redis, suspects)
    parts = send(redis, 4)
    taken = [ids(claim(redis, f"busy{number}", idle=False, slots=1)) for number in range(4)]
    assert taken == [[]] * drainers + [[part] for part in parts[: 4 - drainers]]
    assert [claim(redis, f"busy{number}", idle=False) for number in range(drainers)] == [[]] * drainers


def test_another_runs_dry_in_place_of_one_that_is_silent(redis: Redis) -> None:
    suspects = send_suspects(redis)
    send(redis)
    assert claim(redis, "silent", idle=False) == []
    redis.zincrby(drainers_name(Stage.READ), -16, "silent")  # longer ago than a lease
    assert claim(redis, "another", idle=False) == []
    assert ids(claim(redis, "another")) == suspects


def test_what_lost_two_workers_runs_alone_and_the_killer_last(redis: Redis) -> None:
    suspects = send_suspects(redis, 3)
    shared = claim(redis, "second")
    assert ids(shared) == suspects
    reap(redis, shared)

    killer, *innocent = suspects
    alone = claim(redis, "third")
    assert ids(alone) == [killer]
    reap(redis, alone)

    taken = [ids(claim(redis, worker)) for worker in ("fourth", "fifth", "sixth")]
    assert taken == [[innocent[0]], [innocent[1]], [killer]]


@pytest.mark.parametrize(("deaths", "together"), [(1, 2), (2, 1)])
def test_a_part_is_as_suspect_as_postgres_says(redis: Redis, deaths: int, together: int) -> None:
    parts = send(redis, 2, deaths=deaths)
    claimed = claim(redis, "one")
    assert ids(claimed) == parts[:together]
    assert {one.deaths for one in claimed} == {deaths}


@pytest.mark.parametrize("deaths", [(1, 2), (2, 1)])
def test_what_lost_two_workers_runs_with_none_that_lost_one(redis: Redis, deaths: tuple[int, int]) -> None:
    parts = [part for number in deaths for part in send(redis, deaths=number)]
    assert [ids(claim(redis, worker)) for worker in ("one", "another")] == [parts[:1], parts[1:]]


def test_a_suspect_that_says_of_no_death_runs_alone(redis: Redis) -> None:
    parts = send(redis, 2)
    redis.rename("read.normal", "read.quarantine")
    assert ids(claim(redis, "one")) == parts[:1]


def test_where_one_death_may_be_the_last_but_one_every_suspect_runs_alone(redis: Redis) -> None:
    suspects = send_suspects(redis, 2)
    assert ids(claim(redis, "one", rules=LaneRules(alone_from=1))) == suspects[:1]


def test_a_suspect_that_goes_back_stays_what_it_is(redis: Redis) -> None:
    suspects = send_suspects(redis, 2)
    put_back(redis, claim(redis, "leaving"))
    claimed = claim(redis, "next")
    assert [(one.part, one.deaths) for one in claimed] == [(part, 1) for part in suspects]


def test_suspects_are_not_shut_out_by_urgent_parts_for_ever(redis: Redis) -> None:
    suspects = send_suspects(redis)
    first, second = send(redis, 2, lane=Lane.URGENT)
    assert ids(claim(redis, "one", slots=1)) == [first]
    redis.hincrbyfloat(SERVED, "read.quarantine", -16)  # longer ago than a lease
    assert ids(claim(redis, "one", idle=False)) == []
    assert ids(claim(redis, "one")) == suspects
    assert ids(claim(redis, "another")) == [second]


def test_urgent_suspects_wait_for_no_other_urgent_part(redis: Redis) -> None:
    suspects = send_suspects(redis, lane=Lane.URGENT)
    others = send(redis, lane=Lane.URGENT)
    assert ids(claim(redis, "one", idle=False)) == []
    assert ids(claim(redis, "one")) == suspects
    assert ids(claim(redis, "another")) == others


def test_a_suspect_comes_out_under_its_own_lane(redis: Redis) -> None:
    parts = send(redis, lane=Lane.BULK, deaths=1) + send(redis, lane=Lane.URGENT, deaths=1)
    claimed = claim(redis, "one")
    assert [(one.part, one.lane) for one in claimed] == [(parts[0], Lane.BULK), (parts[1], Lane.URGENT)]


def test_an_empty_quarantine_leaves_nothing_in_redis(redis: Redis) -> None:
    parts = send_suspects(redis, 2)
    assert held_parts(redis) == set(map(str, parts))
    claim(redis, "busy", idle=False)
    claim(redis, "one")
    claim(redis, "busy", idle=False)
    assert set(redis.keys()) <= {"pecia:bell:read", claimed_name("one")}


@given(count=st.integers(1, 40), poisons=st.integers(0, 2), workers=st.integers(1, 3), data=st.data())
def test_a_poison_costs_one_shared_worker_and_no_neighbour_fails_for_it(
    redis: Redis, count: int, poisons: int, workers: int, data: st.DataObject
) -> None:
    """Workers claim, finish, go on or die of a poison in any order, as the ledger counts deaths."""
    redis.flushall()
    parts = send(redis, count)
    poison = set(parts[:poisons])
    deaths: Counter[UUID] = Counter()
    over: set[UUID] = set()
    shared_deaths: Counter[UUID] = Counter()
    alone_deaths: Counter[UUID] = Counter()
    names = {number: f"worker{number}" for number in range(workers)}
    holds: dict[int, list[PartMessage]] = {number: [] for number in names}
    while len(over) < count:
        number = data.draw(st.sampled_from(sorted(names)))
        worker, held = names[number], holds[number]
        if not any(one.deaths for one in held):
            slots = data.draw(st.integers(1, 20))
            held += claim(redis, worker, idle=not held, slots=slots)
        assert len({one.deaths > 0 for one in held}) <= 1
        given_up = [one.part for one in held if deaths[one.part] >= MAX_DEATHS]
        killers = [one for one in held if one.part in poison and one.part not in given_up]
        if killers:
            for one in held:
                deaths[one.part] += 1
            shared_deaths.update(one.part for one in killers if not one.deaths)
            alone_deaths.update(one.part for one in killers if len(held) == 1)
            reap(redis, held)
            names[number] += "'"
        elif data.draw(st.booleans()):
            continue
        else:
            over.update(ids(held))
        holds[number] = []

    assert all(deaths[part] < MAX_DEATHS for part in set(parts) - poison)
    assert all(deaths[part] == MAX_DEATHS and shared_deaths[part] <= 1 for part in poison)
    assert all(alone_deaths[part] >= 1 for part in poison)
