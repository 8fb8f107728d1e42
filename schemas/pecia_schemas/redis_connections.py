"""Redis connections of workers and clients, and replies of Redis that mean an outage.

After a failover the former master still answers: it refuses writes, and its reads and subscriptions bring nothing
new. An error reply that shows this is an outage like a lost connection. It ends its connection, and all other
connections of this process to that address on their next use; new ones reach the new master.

A connection that only reads or subscribes gets no such reply. So each PING is sent with a probe: a write that changes
nothing. redis-py pings when it connects, and every five seconds of use.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis import Redis
from redis.asyncio import ConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.asyncio.connection import parse_url as parse_url_async
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, UnixDomainSocketConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from pecia_schemas.messages import WAKEUP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET_TIMEOUT_S: Final = 5
CONNECT_TIMEOUT_S: Final = 3
HEALTH_CHECK_S: Final = 5
_RETRIES: Final = 1
"""Retries of a command: a pooled connection may be stale."""

_OUTAGES: Final = (
    "READONLY",  # a replica, or a demoted master
    "MASTERDOWN",  # a replica that has lost its master
    "NOREPLICAS",  # a master with fewer replicas than it needs to write
    "UNBLOCKED",  # a master that is demoted, to those that wait for a list
    "LOADING",  # Redis is reading its data
    "MISCONF",  # Redis cannot write to its disk
    "BUSY",  # a script runs too long
    "UNKILLABLE",  # the same, after it has written
    "CLUSTERDOWN",
    "TRYAGAIN",
)
"""Error replies about the server's state, not the command. OOM is excluded: commands that free memory must pass."""
# Before version 7, Redis puts the error of a command in a script after its own text:
# `Error running script (call to f_…): @user_script:2: @user_script: 2: -READONLY You can't write …`
_OUTAGE: Final = re.compile(rf"(?:^|@user_script.*-)({'|'.join(_OUTAGES)})\b", re.DOTALL)

_PROBE: Final = ("PEXPIRE", f"{WAKEUP_PREFIX}nothing", 1)
"""A write to a key that never exists: only a writable server answers, also when full. Every account may do it."""

_parse: Callable[[str], Any] = parse_url
_parse_async: Callable[[str], Any] = parse_url_async

_outages: dict[tuple[object, ...], float] = {}
"""Last outage of each server, by the monotonic clock. Written by all threads."""


def outage_in(error: ResponseError) -> str | None:
    """Return the code of an error reply that means an outage, also inside a script's error; None for others."""
    match = _OUTAGE.search(f"{error.status_code or ''} {error}".lstrip())
    return match and match[1]


class _Judging:
    """Probe state that both kinds of connection share."""

    _connected_at = 0.0
    _probes = 0
    """Number of probe replies still to come."""
    _next_probe = 0.0

    @property
    def next_health_check(self) -> float:
        """Time of redis-py's next ping. Replies do not postpone it: otherwise a busy reader would never ping."""
        return self._next_probe

    @next_health_check.setter
    def next_health_check(self, _: float) -> None:
        pass

    @property
    def _server(self) -> tuple[object, ...]:
        return tuple(getattr(self, name, None) for name in ("host", "port", "path"))

    @property
    def _is_outdated(self) -> bool:
        return self._connected_at < _outages.get(self._server, 0.0)

    def _begin(self) -> None:
        self._connected_at, self._probes = monotonic(), 0
        # No health check of redis-py's while connecting: an unanswered check would connect again, without end.
        self._next_probe = self._connected_at + HEALTH_CHECK_S

    def _note_probe(self) -> None:
        self._probes += 1
        self._next_probe = monotonic() + HEALTH_CHECK_S

    def _is_of_probe(self, reply: object) -> bool:
        """Return whether a reply, perhaps an error, is a probe's: not a message, and not the reply to its PING."""
        if not self._probes or not isinstance(reply, int | ResponseError):
            return False
        self._probes -= 1
        return True

    def _outage(self, error: ResponseError) -> RedisConnectionError | None:
        if (code := outage_in(error)) is None:
            return None
        _outages[self._server] = monotonic()
        return RedisConnectionError(f"Redis is unavailable: {code}")


