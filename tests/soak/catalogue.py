"""Every fault there is, by the short name that the command line takes."""

from __future__ import annotations

import os
import random
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from redis import RedisError
from tests.soak.faults import (
    BEYOND_LEASE,
    LONGEST_PAGE,
    RECONNECTED,
    REPAIRED,
    Blow,
    Fault,
    NotNowError,
    committing,
    everyone_hit,
    held_by,
    replaced,
    taken_over,
    worker_of,
)
from tests.soak.observer import Held
from tests.soak.processes import children
from tests.soak.rig import ENGINES, Rig, Server
from tests.soak.surroundings import CannotInjectError

_DELAY_S = 0.1
_SLOW = timedelta(seconds=5)
_FULL = timedelta(seconds=3)
_JUMPS_S = (-3_600.0, -30.0, 30.0, 3_600.0, 86_400.0)

# Processes: killed, or stopped for longer than a lease.


def _kill_engine(rig: Rig, chance: random.Random) -> Blow:
    """An engine worker is gone from one moment to the next, with all it ran."""
    service = chance.choice(ENGINES)
    held = held_by(rig, worker_of(rig, service))
    _end(service, signal.SIGKILL, rig)
    return Blow(limit=rig.lease + BEYOND_LEASE, recovered=taken_over(held), held=held)


def _kill_ingest(rig: Rig, _: random.Random) -> Blow:
    """The only worker that cuts documents is gone: they wait for the next."""
    held = held_by(rig, worker_of(rig, "ingest"))
    _end("ingest", signal.SIGKILL, rig)
    return Blow(limit=REPAIRED, recovered=taken_over(held), held=held)


def _kill_service(service: str, rig: Rig, _: random.Random) -> Blow:
    """The worker that calls back, or the one that repairs, is gone."""
    _end(service, signal.SIGKILL, rig)
    return Blow(limit=REPAIRED, recovered=replaced(service), held=Held([]))


def _kill_inner(rig: Rig, chance: random.Random) -> Blow:
    """A process that decodes, or that the engine computes in, is gone; its worker lives."""
    service = chance.choice(ENGINES)
    held = held_by(rig, worker_of(rig, service))
    started = children(rig.pid(service) or 0)
    forked = [inner for child in started for inner in children(child.pid)]
    inner = [process for process in (*started, *forked) if process.is_worker]
    if not inner:
        raise NotNowError
    with suppress(ProcessLookupError):
        os.kill(chance.choice(inner).pid, signal.SIGKILL)
    return Blow(limit=REPAIRED, recovered=committing(), held=held)


def _pause_engine(rig: Rig, chance: random.Random) -> Blow:
    """An engine worker stands still for longer than its lease, then wakes up and thinks that nothing happened."""
    service = chance.choice(ENGINES)
    held = held_by(rig, worker_of(rig, service))
    pid = rig.pid(service)
    if pid is None:
        raise NotNowError
    os.kill(pid, signal.SIGSTOP)

    def wake() -> None:
        if rig.pid(service) == pid:
            os.kill(pid, signal.SIGCONT)

    past = rig.lease + BEYOND_LEASE
    return Blow(limit=past + LONGEST_PAGE, recovered=taken_over(held), held=held, lasts=past, heal=wake)


# Servers: killed, restarted, robbed of their data.


def _end_server(server: Server, number: signal.Signals, rig: Rig, _: random.Random) -> Blow:
    """A server ends, in an orderly way or not, and comes back with its data."""
    blow = everyone_hit(rig, REPAIRED)
    _end(server, number, rig)
    return blow


def _lose_redis(rig: Rig, _: random.Random) -> Blow:
    """Redis dies and its disk with it: it comes back empty."""
    blow = everyone_hit(rig, REPAIRED)
    for path in rig.redis_data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _end(Server.REDIS, signal.SIGKILL, rig)
    return blow


