"""Rows of workers: their heartbeats, and figures of engines that workers share or leave to their successors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import structlog
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import name_of, outage_suppressed, verdict_on
from pecia_schemas.running import ABLE, LIVING, LOST, ON_DUTY, Need
from pecia_schemas.states import Stage
from pecia_workers.ledger.database import change, fetch, open_database, open_for_questions
from pecia_workers.protocol.base import Engine

log = structlog.get_logger(__name__)

_LONGEST_BEAT = timedelta(seconds=5)
_FAREWELL_S = 3
_JOIN_S = 10

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_NAMES = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """One process of the fleet, under the name that parts and events carry."""

    name: str
    role: str
    stages: tuple[str, ...]
    host: str
    pid: int
    engine: str | None = None
    capabilities: Mapping[str, Any] | None = None
    """What its engine can do and hold, once it has started."""

    @classmethod
    def new(cls, role: str, stages: Collection[Stage] = (), engine: Engine | None = None) -> WorkerIdentity:
        """Return this process's identity under a unique name, which no later process with the same pid gets."""
        return cls(
            name=new_name(role),
            role=role,
            stages=tuple(sorted(stage.value for stage in stages)),
            host=socket.gethostname(),
            pid=os.getpid(),
            engine=engine.capabilities.name if engine else None,
        )

    def running(self, engine: Engine) -> WorkerIdentity:
        """Return the identity with the capabilities of the started engine."""
        able, budget = engine.capabilities, engine.budget
        told = {name: getattr(able, name) for name in ("model", "device", "preparers", "fields")}
        told |= {"languages": able.languages and sorted(able.languages), "adapters": sorted(able.adapters)}
        return replace(self, capabilities=told | {"slots": budget.slots, "tokens": budget.tokens})


_REGISTER = text(
    """
    INSERT INTO workers (name, role, stages, host, pid, engine, capabilities)
    VALUES (:name, :role, CAST(:stages AS text[]), :host, :pid, :engine, :capabilities)
    ON CONFLICT (name) DO UPDATE
    SET role = excluded.role, stages = excluded.stages, engine = excluded.engine, capabilities = excluded.capabilities,
        started_at = clock_timestamp(), seen_at = clock_timestamp(), stopped_at = NULL, lost_at = NULL
    """
).bindparams(bindparam("capabilities", type_=JSONB(none_as_null=True)))

_BEAT = text(
    f"UPDATE workers SET seen_at = clock_timestamp(), stopped_at = NULL WHERE name = :name AND NOT {LOST}"  # noqa: S608  a constant
)

_REGISTERED = text(
    f"SELECT EXISTS (SELECT FROM workers WHERE pid = :pid AND host = :host AND {LIVING}"  # noqa: S608  a constant
    " AND seen_at > now() - interval '15 seconds')"
)

_UPKEEP = text(f"SELECT EXISTS (SELECT FROM workers WHERE role = 'upkeep' AND {ON_DUTY})")  # noqa: S608  a constant
_STAGES_ON_DUTY = text(f"SELECT DISTINCT unnest(stages) FROM workers WHERE {ON_DUTY}")  # noqa: S608  a constant


_READERS_CAN = text(
    f"""
    SELECT coalesce(bool_or({ABLE}), true)
    FROM workers, (SELECT CAST(:need AS text), CAST(:value AS text)) AS needs (name, value)
    WHERE {ON_DUTY} AND 'read' = ANY(stages)
    """  # noqa: S608  constants
)

# One that a part still runs on, as far as Postgres knows, is needed to tell how it left that part.
_FORGET = text(
    """
    WITH gone AS (
        SELECT name FROM workers
        WHERE coalesce(stopped_at, seen_at) < now() - :age
          AND NOT EXISTS (SELECT FROM parts WHERE parts.state = 'running' AND parts.worker = workers.name)
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM workers USING gone WHERE workers.name = gone.name
    """
)

_STOPPED = text("UPDATE workers SET seen_at = now(), stopped_at = now() WHERE name = :name")


