"""Connections to Redis, and the fleet's lists there.

One URL in redis-py's form serves our own scripts and kombu alike. Every connection has timeouts, keepalive and health
checks, so that a half-open one is replaced within seconds; a connection ends as soon as its server refuses writes.

A part waits in a list; a claim removes it, and Postgres records which worker runs it. Upkeep finds parts lost in
between. Keys, beside the lists and wake-up keys of `pecia_schemas.messages`:

    pecia:claimed:<worker>   hash: number and reply of its last claim that was not empty; expires
    pecia:drainers:<stage>   sorted set: workers that drain for suspects of the stage, and since when
    pecia:dead               list: the last thousand invalid messages
    pecia:standing:<list>    hash: messages of each flow in that list; `#`: messages behind turns,
                             less their markers
    pecia:relayed            hash: for each list the flow that the relay served last
    pecia:credit             hash: for each list of a lower lane the tokens due to it
    pecia:served             hash: when each list of a lower lane, or quarantine, was last served; absent while empty
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from typing import Any, Self
from urllib.parse import quote, urlencode
from uuid import UUID

from redis import Redis
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url

from pecia_schemas import messages, redis_connections
from pecia_schemas.messages import PartMessage, quarantine_name, queue_name
from pecia_schemas.redis_connections import CONNECT_TIMEOUT_S, HEALTH_CHECK_S, SOCKET_TIMEOUT_S
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage

_DEFAULT_PORT = 6379
_parse: Callable[[str], dict[str, Any]] = parse_url


def connect(url: str) -> Redis:
    """Return a client that decodes responses; it connects when first used.

    It tries a command once more on a new connection, then raises `redis.RedisError`.
    """
    return redis_connections.connect(url, decode_responses=True)


def celery_settings(url: str) -> dict[str, Any]:
    """Return the Celery settings that make its broker this Redis.

    TLS certificates are verified, unless the URL's `ssl_*` options say otherwise; kombu's default is not to.
    """
    parts = _parse(url)
    user, password = (quote(parts.get(name, ""), safe="") for name in ("username", "password"))
    account, database = f"{user}:{password}@" if user or password else "", parts.get("db", 0)
    ssl = None
    if parts.get("connection_class") is UnixDomainSocketConnection:
        query = urlencode({"virtual_host": database})
        broker = f"redis+socket://{account}{quote(parts['path'])}?{query}"
    else:
        scheme, host = "redis", parts.get("host", "localhost")
        if parts.get("connection_class") is SSLConnection:
            scheme = "rediss"
            given = {name: value for name, value in parts.items() if name.startswith("ssl_")}
            ssl = {"ssl_cert_reqs": "required"} | given
        host = f"[{host}]" if ":" in host else host
        broker = f"{scheme}://{account}{host}:{parts.get('port', _DEFAULT_PORT)}/{database}"
    return {
        "broker_url": broker,
        "broker_use_ssl": ssl,
        "broker_transport_options": {
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_CHECK_S,
            "priority_steps": [0],  # a lane is a list of its own
        },
    }


QUEUES: dict[str, tuple[Stage, Lane]] = {
    queue_name(stage, lane): (stage, lane) for lane in Lane for stage in Stage
}
"""The list of every stage and lane, in the order in which they are served."""

QUARANTINES: dict[str, Stage] = {quarantine_name(stage): stage for stage in Stage}
"""The lists of parts on which a worker died."""

_LISTS = (*QUEUES, *QUARANTINES)
_MESSAGES_PER_CALL = 5_000
_KEYS_PER_CALL = 1_000

CREDIT = "pecia:credit"
DEAD = "pecia:dead"
RELAYED = "pecia:relayed"
SERVED = "pecia:served"

_FIELDS = 7
"""Fields of each part in a claim's reply."""
_NAMES = (
    f"local WAKEUP_PREFIX, WAKEUP_TTL_MS = '{messages.WAKEUP_PREFIX}', {messages.WAKEUP_TTL_MS}\n"
    f"local STANDING_PREFIX = '{messages.STANDING_PREFIX}'\n"
)

LOWER_LANES = tuple(lane for lane in Lane if lane is not Lane.URGENT)
"""Lanes before which others are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """Rules of a claim beside the order of lanes. The defaults are strict order and no maximum wait."""

    shares: Mapping[Lane, float] = field(default_factory=lambda: dict.fromkeys(LOWER_LANES, 0.0))
    """Share of the claimed tokens that a lower lane gets while it has a backlog."""
    patience: timedelta = timedelta()
    """Time without service after which a lower lane gets one part first. 0: never."""
    alone_from: int = 2
    """Deaths of workers from which on a part runs alone; with fewer it runs among other suspects."""
    drain: timedelta = timedelta(seconds=15)
    """How long suspects wait behind urgent parts, and for how long a draining worker's mark counts."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Return the rules that the settings name."""
        return cls(
            shares={lane: settings.lane_shares.get(lane, 0.0) for lane in LOWER_LANES},
            patience=settings.lane_patience,
            alone_from=max(1, settings.max_deaths - 1),
            drain=settings.lease,
        )

    def encode(self) -> str:
        """Return the rules as the claim's script reads them."""
        return json.dumps(
            {
                "lanes": dict.fromkeys(Lane, True),
                "shares": dict(self.shares),
                "patience": self.patience.total_seconds(),
                "alone_from": self.alone_from,
                "drain": self.drain.total_seconds(),
                "turn": messages.TURN,
            }
        )


