"""What a fault is, every fault there is by the short name that the command line takes, and how recovery is seen."""

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psutil
import psycopg
from redis import RedisError

from tests.soak.observer import Held, Observer
from tests.soak.rig import ENGINES, Rig, Server
from tests.soak.surroundings import CannotInjectError

BEYOND_LEASE = timedelta(seconds=5)
"""A dead worker's parts run again within its lease and this: a worker makes ready as soon as it falls silent."""
LONGEST_PAGE = timedelta(seconds=25)
"""What a worker holds that makes ready to run another's parts, which run apart."""
RECONNECTED = timedelta(seconds=15)
"""Within which a fleet works again whose connections broke."""
REPAIRED = timedelta(seconds=60)
"""Where no other limit is promised."""

Recovered = Callable[[Observer, datetime], bool | None]
"""Whether the fleet has recovered from what happened at a moment; None: nobody knows now."""


class NotNowError(Exception):
    """What the fault is about is away at this moment: try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A fault that has struck."""

    limit: timedelta
    """Within which the fleet promises to have recovered."""
    recovered: Recovered
    held: Held
    """The parts that it may have interrupted."""
    lasts: timedelta = timedelta()
    heal: Callable[[], object] | None = None
    """Ends the fault after `lasts`. Raises `NotNowError` while what it mends is away: then it is called again."""
    outage: bool = False
    """Whether nothing can recover before the healing: then the time to recover counts from there."""
    of_submits: bool = False
    """Whether only those feel it who submit."""
    worker: str | None = None
    """The worker that it killed or stopped: only of those may deaths be counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break something."""

    name: str
    """What the table says."""
    strike: Callable[[Rig, random.Random], Blow]
    """Breaks it. Raises `NotNowError`, or `CannotInjectError` where the machine does not permit it."""


def held_by(rig: Rig, worker: str | None) -> Held:
    """Return what a worker runs at this moment, None: all of them. Raises `NotNowError`."""
    held = rig.observer.held_by(worker)
    if held is None:
        raise NotNowError
    return held


def worker_of(rig: Rig, service: str) -> str:
    """Return the name of a service's worker in Postgres. Raises `NotNowError` if it is not on duty."""
    pid = rig.pid(service)
    name = rig.observer.worker_named(pid) if pid else None
    if name is None:
        raise NotNowError
    return name


def taken_over(held: Held) -> Recovered:
    """As soon as each of the parts runs again or is over, and something was committed."""
    return lambda observer, since: observer.are_taken_over(held) and observer.has_committed(since)


def everyone_hit(rig: Rig, limit: timedelta) -> Blow:
    """Return a blow to the whole fleet, which has recovered when every engine worker works."""
    return Blow(
        limit=limit,
        recovered=lambda observer, since: (observer.at_work(since) or 0) >= len(ENGINES),
        held=held_by(rig, None),
    )


_DELAY_S = 0.1
_SLOW = timedelta(seconds=5)
_FULL = timedelta(seconds=3)
_LOSING = timedelta(seconds=5)
_OVER_ONE_LEASE, _FOUR_LEASES = 4 / 3, 4.0
_JUMPS_S = (-3_600.0, -30.0, 30.0, 3_600.0, 86_400.0)

# Processes: killed, or stopped for longer than a lease.


def _kill_engine(rig: Rig, chance: random.Random) -> Blow:
    """An engine worker is gone from one moment to the next, with all it ran."""
    service = chance.choice(ENGINES)
    worker = worker_of(rig, service)
    held = held_by(rig, worker)
    _send(service, signal.SIGKILL, rig)
    return Blow(limit=rig.lease + BEYOND_LEASE, recovered=taken_over(held), held=held, worker=worker)


def _kill_ingest(rig: Rig, _: random.Random) -> Blow:
    """The only worker that cuts documents is gone: they wait for the next."""
    worker = worker_of(rig, "ingest")
    held = held_by(rig, worker)
    _send("ingest", signal.SIGKILL, rig)
    return Blow(limit=REPAIRED, recovered=taken_over(held), held=held, worker=worker)


