"""Celery's Redis transport for parts: claimed under a budget, and never held by a socket alone.

The keeper holds the parts that this process has taken; a channel asks it for more. Only channels that consume the
fleet's lists differ from the stock transport; remote control, events and replies are stock.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from queue import Empty
from typing import Any, Final, Protocol
from uuid import uuid4
from weakref import WeakSet, WeakValueDictionary

from kombu import transport as kombu_transports
from kombu.transport import redis as stock
from kombu.transport import virtual
from redis import Redis, RedisError, ResponseError

from pecia_schemas import tracing
from pecia_schemas.messages import PartMessage, queue_name, wakeup_key
from pecia_schemas.redis_connections import writing
from pecia_schemas.states import Stage
from pecia_workers.observability import metrics
from pecia_workers.queue.lists import QUEUES, Claim, LaneRules, Lists

_log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
"""Most parts of one claim, so that the script never blocks Redis for long."""

_AWAY_AFTER_S = 4.0
"""Seconds without an answer after which Redis counts as unavailable; Celery's event loop asks every second."""
_NOTHING = "pecia:nothing"
"""A key that expires immediately."""

_keepers: WeakValueDictionary[str, Keeper] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What may be claimed now."""

    slots: int
    tokens: int | None
    """None: only the slots count."""
    idle: bool
    """Whether nothing is in flight, so that a part larger than the budget may run alone."""

    @property
    def is_open(self) -> bool:
        """Whether anything at all fits."""
        return self.slots > 0 and (self.tokens is None or self.tokens > 0)


_CLOSED: Final = Capacity(slots=0, tokens=0, idle=False)


class Gate(Protocol):
    """Consumer of the claimed parts, which says how many fit."""

    def capacity(self) -> Capacity:
        """Return what fits now."""
        ...

    def dispatch(self) -> None:
        """Start the delivered parts; called after all parts of one claim."""


class Keeper:
    """The parts that one process has taken from Redis. Claims and puts back on the thread of Celery's event loop.

    It outlives connections and channels: parts in flight stay taken while Celery reconnects. Each claim has a
    number; a claim whose reply was lost is repeated until a reply arrives.
    """

    def __init__(self, redis: Redis, *, rules: LaneRules | None = None) -> None:
        self.key = uuid4().hex
        _keepers[self.key] = self
        self.worker = self.key
        """The worker's name in Redis and Postgres; the pool sets it before the gate."""
        self.gate: Gate | None = None
        self._redis = redis
        self._lists = Lists(redis, rules)
        self._held: dict[str, PartMessage] = {}
        self._unfinished: list[PartMessage] = []
        """Parts that go back to their lists."""
        self.moved_at = time.monotonic()
        """When a part was last claimed, finished or requeued, by the monotonic clock."""
        self.reached_at = time.monotonic()
        """When Redis last took a write and the last claim had not failed, by the monotonic clock."""
        self._can_claim = True
        self._number = 1

    @property
    def held(self) -> int:
        """Number of parts that this process has taken and neither finished nor requeued."""
        return len(self._held)

    @property
    def is_open(self) -> bool:
        """Whether there is a gate: the worker has started and is not stopping."""
        return self.gate is not None

    @property
    def capacity(self) -> Capacity:
        """What the gate admits now; nothing while there is none."""
        return self.gate.capacity() if self.gate else _CLOSED

    @property
    def redis_serves(self) -> bool:
        """Whether claims reach Redis and Redis accepts messages. Callable on any thread.

        Judged by this connection alone: others may reach another server, and an answering Redis is of no use while
        Celery does not consume.
        """
        return time.monotonic() - self.reached_at < _AWAY_AFTER_S

    def claim(self, queues: Sequence[str]) -> Claim:
        """Put back requeued parts, then claim what the gate admits. Raises `redis.RedisError`."""
        self.put_back()
        capacity = self.capacity
        return self._call(queues, capacity) if capacity.is_open else Claim()

    def _call(self, queues: Sequence[str], capacity: Capacity) -> Claim:
        self._can_claim = False
        claim = self._lists.claim(
            queues,
            worker=self.worker,
            number=self._number,
            slots=min(capacity.slots, CLAIM_LIMIT),
            tokens=capacity.tokens,
            idle=capacity.idle,
        )
        self._can_claim = True
        self._number += 1
        if claim.parts:
            self._took(claim.parts, capacity.tokens)
        return claim

    def _took(self, parts: Sequence[PartMessage], free: int | None) -> None:
        cost = sum(claimed.cost for claimed in parts)
        self._held.update((str(claimed.part), claimed) for claimed in parts)
        self._moved()
        # A claim serves many jobs: a trace of its own, with a link to each of theirs.
        if links := dict.fromkeys(claimed.traceparent for claimed in parts if claimed.traceparent):
            about = tracing.messaging("receive", len(parts)) | {"pecia.cost": cost}
            tracing.apart("receive", about, kind=tracing.SpanKind.CLIENT, links=links).end()
        metrics.CLAIMS.inc()
        metrics.CLAIM_SIZE.observe(len(parts))
        if free:
            metrics.CLAIM_FILL.observe(cost / free)
        for claimed in parts:
            metrics.CLAIMED_PARTS.labels(claimed.stage, claimed.lane).inc()

    def finish(self, part: str) -> None:
        """Drop a finished part; Redis no longer has it."""
        if self._held.pop(part, None):
            self._moved()

    def requeue(self, part: str) -> None:
        """Put a part back into its list, with the next claim or within a second."""
        if claimed := self._held.pop(part, None):
            self._unfinished.append(claimed)
            self._moved()

    def _moved(self) -> None:
        self.moved_at = time.monotonic()
        metrics.PARTS_HELD.set(len(self._held))

    def put_back(self) -> None:
        """Put back requeued parts, perhaps twice if a reply is lost: Postgres refuses the second claim.

        Raises `redis.RedisError`.
        """
        if self._unfinished:
            self._lists.put_back(self._unfinished)
            self._unfinished.clear()

    def tend(self) -> None:
        """Put back requeued parts, and check that Redis accepts writes.

        Celery's event loop calls it every second.
        """
        with suppress(RedisError):
            self.put_back()
            if self._can_claim:
                self._redis.set(_NOTHING, "", px=1)
                self.reached_at = time.monotonic()

    def stop(self) -> bool:
        """Put back requeued parts, and those of a claim whose reply was lost; return whether Redis has them.

        If Redis is away, upkeep finds it later.
        """
        try:
            if not self._can_claim:
                self._unfinished += self._call((), _CLOSED).parts
            self.put_back()
        except RedisError as error:
            _log.warning("could not put parts back: %s", type(error).__name__)
            return False
        return True