def _flush_redis(rig: Rig, _: random.Random) -> Blow:
    """Redis is emptied while it runs."""
    blow = everyone_hit(rig, REPAIRED)
    try:
        with rig.redis() as redis:
            redis.flushall()
    except RedisError:
        raise NotNowError from None
    return blow


# The network between the fleet and its servers, by the proxies.


def _cut(server: Server, rig: Rig, _: random.Random) -> Blow:
    """Every connection to a server breaks at once."""
    blow = everyone_hit(rig, RECONNECTED)
    rig.proxies[server].cut()
    return blow


def _silence(server: Server, rig: Rig, _: random.Random) -> Blow:
    """Every connection to a server is half-open: neither end closes it, nothing comes through. New ones work."""
    blow = everyone_hit(rig, RECONNECTED)
    rig.proxies[server].silence()
    return blow


def _slow(rig: Rig, _: random.Random) -> Blow:
    """Everything takes a tenth of a second longer for some seconds."""

    def delay(seconds: float) -> None:
        for proxy in rig.proxies.values():
            proxy.delay(seconds)

    blow = everyone_hit(rig, REPAIRED)
    delay(_DELAY_S)
    return replace(blow, lasts=_SLOW, heal=partial(delay, 0))


# What a fleet stands on: the disk under the documents, the clocks of its machines.


def _fill_disk(rig: Rig, _: random.Random) -> Blow:
    """There is no room for another document: producers get errors until there is."""
    if rig.disk is None:
        raise CannotInjectError("needs root, to mount a small file system")
    rig.disk.fill()
    return Blow(
        limit=REPAIRED,
        recovered=lambda observer, since: observer.has_accepted(since),
        held=Held([]),
        lasts=_FULL,
        heal=rig.disk.empty,
        of_submits=True,
    )


def _jump_clock(rig: Rig, chance: random.Random) -> Blow:
    """The clock of one engine worker's machine is set ahead or back, and stays as it is."""
    blow = everyone_hit(rig, RECONNECTED)
    rig.clocks[chance.choice(ENGINES)].jump(chance.choice(_JUMPS_S))
    return blow


def _end(service: str, number: signal.Signals, rig: Rig) -> None:
    if not rig.signal(service, number):
        raise NotNowError


FAULTS: dict[str, Fault] = {
    "kill-engine": Fault("engine worker killed", _kill_engine),
    "kill-ingest": Fault("ingest worker killed", _kill_ingest),
    "kill-webhooks": Fault("webhook worker killed", partial(_kill_service, "webhooks")),
    "kill-upkeep": Fault("upkeep killed", partial(_kill_service, "upkeep")),
    "kill-inner": Fault("decoding or engine process killed", _kill_inner),
    "pause-engine": Fault("engine worker paused", _pause_engine),
    "kill-redis": Fault("Redis killed, data kept", partial(_end_server, Server.REDIS, signal.SIGKILL)),
    "lose-redis": Fault("Redis killed, data lost", _lose_redis),
    "restart-redis": Fault("Redis restarted", partial(_end_server, Server.REDIS, signal.SIGTERM)),
    "flush-redis": Fault("Redis emptied (FLUSHALL)", _flush_redis),
    "kill-postgres": Fault("Postgres killed", partial(_end_server, Server.POSTGRES, signal.SIGKILL)),
    "restart-postgres": Fault("Postgres restarted", partial(_end_server, Server.POSTGRES, signal.SIGINT)),
    "cut-redis": Fault("connections to Redis cut", partial(_cut, Server.REDIS)),
    "cut-postgres": Fault("connections to Postgres cut", partial(_cut, Server.POSTGRES)),
    "silence-redis": Fault("connections to Redis half-open", partial(_silence, Server.REDIS)),
    "silence-postgres": Fault("connections to Postgres half-open", partial(_silence, Server.POSTGRES)),
    "slow": Fault("connections slow", _slow),
    "fill-disk": Fault("disk of the documents full", _fill_disk),
    "jump-clock": Fault("clock jumped", _jump_clock),
}