def _kill_service(service: str, rig: Rig, _: random.Random) -> Blow:
    """The worker that calls back, or the one that repairs, is gone."""
    _send(service, signal.SIGKILL, rig)
    return Blow(
        limit=REPAIRED, recovered=lambda observer, since: observer.has_arrived(service, since), held=Held([])
    )


def _kill_inner(rig: Rig, chance: random.Random) -> Blow:
    """A process that decodes, or that the engine computes in, is gone; its worker lives."""
    service = chance.choice(ENGINES)
    worker = worker_of(rig, service)
    held = held_by(rig, worker)
    try:
        inner = list(filter(_works, psutil.Process(rig.pid(service) or 0).children(recursive=True)))
        chance.choice(inner).kill()
    except (psutil.Error, IndexError):
        raise NotNowError from None
    return Blow(limit=REPAIRED, recovered=Observer.has_committed, held=held, worker=worker)


def _works(process: psutil.Process) -> bool:
    """Whether it was started to work, not to keep the books of `multiprocessing`."""
    command = " ".join(process.cmdline())
    return "spawn_main" in command or "pecia_workers." in command


def _pause_engine(rig: Rig, chance: random.Random) -> Blow:
    """An engine worker stands still for longer than its lease, then wakes up and thinks that nothing happened."""
    service = chance.choice(ENGINES)
    worker = worker_of(rig, service)
    held = held_by(rig, worker)
    wake = _pause(service, rig)
    past = rig.lease + BEYOND_LEASE
    return Blow(
        limit=past + LONGEST_PAGE, recovered=taken_over(held), held=held, lasts=past, heal=wake, worker=worker
    )


def _pause_upkeep(rig: Rig, _: random.Random) -> Blow:
    """Upkeep stands still for longer than a lease: it has watched no one, and must bury no one when it wakes up."""
    blow = everyone_hit(rig, REPAIRED)
    wake = _pause("upkeep", rig)
    return replace(blow, lasts=rig.lease + BEYOND_LEASE, heal=wake, outage=True)


def _end_server(server: Server, number: signal.Signals, rig: Rig, _: random.Random) -> Blow:
    """A server ends, in an orderly way or not, and comes back with its data."""
    blow = everyone_hit(rig, REPAIRED)
    _send(server, number, rig)
    return blow


def _lose_redis(rig: Rig, _: random.Random) -> Blow:
    """Redis dies and its disk with it: it comes back empty."""
    blow = everyone_hit(rig, REPAIRED)
    for path in rig.redis_data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _send(Server.REDIS, signal.SIGKILL, rig)
    return blow


def _flush_redis(rig: Rig, _: random.Random) -> Blow:
    """Redis is emptied while it runs."""
    blow = everyone_hit(rig, REPAIRED)
    with _answering(), rig.redis() as redis:
        redis.flushall()
    return blow


def _freeze_redis(leases: float, rig: Rig, _: random.Random) -> Blow:
    """Redis stands still, as under a snapshot or a failover: the fleet works on without it."""
    blow = everyone_hit(rig, REPAIRED)
    return replace(blow, lasts=leases * rig.lease, heal=_pause(Server.REDIS, rig))


def _fill_redis(rig: Rig, _: random.Random) -> Blow:
    """Redis has no memory left: it refuses what it would have to store."""
    blow = everyone_hit(rig, REPAIRED)
    before = _limit_redis(rig, "1")
    return replace(blow, lasts=_OVER_ONE_LEASE * rig.lease, heal=partial(_limit_redis, rig, before))