if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection as _AsyncBase
    from redis.connection import AbstractConnection as _Base
else:
    _Base = _AsyncBase = object


class _Writing(_Judging, _Base):  # type: ignore[misc]  # an attribute in redis-py
    """A connection that ends as soon as its server refuses writes."""

    def on_connect_check_health(self, check_health: bool = True) -> None:
        self._begin()
        super().on_connect_check_health(check_health=check_health)
        self._send_ping()  # type: ignore[no-untyped-call]

    def check_health(self) -> None:
        if monotonic() > self._next_probe:  # once: the command is retried on a new connection
            self._send_ping()  # type: ignore[no-untyped-call]

    def send_command(self, *words: Any, **options: Any) -> None:
        if words[0] == "PING":
            super().send_command(*_PROBE, **options)  # type: ignore[no-untyped-call]
            self._note_probe()
            options["check_health"] = False
        super().send_command(*words, **options)  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self.is_connected and self._is_outdated:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise RedisConnectionError("Redis was unavailable")
        super().send_packed_command(command, check_health=check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            reply = super().read_response(*args, **options)
        except ResponseError as error:
            if outage := self._outage(error):
                self.disconnect()  # type: ignore[no-untyped-call]
                raise outage from error
            if not self._is_of_probe(error):
                raise
        else:
            if not self._is_of_probe(reply):
                return reply
        return self.read_response(*args, **options)


class _AsyncWriting(_Judging, _AsyncBase):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The asyncio variant of `_Writing`."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        self._begin()
        await super().on_connect_check_health(check_health=check_health)
        await self._send_ping()  # type: ignore[no-untyped-call]

    async def check_health(self) -> None:
        if monotonic() > self._next_probe:
            await self._send_ping()  # type: ignore[no-untyped-call]

    async def send_command(self, *words: Any, **options: Any) -> None:
        if words[0] == "PING":
            await super().send_command(*_PROBE, **options)
            self._note_probe()
            options["check_health"] = False
        await super().send_command(*words, **options)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self.is_connected and self._is_outdated:
            await self.disconnect(nowait=True)
            raise RedisConnectionError("Redis was unavailable")
        await super().send_packed_command(command, check_health=check_health)

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            reply = await super().read_response(*args, **options)
        except ResponseError as error:
            if outage := self._outage(error):
                await self.disconnect(nowait=True)
                raise outage from error
            if not self._is_of_probe(error):
                raise
        else:
            if not self._is_of_probe(reply):
                return reply
        return await self.read_response(*args, **options)


def writing(kind: type) -> type:
    """Return a subclass of a redis-py connection class that ends as soon as its server refuses writes."""
    judge = _Writing if issubclass(kind, AbstractConnection) else _AsyncWriting
    return type(f"Writing{kind.__name__}", (judge, kind), {})


def connect(url: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, **options: Any) -> Redis:
    """Return a client that connects on first use; `options` are redis-py's, and the URL's own options take precedence.

    It retries a command once on a new connection, then raises `redis.RedisError`. Raises `ValueError` if the URL is
    invalid.
    """
    kind = _parse(url).get("connection_class", Connection)
    options |= _options(kind, connect_timeout_s) | {"retry": Retry(NoBackoff(), _RETRIES)}
    return Redis.from_url(url, **options)


def connect_async(url: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, **options: Any) -> AsyncRedis:
    """Do the same as `connect` for asyncio."""
    named = _parse_async(url)
    kind = named.get("connection_class", AsyncConnection)
    options |= _options(kind, connect_timeout_s) | {"retry": AsyncRetry(NoBackoff(), _RETRIES)}
    # Not by `from_url`, where the URL's own class would replace ours.
    pool = ConnectionPool(**{**options, **named, "connection_class": options["connection_class"]})
    return AsyncRedis.from_pool(pool)


def _options(kind: type, connect_timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "connection_class": writing(kind),
        "encoding_errors": "replace",  # any client of Redis can write invalid text
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": connect_timeout_s,
        "health_check_interval": HEALTH_CHECK_S,
    }
    if not issubclass(kind, UnixDomainSocketConnection | AsyncUnixDomainSocketConnection):
        options["socket_keepalive"] = True
    return options
