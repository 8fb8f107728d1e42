"""What a claim takes is delivered once, whatever breaks off; what goes back comes again first."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
from pecia_workers.queue.lists import celery_settings, claimed_name, connect, count_waiting
from pecia_workers.queue.transport import Capacity, Keeper
from tests.shared import queueing
from tests.shared.fixture_types import Make
from tests.shared.limits import eventually
from tests.shared.queueing import messages, put_back

QUEUE = "read.normal"


def send(redis: Redis, *parts: str) -> None:
    ids = map(UUID, parts)
    publish(
        redis, [PartMessage(part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=1, flow=part) for part in ids]
    )


def send_new(redis: Redis, number: int = 1) -> list[str]:
    sent = messages(number)
    publish(redis, sent)
    return [str(one.part) for one in sent]


def claim(redis: Redis, worker: str, *, slots: int = 100) -> list[PartMessage]:
    return list(queueing.claim(redis, [QUEUE], worker=worker, slots=slots).parts)


def ids(parts: Iterable[PartMessage]) -> list[str]:
    return [str(claimed.part) for claimed in parts]


def waiting(redis: Redis) -> int:
    return count_waiting(redis)[QUEUE]


class OpenGate:
    def capacity(self) -> Capacity:
        return Capacity(slots=3, tokens=None, idle=True)

    def dispatch(self) -> None: ...


def open_keeper(redis: Redis) -> Keeper:
    keeper = Keeper(redis)
    keeper.gate = OpenGate()
    return keeper


def claimed(keeper: Keeper) -> list[str]:
    return ids(keeper.claim([QUEUE]).parts)


@contextmanager
def breaking_off(keeper: Keeper, *, after: bool = True) -> Iterator[None]:
    """Break the connection off, before Redis hears of a call or after it has done what it was told."""

    def breaking(script: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> None:
            if after:
                script(*arguments, **more)
            raise RedisConnectionError

        return call

    lists = keeper._lists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "_claim", breaking(lists._claim))
        patch.setattr(lists, "_put_back", breaking(lists._put_back))
        yield


def lose_reply(keeper: Keeper) -> None:
    with breaking_off(keeper), pytest.raises(RedisConnectionError):
        keeper.claim([QUEUE])


def test_redis_forgets_what_is_claimed_and_remembers_the_last_reply_for_a_while(redis: Redis) -> None:
    send_new(redis, 3)
    claim(redis, "one")
    assert set(redis.keys()) - {wakeup_key(Stage.READ)} == {claimed_name("one")}
    assert 0 < redis.ttl(claimed_name("one")) <= 600


def test_what_goes_back_comes_again_first_and_in_order(redis: Redis) -> None:
    parts = send_new(redis, 3)
    leaving = claim(redis, "leaving")
    behind = send_new(redis)
    redis.delete(wakeup_key(Stage.READ))

    put_back(redis, leaving)

    assert redis.llen(wakeup_key(Stage.READ)) > 0
    assert ids(claim(redis, "next")) == [*parts, *behind]


def test_what_goes_back_finds_its_list_though_it_is_full(redis: Redis) -> None:
    publish(redis, messages(3), window=3)
    some = claim(redis, "one", slots=1)
    publish(redis, messages(1), window=3)
    put_back(redis, some)
    assert waiting(redis) == 4


def test_a_repetition_that_waits_beside_its_message_is_taken_with_it(redis: Redis) -> None:
    (part,) = send_new(redis)
    send(redis, part)
    assert (ids(claim(redis, "one")), waiting(redis)) == ([part], 0)


def test_a_part_that_a_worker_has_is_delivered_for_postgres_to_refuse(redis: Redis) -> None:
    (part,) = send_new(redis)
    claim(redis, "one")
    for worker in ("one", "two"):
        send(redis, part)
        assert ids(claim(redis, worker)) == [part]


def test_a_keeper_without_a_gate_delivers_nothing(redis: Redis) -> None:
    """Not even what a lost reply brought: the worker stops, and all of it goes back."""
    keeper = open_keeper(redis)
    unseen, behind = send_new(redis, 3), send_new(redis)
    lose_reply(keeper)
    keeper.gate = None

    assert claimed(keeper) == []
    assert keeper.stop()

    assert ids(claim(redis, "next")) == [*unseen, *behind]


class Worker:
    """A worker that claims and ends parts, and what is still to be delivered to it."""

    def __init__(self, redis: Redis) -> None:
        self.keeper = open_keeper(redis)
        self.owed: set[str] = set()
        self.lost_put_backs = False
        self._redis = redis
        self._held: list[str] = []

    def step(self, what: str, which: int) -> None:
        match what:
            case "send":
                self.owed.update(send_new(self._redis, which))
            case "claim":
                self.claim()
            case "tend":
                self.keeper.tend()
            case _ if self._held:
                part = self._held.pop(which % len(self._held))
                if what == "finish":
                    self.keeper.finish(part)
                else:
                    self.owed.add(part)
                    self.keeper.requeue(part)

    def claim(self) -> bool:
        claim = self.keeper.claim([QUEUE])
        new = ids(claim.parts)
        if not self.lost_put_backs:
            assert len({*new, *self._held}) == len(new) + len(self._held), "a part was delivered that is held"
        self.owed.difference_update(new)
        self._held = [*dict.fromkeys([*self._held, *new])]
        return bool(new) or claim.more

    def finish_all(self) -> None:
        going = True
        while going:
            while self._held:
                self.keeper.finish(self._held.pop())
            going = self.claim()


STEPS = st.tuples(
    st.sampled_from(["send", "claim", "claim", "finish", "finish", "give back", "tend"]),
    st.integers(0, 5),
    st.sampled_from([None, None, False, True]),
)

ONE_HELD: Final = (("send", 1, None), ("claim", 0, None))


@given(steps=st.lists(STEPS, min_size=20, max_size=40))
@example(steps=[*ONE_HELD, ("send", 2, None), ("claim", 0, True), ("finish", 0, None), ("claim", 0, None)])
@example(steps=[*ONE_HELD, *ONE_HELD, ("finish", 0, None), ("claim", 0, True), ("finish", 0, None)])
@example(steps=[*ONE_HELD, ("send", 3, None), ("claim", 0, True), ("claim", 0, True), ("claim", 0, None)])
@example(steps=[*ONE_HELD, ("give back", 0, None), ("claim", 0, True), ("claim", 0, None)])
def test_whatever_breaks_off_every_message_is_delivered_and_but_for_lost_put_backs_once(
    redis: Redis, steps: list[tuple[str, int, bool | None]]
) -> None:
    redis.flushall()
    worker = Worker(redis)
    for what, which, breaks in steps:
        if breaks is None:
            worker.step(what, which)
        else:
            worker.lost_put_backs |= breaks and bool(worker.keeper._unfinished)
            with breaking_off(worker.keeper, after=breaks), suppress(RedisConnectionError):
                worker.step(what, which)

    worker.finish_all()

    assert worker.owed == set()
    assert (worker.keeper.held, waiting(redis)) == (0, 0)


def test_what_goes_back_does_once_redis_is_there_again(redis_server: Make) -> None:
    server = redis_server()
    with connect(server.url) as redis:
        keeper = open_keeper(redis)
        (part,) = send_new(redis)
        claimed(keeper)
        server.kill()

        keeper.requeue(part)
        keeper.tend()
        assert not keeper.stop()
        redis_server(replaces=server)

        eventually(keeper.stop)
        assert ids(claim(redis, "next")) == [part]


def test_a_full_redis_lets_workers_claim_and_put_back(redis_server: Make) -> None:
    with connect(redis_server().url) as redis:
        keeper = open_keeper(redis)
        parts = send_new(redis, 3)
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            redis.set("any", 1)

        assert claimed(keeper) == parts
        keeper.finish(parts[0])
        keeper.requeue(parts[1])
        assert keeper.stop()

        assert waiting(redis) == 1


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