async def register(database: AsyncEngine, worker: WorkerIdentity) -> None:
    """Write the worker's row, alive from now on."""
    await change(database, _REGISTER, **(asdict(worker) | {"stages": list(worker.stages)}))


def is_registered(database_url: str, pid: int) -> bool:
    """Return whether this machine's process has a row and is alive; False also while Postgres is unavailable."""
    try:
        with open_for_questions(database_url).connect() as connection:
            found = connection.execute(_REGISTERED, {"pid": pid, "host": socket.gethostname()})
            return bool(found.scalar())
    except Exception as error:
        if verdict_on(error) is None:
            raise
        return False


async def beat(database: AsyncEngine, worker: WorkerIdentity) -> bool:
    """Renew the heartbeat. Returns False if the row is gone or marked dead: then the worker must register again."""
    return await change(database, _BEAT, name=worker.name) == 1


async def stages_on_duty(database: AsyncEngine) -> frozenset[Stage]:
    """Return the stages that live workers serve, without those that this version does not know."""
    served = {stage for (stage,) in await fetch(database, _STAGES_ON_DUTY)}
    return frozenset(stage for stage in Stage if stage in served)


async def readers_can(database: AsyncEngine, need: Need, value: str) -> bool:
    """Return whether a live page reader has, or may have, this capability; of several languages one suffices.

    True while no live reader has reported that it has not.
    """
    ((able,),) = await fetch(database, _READERS_CAN, need=need, value=value)
    return bool(able)


async def forget_gone(database: AsyncEngine, *, age: timedelta) -> int:
    """Delete the rows of workers that stopped or were last seen longer ago than that; return how many.

    Parts and events keep the workers' names.
    """
    return await change(database, _FORGET, age=age)


class Heartbeat:
    """Renews the worker's row while a block runs; outages of Postgres do not end it.

    Runs on its own thread and connection, so that a busy loop is not taken for a dead worker; while `alive` returns
    False, the row is not renewed. If the row marks the worker dead, `on_lost` is called on that thread, before the
    worker registers again.
    """

    def __init__(
        self,
        database_url: str,
        worker: WorkerIdentity,
        *,
        lease: timedelta,
        alive: Callable[[], bool] = lambda: True,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._database_url = database_url
        self._worker = worker
        self._every = min(_LONGEST_BEAT, lease / 4)
        self._alive = alive
        self._on_lost = on_lost
        self._known = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)

    @property
    def known(self) -> bool:
        """Whether the row marks the worker alive; without that it must claim nothing."""
        return self._known.is_set()

    async def __aenter__(self) -> Self:
        self._thread.start()
        await asyncio.to_thread(self._known.wait, _FAREWELL_S)
        return self

    async def __aexit__(self, *_error: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._beat())

    async def _beat(self) -> None:
        # One beat may find its connection half-open: the next must still come within the lease.
        database = open_database(self._database_url, connections=1, ping=self._every)
        missed = False
        try:
            while not self._stopping.is_set():
                try:
                    if self.known and self._alive() and not await beat(database, self._worker):
                        self._known.clear()
                        self._on_lost()
                    if not self.known:
                        await register(database, self._worker)
                        self._known.set()
                    missed = False
                except Exception as error:  # noqa: BLE001  without a heartbeat the worker counts as dead for ever
                    if not missed:
                        log.warning("heartbeat_missed", error=name_of(error))
                    missed = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._every.total_seconds())
            with suppress(TimeoutError), outage_suppressed():
                # Of its own will: what it still holds is no strike against the part.
                await asyncio.wait_for(change(database, _STOPPED, name=self._worker.name), _FAREWELL_S)
        finally:
            await database.dispose()