def claimed_name(worker: str) -> str:
    """Return the key of what a worker's last claim took."""
    return f"pecia:claimed:{worker}"


def drainers_name(stage: Stage) -> str:
    """Return the key of the workers that drain for suspects of a stage."""
    return f"pecia:drainers:{stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The parts of one claim, in the order of service."""

    parts: tuple[PartMessage, ...] = ()
    """Those with deaths come from quarantine: only other suspects may run beside them. Anyone who can write to Redis
    can set a trace context, so it is used only as a link."""
    more: bool = False
    """Whether another call may bring more at once."""


class Lists:
    """A worker's operations on the lists. The client must decode responses."""

    def __init__(self, redis: Redis, rules: LaneRules | None = None) -> None:
        self._rules = (rules or LaneRules()).encode()
        self._claim = redis.register_script(_source("claim"))
        self._put_back = redis.register_script(_source("put_back"))

    def claim(
        self,
        queues: Sequence[str],
        *,
        worker: str,
        number: int,
        slots: int,
        tokens: int | None = None,
        idle: bool = False,
    ) -> Claim:
        """Remove parts from these lists in the order of lanes, by the rules, and return them.

        Stops at the first part that does not fit; a part that costs more than `tokens` is taken alone, if `idle`. A
        repeated `number` returns the parts of the first call and takes nothing, for a call whose reply was lost.
        """
        keys = [claimed_name(worker), DEAD, CREDIT, SERVED]
        for queue in queues:
            keys += queue, messages.wakeup_key(QUEUES[queue][0])
        for stage in dict.fromkeys(QUEUES[queue][0] for queue in queues):
            keys += quarantine_name(stage), drainers_name(stage)
        free = -1 if tokens is None else tokens
        taken, more = self._claim(keys, [worker, number, slots, free, int(idle), len(queues), self._rules])
        claimed = []
        for start in range(0, len(taken), _FIELDS):
            part, flow, queue, lane, cost, deaths, trace = taken[start : start + _FIELDS]
            claimed.append(
                PartMessage(
                    part=UUID(part),
                    flow=UUID(flow),
                    stage=QUARANTINES[queue] if deaths else QUEUES[queue][0],
                    lane=Lane(lane),
                    cost=cost,
                    deaths=deaths,
                    traceparent=trace or None,
                )
            )
        return Claim(parts=tuple(claimed), more=bool(more) or 0 < slots == len(claimed))

    def put_back(self, parts: Sequence[PartMessage]) -> None:
        """Put parts back to the heads of their lists, so that the first of them is served first."""
        self._put_back(
            args=[text for one in reversed(parts) for text in (one.queue, str(one.flow), one.encode())]
        )


def count_waiting(redis: Redis) -> Counter[str]:
    """Return how many messages wait in the list of each stage and lane, and in each quarantine; O(1) each."""
    with redis.pipeline(transaction=False) as pipe:
        for queue in _LISTS:
            pipe.llen(queue)
            pipe.hget(messages.standing_name(queue), messages.BEHIND_TURNS)
        replies = pipe.execute()
    found = zip(_LISTS, replies[::2], replies[1::2], strict=True)
    return Counter({queue: max(0, length + int(behind or 0)) for queue, length, behind in found})


def held_parts(redis: Redis) -> set[str]:
    """Return the ids of all parts that wait in a list.

    Reads in the order in which parts move, first behind turns, then lists, so that none is missed.
    """
    held: set[str] = set()
    rests = [messages.rest_name(*rest) for rest in _rests(redis)]
    for queue in (*rests, *_LISTS):
        # From the end that producers push to: a part that moves meanwhile is met twice rather than missed.
        start = 0
        waiting: Any
        while waiting := redis.lrange(queue, start, start + _MESSAGES_PER_CALL - 1):
            for message in waiting:
                with suppress(ValueError, KeyError, TypeError, RecursionError):  # the claim sorts it out
                    held.add(str(json.loads(message)["part"]))
            start += len(waiting)
    return held


def mend_turns(redis: Redis) -> int:
    """Restore the missing marker of every flow that has messages waiting; return how many were missing.

    Only manual changes in Redis can cause that, but nothing else would find these messages.
    """
    mended, mend = 0, redis.register_script(_source("mend"))
    for queue, flow in _rests(redis):
        mended += int(mend([queue, messages.rest_name(queue, flow)], [messages.marker(flow)]))
    return mended


def _rests(redis: Redis) -> Iterator[tuple[str, str]]:
    """Yield list and flow of messages behind a turn. Scans the keys, which are few, since parts have none."""
    found: Any = redis.scan_iter("*.*:*", count=_KEYS_PER_CALL, _type="list")
    for name in set(found):
        queue, _, flow = name.partition(":")
        if queue in QUEUES:
            yield queue, flow


def _source(name: str) -> str:
    scripts = files("pecia_workers.queue")
    common, own = (scripts.joinpath(f"{file}.lua").read_text(encoding="utf-8") for file in ("common", name))
    return _NAMES + common + own