def _fail_over_redis(limit: timedelta, rig: Rig, _: random.Random, *, with_data: bool) -> Blow:
    """Another Redis becomes the master, and later the first one again; a former master keeps its connections.

    `with_data`: whether the other one has replicated it. The first one has by the time that it takes over again.
    """
    blow, pair = everyone_hit(rig, limit), rig.redis_pair
    with _answering():
        if pair.master or (with_data and not pair.follow()):
            raise NotNowError
        if not with_data:
            pair.empty()
        pair.fail_over()
    return replace(blow, lasts=_OVER_ONE_LEASE * rig.lease, heal=partial(_fail_back, rig))


def _fail_back(rig: Rig) -> None:
    with _answering():
        if not rig.redis_pair.follow():
            raise NotNowError
        rig.redis_pair.fail_over()


def _keep_postgres_away(rig: Rig, _: random.Random) -> Blow:
    """Postgres refuses connections for longer than a part may take, and a lease: what is finished waits for it."""
    blow = everyone_hit(rig, REPAIRED)
    proxy = rig.proxies[Server.POSTGRES]
    proxy.close()
    return replace(blow, lasts=rig.part_timeout + 2 * rig.lease, heal=proxy.open, outage=True)


def _freeze_postgres(rig: Rig, _: random.Random) -> Blow:
    """Postgres stands still: connections are made, and nothing comes back."""
    blow = everyone_hit(rig, REPAIRED)
    proxy = rig.proxies[Server.POSTGRES]
    proxy.hold()
    return replace(blow, lasts=_FOUR_LEASES * rig.lease, heal=proxy.open, outage=True)


def _protect_postgres(rig: Rig, _: random.Random) -> Blow:
    """Postgres lets nothing be written, as a standby does, or a service whose disk is nearly full."""
    blow = everyone_hit(rig, REPAIRED)
    lasts = _OVER_ONE_LEASE * rig.lease
    _set_read_only(rig, "on")
    return replace(blow, lasts=lasts, heal=partial(_set_read_only, rig, "off"), outage=True)


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


def _lose_replies(server: Server, to: bytes, rig: Rig, _: random.Random) -> Blow:
    """On each connection the server carries something out, and the connection breaks before it has said so."""
    blow = everyone_hit(rig, RECONNECTED)
    proxy = rig.proxies[server]
    proxy.lose_replies(to)
    return replace(blow, lasts=_LOSING, heal=partial(proxy.lose_replies, None))


def _slow(rig: Rig, _: random.Random) -> Blow:
    """Everything takes a tenth of a second longer for some seconds."""

    def delay(seconds: float) -> None:
        for proxy in rig.proxies.values():
            proxy.delay(seconds)

    blow = everyone_hit(rig, REPAIRED)
    delay(_DELAY_S)
    return replace(blow, lasts=_SLOW, heal=partial(delay, 0))


def _fill_disk(rig: Rig, _: random.Random) -> Blow:
    """There is no room for another document: producers get errors until there is."""
    if rig.disk is None:
        raise CannotInjectError("needs root, to mount a small file system")
    rig.disk.fill()
    return Blow(
        limit=REPAIRED,
        recovered=Observer.has_accepted,
        held=Held([]),
        lasts=_FULL,
        heal=rig.disk.empty,
        outage=True,
        of_submits=True,
    )


def _jump_clock(rig: Rig, chance: random.Random) -> Blow:
    """The clock of one engine worker's machine is set ahead or back, and stays as it is."""
    blow = everyone_hit(rig, RECONNECTED)
    rig.clocks[chance.choice(ENGINES)].jump(chance.choice(_JUMPS_S))
    return blow


def _jump_clocks(rig: Rig, chance: random.Random) -> Blow:
    """The clocks of all machines are set, each by another step, and stay as they are."""
    blow = everyone_hit(rig, RECONNECTED)
    for clock in rig.clocks.values():
        clock.jump(chance.choice(_JUMPS_S))
    return blow


def _send(service: str, number: signal.Signals, rig: Rig) -> None:
    if not rig.signal(service, number):
        raise NotNowError


def _pause(service: str, rig: Rig) -> Callable[[], object]:
    """Stop a process; return what wakes it up, and does no harm to the next one if it was killed meanwhile."""
    _send(service, signal.SIGSTOP, rig)
    return partial(rig.signal, service, signal.SIGCONT)