def new_name(role: str) -> str:
    """Return a unique name for this process, which no later process with the same pid gets."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{_here()}{secrets.token_hex(3)}"


def is_gone(name: str) -> bool:
    """Return whether the worker was a process of this machine and container, and has ended.

    False where that is unknown: on other machines, in other containers, or if its pid was reused.
    """
    rest, _, token = name.rpartition(":")
    pid = rest.rpartition(":")[2]
    with suppress(PermissionError, OverflowError):
        try:
            if token.startswith(_here()) and pid.isdecimal():
                os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False


@cache
def _here() -> str:
    """Return a name of this boot and container: within it a pid identifies one process."""
    try:
        where = f"{socket.gethostname()}{_BOOT.read_text()}{_PROCESS_NAMES.stat().st_ino}"
    except OSError:
        where = uuid4().hex
    return hashlib.sha256(where.encode()).hexdigest()[:8]


class Watch:
    """Finds workers whose heartbeats do not change. Looks more than a third of a lease apart restart the watch."""

    def __init__(self, lease: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease.total_seconds()
        self._clock = clock
        self._looked_at: float | None = None
        self._seen: dict[str, tuple[datetime, float]] = {}

    def silent(self, beats: Mapping[str, datetime]) -> list[str]:
        """Return the workers whose heartbeat is the same as one lease ago."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > self._lease_s / 3:
            self._seen.clear()
        self._looked_at = now
        former = self._seen
        self._seen = {
            name: former[name] if name in former and former[name][0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since >= self._lease_s]


async def for_ever(step: Callable[[], Awaitable[None]]) -> None:
    """Run the step again and again; an error that stays is logged once."""
    known = None
    while True:
        error_name = None
        try:
            await step()
        except Exception as error:  # noqa: BLE001  the next look may succeed, and there is no other
            error_name = name_of(error)
            if error_name != known:
                log.info("watch_failed", error=error_name)
        known = error_name


async def stand_in(database: AsyncEngine, duty: Callable[[], Awaitable[None]], *, every_s: float) -> None:
    """Do upkeep's duty after so long, unless upkeep is on duty itself."""
    await asyncio.sleep(every_s)
    ((is_on_duty,),) = await fetch(database, _UPKEEP)
    if not is_on_duty:
        await duty()


_MERGE = text(
    """
    INSERT INTO output_lengths (workload, weights)
    VALUES (:workload, CAST(:weights AS double precision[]))
    ON CONFLICT (workload) DO UPDATE
    SET updated_at = now(), weights = (
        SELECT array_agg(old * 0.5 ^ (CAST(:seen AS double precision) / :half_life) + new ORDER BY step)
        FROM unnest(output_lengths.weights, excluded.weights) WITH ORDINALITY AS grid (old, new, step))
    """
)

_KNOWN = text("SELECT workload, weights FROM output_lengths")

_NOTE = text("UPDATE workers SET memory = :share WHERE name = :name")

_LEFT = text(
    """
    SELECT memory FROM workers
    WHERE host = :host AND engine = :engine AND memory IS NOT NULL AND seen_at > now() - interval '10 minutes'
    ORDER BY seen_at DESC LIMIT 1
    """
)


async def share_output_lengths(
    database: AsyncEngine, seen: Mapping[str, list[float]], *, half_life: int
) -> dict[str, list[float]]:
    """Add observations to the shared ones, which decay with each; return the sums.

    Workloads are locked in the order of their names, so that no deadlock arises.
    """
    async with database.begin() as connection:
        for workload, weights in sorted(seen.items()):
            values = {"workload": workload, "weights": weights, "seen": sum(weights), "half_life": half_life}
            await connection.execute(_MERGE, values)
        return {row.workload: row.weights for row in await connection.execute(_KNOWN)}


async def note_memory(database: AsyncEngine, worker: str, share: float) -> None:
    """Record the share of memory that a successor should begin with."""
    await change(database, _NOTE, name=worker, share=share)


async def memory_left(database: AsyncEngine, *, host: str, engine: str) -> float:
    """Return the share recorded by the last engine of that name that died on that machine recently; 1 if none did."""
    left = await fetch(database, _LEFT, host=host, engine=engine)
    return float(left[0].memory) if left else 1.0
