"""Faults of servers: killed, restarted, robbed of their data."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from redis import RedisError
from tests.soak.faults import REPAIRED, Blow, NotNowError, everyone_hit
from tests.soak.rig import Rig, Server


@dataclass(frozen=True, slots=True)
class EndServer:
    """A server ends, in an orderly way or not, and comes back with its data."""

    name: str
    server: Server
    with_signal: signal.Signals

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Send it the signal."""
        blow = everyone_hit(rig, REPAIRED)
        _end(rig, self.server, self.with_signal)
        return blow


@dataclass(frozen=True, slots=True)
class LoseRedisData:
    """Redis dies and its disk with it: it comes back empty."""

    name: str = "Redis killed, data lost"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Remove its files, then kill it."""
        blow = everyone_hit(rig, REPAIRED)
        for path in rig.redis_data.iterdir():
            _remove(path)
        _end(rig, Server.REDIS, signal.SIGKILL)
        return blow


@dataclass(frozen=True, slots=True)
class FlushRedis:
    """Somebody empties Redis while it runs."""

    name: str = "Redis emptied (FLUSHALL)"

    def strike(self, rig: Rig, chance: random.Random) -> Blow:  # noqa: ARG002  there is one
        """Empty it."""
        blow = everyone_hit(rig, REPAIRED)
        try:
            with rig.redis() as redis:
                redis.flushall()
        except RedisError:
            raise NotNowError from None
        return blow


def _end(rig: Rig, server: Server, number: signal.Signals) -> None:
    if not rig.signal(server, number):
        raise NotNowError


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