def _limit_redis(rig: Rig, memory: str) -> str:
    """Set how much memory Redis may take; return what it was before."""
    with _answering(), rig.redis() as redis:
        before: Any = redis.config_get("maxmemory")
        redis.config_set("maxmemory", memory)
    return str(before["maxmemory"])


def _set_read_only(rig: Rig, switch: str) -> None:
    """Let every session of Postgres, those there are too, write nothing: `on`, or write again: `off`."""
    with _answering(), rig.postgres() as postgres:
        postgres.execute(f"ALTER SYSTEM SET default_transaction_read_only = {switch}".encode())
        postgres.execute("SELECT pg_reload_conf()")


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (RedisError, psycopg.Error):
        raise NotNowError from None


FAULTS: dict[str, Fault] = {
    "kill-engine": Fault("engine worker killed", _kill_engine),
    "kill-ingest": Fault("ingest worker killed", _kill_ingest),
    "kill-webhooks": Fault("webhook worker killed", partial(_kill_service, "webhooks")),
    "kill-upkeep": Fault("upkeep killed", partial(_kill_service, "upkeep")),
    "kill-inner": Fault("decoding or engine process killed", _kill_inner),
    "pause-engine": Fault("engine worker paused", _pause_engine),
    "pause-upkeep": Fault("upkeep paused", _pause_upkeep),
    "kill-redis": Fault("Redis killed, data kept", partial(_end_server, Server.REDIS, signal.SIGKILL)),
    "lose-redis": Fault("Redis killed, data lost", _lose_redis),
    "restart-redis": Fault("Redis restarted", partial(_end_server, Server.REDIS, signal.SIGTERM)),
    "flush-redis": Fault("Redis emptied (FLUSHALL)", _flush_redis),
    "freeze-redis": Fault("Redis frozen for over a lease", partial(_freeze_redis, _OVER_ONE_LEASE)),
    "suspend-redis": Fault("Redis frozen for four leases", partial(_freeze_redis, _FOUR_LEASES)),
    "fill-redis": Fault("Redis full", _fill_redis),
    "fail-over-redis": Fault(
        "Redis failed over to a replica", partial(_fail_over_redis, RECONNECTED, with_data=True)
    ),
    "fail-over-redis-empty": Fault(
        "Redis failed over to an empty one", partial(_fail_over_redis, REPAIRED, with_data=False)
    ),
    "kill-postgres": Fault("Postgres killed", partial(_end_server, Server.POSTGRES, signal.SIGKILL)),
    "restart-postgres": Fault("Postgres restarted", partial(_end_server, Server.POSTGRES, signal.SIGINT)),
    "away-postgres": Fault("Postgres away for long", _keep_postgres_away),
    "freeze-postgres": Fault("Postgres frozen for four leases", _freeze_postgres),
    "protect-postgres": Fault("Postgres read-only", _protect_postgres),
    "cut-redis": Fault("connections to Redis cut", partial(_cut, Server.REDIS)),
    "cut-postgres": Fault("connections to Postgres cut", partial(_cut, Server.POSTGRES)),
    "silence-redis": Fault("connections to Redis half-open", partial(_silence, Server.REDIS)),
    "silence-postgres": Fault("connections to Postgres half-open", partial(_silence, Server.POSTGRES)),
    "lose-replies-redis": Fault("replies of Redis lost", partial(_lose_replies, Server.REDIS, b"EVAL")),
    "lose-replies-postgres": Fault(
        "commits' replies lost", partial(_lose_replies, Server.POSTGRES, b"COMMIT")
    ),
    "slow": Fault("connections slow", _slow),
    "fill-disk": Fault("disk of the documents full", _fill_disk),
    "jump-clock": Fault("clock jumped", _jump_clock),
    "jump-clocks": Fault("all clocks jumped", _jump_clocks),
}