_claiming: WeakSet[Channel] = WeakSet()
"""Channels of parts; they stay in this set after their last list is cancelled, since delivered parts end later."""

NO_ARGUMENTS: Final[tuple[list[Any], dict[str, Any], dict[str, Any]]] = (
    [],
    {},
    dict.fromkeys(("callbacks", "errbacks", "chain", "chord")),
)
"""Decoded body of every message, so that Celery decodes none. No text in Redis can name this object."""
_BODY = json.dumps(NO_ARGUMENTS)


def task_name(stage: Stage) -> str:
    """Return the name under which Celery and Flower show the parts of a stage."""
    return f"pecia.{stage}"


def envelope(claimed: PartMessage) -> dict[str, Any]:
    """Return a message of Celery's protocol 2; its id and delivery tag are the part's id.

    Built here, so that nothing in Redis can name a task or its arguments.
    """
    part, redelivered = str(claimed.part), claimed.deaths > 0
    return {
        "body": _BODY,
        "decoded": NO_ARGUMENTS,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            **({"traceparent": claimed.traceparent} if claimed.traceparent else {}),
            "lang": "py",
            "task": task_name(claimed.stage),
            "id": part,
            "root_id": part,
            "parent_id": None,
            "group": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": "()",
            "kwargsrepr": "{}",
            "ignore_result": True,
            "redelivered": redelivered,
            "x-lane": claimed.lane,
            "x-cost": claimed.cost,
            "x-deliveries": claimed.deaths + 1,
        },
        "properties": {
            "correlation_id": part,
            "delivery_tag": part,
            "priority": 0,
            "delivery_info": {
                "exchange": "",
                "routing_key": queue_name(claimed.stage, claimed.lane),
                "redelivered": redelivered,
            },
        },
    }


def install() -> None:
    """Make this the transport of `redis://`, `rediss://` and `redis+socket://` in this process."""
    here = f"{__name__}:Transport"
    kombu_transports.TRANSPORT_ALIASES.update(redis=here, rediss=here)
    kombu_transports._transport_cache.clear()  # noqa: SLF001  an alias already resolved would stay stock


def kick() -> None:
    """Claim now, without waiting for a wake-up, since capacity was freed. Only on the thread of Celery's event loop."""
    for channel in list(_claiming):
        if not channel.closed:
            channel.claim()


