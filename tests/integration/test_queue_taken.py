"""What a worker took is its own until it lets go of it; a lost reply loses nothing and does nothing twice."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.connection import Connection
from kombu.pidbox import Mailbox
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from pecia_schemas.messages import PartMessage, publish, wakeup_key
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue import transport
from pecia_workers.queue.lists import (
    Ended,
    celery_settings,
    connect,
    count_taken,
    count_waiting,
    hand_back,
    taken_name,
    takers,
)
from pecia_workers.queue.transport import Capacity, Keeper
from tests.shared import queueing
from tests.shared.fixture_types import Eventually, Make
from tests.shared.limits import WAIT_S
from tests.shared.queueing import messages

QUEUE = "read.normal"
HOLD_LIMIT = timedelta(minutes=1)


def send(redis: Redis, *parts: str) -> None:
    ids = map(UUID, parts)
    publish(
        redis, [PartMessage(part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=1, flow=part) for part in ids]
    )


def send_new(redis: Redis, number: int = 1) -> list[str]:
    sent = messages(number)
    publish(redis, sent)
    return [str(one.part) for one in sent]


def claim(redis: Redis, worker: str, *, slots: int = 100, **ended: tuple[str, ...]) -> list[str]:
    """Let go of these, then take parts; `slots=0` takes none."""
    claim = queueing.claim(redis, [QUEUE], worker=worker, slots=slots, ended=Ended(**ended))
    return [one.part for one in claim.parts]


def waiting(redis: Redis) -> int:
    return count_waiting(redis)[QUEUE]


class OpenGate:
    def __init__(self) -> None:
        self.reported: list[str] = []

    def capacity(self) -> Capacity:
        return Capacity(slots=3, tokens=None, idle=True)

    def dispatch(self) -> None: ...

    def overdue(self, part: str) -> None:
        self.reported.append(part)


def open_keeper(redis: Redis, **more: Any) -> Keeper:
    keeper = Keeper(redis, **{"hold_limit": HOLD_LIMIT, **more})
    keeper.gate = OpenGate()
    return keeper


def claimed(keeper: Keeper) -> list[str]:
    return [one.part for one in keeper.claim([QUEUE]).parts]


@contextmanager
def breaking_off(keeper: Keeper, *, after: bool = True) -> Iterator[None]:
    """Break the connection off, before Redis hears of a call or after it has done what it was told."""
    script = keeper._lists._claim

    def call(*told: Any) -> None:
        if after:
            script(*told)
        raise RedisConnectionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper._lists, "_claim", call)
        yield


def lose_reply(keeper: Keeper) -> None:
    with breaking_off(keeper), pytest.raises(RedisConnectionError):
        keeper.claim([QUEUE])


def test_what_is_given_back_comes_again_first_and_in_order(redis: Redis) -> None:
    parts = tuple(send_new(redis, 3))
    claim(redis, "leaving")
    behind = send_new(redis)
    claim(redis, "leaving", slots=0, unfinished=parts)
    assert claim(redis, "next") == [*parts, *behind]


def test_what_a_dead_worker_took_is_handed_back_in_the_order_of_its_calls(redis: Redis) -> None:
    parts = send_new(redis, 5)
    assert claim(redis, "dead", slots=3) + claim(redis, "dead", slots=2) == parts
    behind = send_new(redis)
    redis.delete(wakeup_key(Stage.READ))
    assert takers(redis) == {"dead"}

    assert hand_back(redis, "dead") == 5

    assert redis.llen(wakeup_key(Stage.READ)) > 0
    assert (takers(redis), redis.exists(taken_name("dead"))) == (set(), 0)
    assert claim(redis, "next") == [*parts, *behind]
    assert hand_back(redis, "dead") == 0


def test_a_part_that_is_queued_anew_waits_until_its_worker_lets_go_of_it(redis: Redis) -> None:
    """Cancel and retry in one breath: the message of the retry comes while the former run unwinds."""
    (part,) = send_new(redis)
    claim(redis, "one")
    send(redis, part)
    send(redis, part)
    assert claim(redis, "one") == []
    assert waiting(redis) == 0
    redis.delete(wakeup_key(Stage.READ))

    claim(redis, "one", slots=0, finished=(part,))

    assert redis.llen(wakeup_key(Stage.READ)) == 1
    assert claim(redis, "two") == [part]
    assert count_taken(redis) == {QUEUE: 1}


def test_a_part_that_came_meanwhile_and_goes_on_itself_is_queued_once(redis: Redis) -> None:
    (part,) = send_new(redis)
    claim(redis, "one")
    send(redis, part)
    claim(redis, "one")
    claim(redis, "one", slots=0, unfinished=(part,))
    assert {name: length for name, length in count_waiting(redis).items() if length} == {QUEUE: 1}
    assert redis.hkeys(taken_name("one")) == ["#"]


def test_a_worker_that_was_taken_for_dead_ends_nothing_of_the_next(redis: Redis) -> None:
    (part,) = send_new(redis)
    claim(redis, "paused")
    hand_back(redis, "paused")
    assert claim(redis, "next") == [part]
    for how in ("finished", "unfinished"):
        claim(redis, "paused", slots=0, **{how: (part,)})
    assert (count_taken(redis), sum(count_waiting(redis).values())) == ({QUEUE: 1}, 0)


def test_a_part_that_another_worker_has_is_delivered_for_postgres_to_refuse(redis: Redis) -> None:
    (part,) = send_new(redis)
    claim(redis, "one")
    send(redis, part)
    assert claim(redis, "two") == [part]


def test_a_keeper_without_a_gate_delivers_nothing(redis: Redis) -> None:
    """Not even what a settlement brought: the worker stops, and all of it goes back."""
    keeper = open_keeper(redis)
    (first,) = send_new(redis)
    claimed(keeper)
    unseen, behind = send_new(redis, 3), send_new(redis)
    lose_reply(keeper)
    keeper.gate = None

    keeper.finish(first)
    assert keeper.settle()
    assert claimed(keeper) == []
    keeper.stop()

    assert claim(redis, "next") == [*unseen, *behind]


class Worker:
    """A worker that claims and ends parts, and what is still to be delivered to it."""

    def __init__(self, redis: Redis) -> None:
        self.keeper = open_keeper(redis)
        self.owed: set[str] = set()
        self._redis = redis
        self._held: list[str] = []

    def step(self, what: str, which: int) -> None:
        match what:
            case "send":
                self.owed.update(send_new(self._redis, which))
            case "claim":
                self.claim()
            case "settle":
                self.keeper._settle_after = 0.0
                self.keeper.settle()
            case _ if self._held:
                self._step_with(what, which % len(self._held))

    def _step_with(self, what: str, which: int) -> None:
        match what:
            case "send again":
                send(self._redis, self._held[which])
                self.owed.add(self._held[which])
            case "give back":
                self.owed.add(self._held[which])
                self.keeper.requeue(self._held.pop(which))
            case "finish":
                self.keeper.finish(self._held.pop(which))

    def claim(self) -> bool:
        claim = self.keeper.claim([QUEUE])
        new = [one.part for one in claim.parts]
        assert len({*new, *self._held}) == len(new) + len(self._held), "a part was delivered that is held"
        self.owed.difference_update(new)
        self._held += new
        return bool(new) or claim.more

    def finish_all(self) -> None:
        going = True
        while going:
            while self._held:
                self.keeper.finish(self._held.pop())
            self.keeper._settle_after = 0.0
            assert self.keeper.settle()  # what was queued anew meanwhile stands in its list then
            going = self.claim()


STEPS = st.tuples(
    st.sampled_from(["send", "send again", "claim", "claim", "finish", "finish", "give back", "settle"]),
    st.integers(0, 5),
    st.sampled_from([None, None, False, True]),
)

ONE_HELD: Final = (("send", 1, None), ("claim", 0, None))


@given(steps=st.lists(STEPS, min_size=20, max_size=40))
@example(steps=[*ONE_HELD, ("send again", 0, None), ("claim", 0, False)])
@example(steps=[*ONE_HELD, ("send again", 0, None), ("send", 3, None), ("claim", 0, True), ("send", 1, None)])
@example(steps=[*ONE_HELD, ("send", 2, None), ("claim", 0, True), ("finish", 0, None), ("settle", 0, None)])
@example(steps=[*ONE_HELD, *ONE_HELD, ("finish", 0, None), ("claim", 0, True), ("finish", 0, None)])
@example(
    steps=[*ONE_HELD, ("send again", 0, None), ("finish", 0, None), ("claim", 0, True), ("claim", 0, None)]
)
def test_whatever_breaks_off_every_message_is_delivered_and_none_while_its_part_is_held(
    redis: Redis, steps: list[tuple[str, int, bool | None]]
) -> None:
    redis.flushall()
    worker = Worker(redis)
    for what, which, breaks in steps:
        if breaks is None:
            worker.step(what, which)
        else:
            with breaking_off(worker.keeper, after=breaks), suppress(RedisConnectionError):
                worker.step(what, which)

    worker.finish_all()

    assert worker.owed == set()
    assert (worker.keeper.held, hand_back(redis, worker.keeper.worker)) == (0, 0)


def test_a_part_that_is_held_for_too_long_is_reported_once(redis: Redis) -> None:
    """Time in which the clock stands still is none, nor is time in which the part waited for others."""
    now, waited, gate = [0.0], [5.0], OpenGate()
    keeper = open_keeper(
        redis, hold_limit=timedelta(0), clock=lambda: now[0], waited_s=lambda _part: waited[0]
    )
    keeper.gate = gate
    finished, part = send_new(redis, 2)
    claimed(keeper)

    def reported_at(time: float) -> list[str]:
        now[0] = time
        with breaking_off(keeper):
            keeper.finish(finished)
            keeper.tend()
        return gate.reported

    assert reported_at(5.0) == []
    assert reported_at(5.1) == [part]
    assert reported_at(9.0) == [part]


def test_a_settlement_that_failed_is_tried_again_after_a_while(redis: Redis) -> None:
    keeper = open_keeper(redis)
    (part,) = send_new(redis)
    claimed(keeper)
    keeper.finish(part)
    failed_at = time.monotonic()
    with breaking_off(keeper, after=False):
        assert not keeper.settle()
    assert keeper._settle_after > failed_at

    keeper._settle_after += WAIT_S
    assert not keeper.settle()
    assert count_taken(redis) == {QUEUE: 1}

    keeper._settle_after = failed_at
    assert keeper.settle()
    assert count_taken(redis) == {}


def test_redis_is_told_once_it_is_back(redis_server: Make, eventually: Eventually) -> None:
    server = redis_server()
    with connect(server.url) as redis:
        keeper = open_keeper(redis)
        (part,) = send_new(redis)
        claimed(keeper)
        redis.bgsave()
        eventually(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"])
        server.kill()

        keeper.finish(part)
        assert not keeper.settle()
        redis_server(replaces=server)
        assert count_taken(redis) == {QUEUE: 1}

        eventually(keeper.settle)
        assert (keeper.held, count_taken(redis)) == (0, {})


def test_a_full_redis_lets_workers_claim_and_settle(redis_server: Make) -> None:
    """What they let go of is what makes room."""
    with connect(redis_server().url) as redis:
        keeper = open_keeper(redis)
        parts = send_new(redis, 3)
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            redis.set("any", 1)

        assert claimed(keeper) == parts
        keeper.finish(parts[0])
        assert keeper.settle()
        keeper.stop()

        assert (waiting(redis), takers(redis)) == (2, set())


def test_a_worker_starts_to_listen_on_a_full_redis(redis_server: Make) -> None:
    """One that did not could not make room either."""
    transport.install()
    url = redis_server().url
    with connect(url) as redis, Connection(celery_settings(url)["broker_url"]) as broker:  # type: ignore[no-untyped-call]
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)

        channel, mailbox = broker.channel(), Mailbox("celery", queue_expires=10.0)  # type: ignore[no-untyped-call]
        mailbox.Node("worker").listen(channel=channel)  # type: ignore[no-untyped-call]

        redis.config_set("maxmemory", 0)