class QoS(stock.QoS):
    """Passes acknowledgements to the keeper: Redis needs none."""

    channel: Channel
    restore_at_shutdown = False

    def can_consume(self) -> bool:
        """Return whether the gate is open; channels without parts have none, or remote control would starve."""
        return not self.channel.lists or self.channel.keeper.capacity.is_open

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: the claim took the part."""

    def ack(self, delivery_tag: str) -> None:
        """Mark the part finished; messages of remote control are ignored, whatever their tag."""
        if self.channel in _claiming:
            self.channel.keeper.finish(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue the part, or mark it finished."""
        if not requeue:
            self.ack(delivery_tag)
        elif self.channel in _claiming:
            self.channel.keeper.requeue(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Do nothing: parts in flight stay taken, whatever happens to a connection."""

    def restore_visible(self, *_args: Any, **_kwargs: Any) -> None:
        """Run `Keeper.tend`; Celery's event loop calls this every second."""
        if self.channel.lists:
            self.channel.keeper.tend()


class Message(virtual.Message):
    """A message that `envelope` made is decoded already."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        """Take over the decoded message."""
        super().__init__(payload, channel, **kwargs)  # type: ignore[no-untyped-call]
        if payload.get("decoded") is NO_ARGUMENTS:
            self._decoded_cache = NO_ARGUMENTS


class Channel(stock.Channel):
    """A stock channel until it consumes one of the fleet's lists."""

    QoS = QoS
    Message = Message
    do_restore = False
    keeper_key = ""
    """Name of the keeper; a string because Celery shows transport options to operators."""
    from_transport_options = (*stock.Channel.from_transport_options, "keeper_key")  # type: ignore[assignment]
    lists: tuple[str, ...] = ()
    """The fleet's lists that it consumes, in the order of service."""
    _awaits_wakeup = False

    @cached_property
    def keeper(self) -> Keeper:
        """The keeper of this process."""
        return _keepers[self.keeper_key]

    def _queue_bind(self, exchange: Any, routing_key: Any, pattern: Any, queue: Any) -> None:
        """Record the binding, unless Redis is full: a worker must be able to start then, and needs no record."""
        with suppress(ResponseError):
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[no-untyped-call]

    def _size(self, queue: str) -> Any:
        """Count waiting messages outside a transaction: a full Redis 6 accepts no command inside one."""
        with self.conn_or_acquire() as client:
            return client.llen(queue)

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()  # type: ignore[no-untyped-call]
        active = set(self.active_queues)
        self.lists = tuple(queue for queue in QUEUES if queue in active)
        if self.lists:
            _claiming.add(self)

    def claim(self) -> None:
        """Claim and deliver until the lists are empty or the gate closes."""
        while self.lists:
            claim = self.keeper.claim(self.lists)
            delivered = 0
            try:
                for claimed in claim.parts:
                    queue = queue_name(claimed.stage, claimed.lane)
                    self.connection._deliver(envelope(claimed), queue)  # noqa: SLF001  how kombu channels deliver
                    delivered += 1
            finally:
                for claimed in claim.parts[delivered:]:
                    self.keeper.requeue(str(claimed.part))
                if gate := self.keeper.gate:
                    gate.dispatch()
            if not claim.more:
                return

    def _brpop_start(self, timeout: float | None = None) -> None:
        if not self.lists:
            super()._brpop_start(timeout)  # type: ignore[no-untyped-call]
            return
        self.claim()
        if self.qos.can_consume():
            self._awaits_wakeup = True  # for good: the answer may come after the last list was cancelled
            wakeups = dict.fromkeys(wakeup_key(QUEUES[queue][0]) for queue in self.lists)
            self._in_poll = self.client.connection
            self._brpop_sent_at = time.monotonic()  # type: ignore[assignment]
            self.client.connection.send_command("BRPOP", *wakeups, self.brpop_timeout)

    def _receive_one(self, c: Any) -> Any:
        """Receive a broadcast; ignore malformed messages, as anyone who can write to Redis can send them."""
        try:
            return super()._receive_one(c)  # type: ignore[no-untyped-call]
        except (OSError, RedisError, Empty):
            raise
        except Exception as error:  # noqa: BLE001  stock kombu lets it end the worker
            _log.warning("ignored a malformed broadcast: %s", type(error).__name__)
            raise Empty from None

    def _brpop_read(self, **options: Any) -> Any:
        if not self._awaits_wakeup:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        try:
            self.client.parse_response(self.client.connection, "BRPOP", **options)
        except ResponseError:  # something that is no list may stand in the place of a wake-up key
            wakeups = {wakeup_key(QUEUES[queue][0]) for queue in self.lists}
            strange = [wakeup for wakeup in wakeups if self.client.type(wakeup) not in (b"list", b"none")]
            if not strange or not self.client.delete(*strange):
                raise
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = False
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]
        raise Empty

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[no-untyped-call]
        parameters["connection_class"] = writing(parameters["connection_class"])
        return parameters


class Poller(stock.MultiChannelPoller):
    """Checks subscriptions without an event loop too: Flower's thread has none."""

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Wait for a message, and ping idle subscriptions."""
        self.maybe_check_subclient_health()  # type: ignore[no-untyped-call]
        return super().get(callback, timeout)  # type: ignore[no-untyped-call]


class Transport(stock.Transport):
    """The transport that `install` puts in place of the stock one."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.cycle = Poller()  # type: ignore[no-untyped-call, assignment]
