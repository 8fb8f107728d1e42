"""Who is on duty: each process of the fleet has a row and renews it, so that a dead one's parts can be told."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import Stage
from pecia_schemas.duty import ON_DUTY
from pecia_schemas.sqlstates import name_of, outage_suppressed
from pecia_workers.engines.base import Engine
from pecia_workers.ledger.database import open_for_questions

log = structlog.get_logger(__name__)

BEAT = timedelta(seconds=5)
"""How often a worker says that it lives; well below the default `worker_timeout`."""

_FAREWELL_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """One process of the fleet, by the name that parts and events carry."""

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
        """Return this process under a name that no other bears, not even a later one with its number."""
        host, pid = socket.gethostname(), os.getpid()
        listed = tuple(sorted(stage.value for stage in stages))
        reads_with = engine.capabilities.name if engine else None
        return cls(
            name=f"{role}@{host}:{pid}:{secrets.token_hex(3)}",
            role=role,
            stages=listed,
            host=host,
            pid=pid,
            engine=reads_with,
        )

    def running(self, engine: Engine) -> WorkerIdentity:
        """Return the same worker, with what its engine can do and hold now that it has started."""
        able, budget = engine.capabilities, engine.budget
        capabilities = {
            "model": able.model,
            "device": able.device,
            "languages": able.languages and sorted(able.languages),
            "fields": able.fields,
            "adapters": sorted(able.adapters),
            "slots": budget.slots,
            "tokens": budget.tokens,
        }
        return replace(self, capabilities=capabilities)


_REGISTER = text(
    """
    INSERT INTO workers (name, role, stages, host, pid, engine, capabilities)
    VALUES (:name, :role, CAST(:stages AS text[]), :host, :pid, :engine, :capabilities)
    ON CONFLICT (name) DO UPDATE
    SET role = excluded.role, stages = excluded.stages, engine = excluded.engine, capabilities = excluded.capabilities,
        started_at = now(), seen_at = now(), stopped_at = NULL
    """
).bindparams(bindparam("capabilities", type_=JSONB(none_as_null=True)))

_BEAT = text("UPDATE workers SET seen_at = now(), stopped_at = NULL WHERE name = :name")

_REGISTERED = text(
    "SELECT EXISTS (SELECT 1 FROM workers WHERE pid = :pid AND host = :host AND stopped_at IS NULL"
    " AND seen_at > now() - interval '15 seconds')"
)

_STAGES_ON_DUTY = text(f"SELECT DISTINCT unnest(stages) FROM workers WHERE {ON_DUTY}")  # noqa: S608  a constant

_FIELDS_FILLED = text(
    f"""
    SELECT coalesce(bool_or(coalesce(CAST(capabilities->>'fields' AS boolean), true)), true)
    FROM workers WHERE {ON_DUTY} AND 'read' = ANY(stages)
    """  # noqa: S608  a constant
)

_LANGUAGE_READ = text(
    f"""
    SELECT coalesce(bool_or(coalesce(
        jsonb_typeof(capabilities->'languages') = 'null' OR capabilities->'languages' ? CAST(:language AS text), true
    )), true)
    FROM workers WHERE {ON_DUTY} AND 'read' = ANY(stages)
    """  # noqa: S608  a constant
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
    async with database.begin() as connection:
        await connection.execute(
            _REGISTER,
            {
                "name": worker.name,
                "role": worker.role,
                "stages": list(worker.stages),
                "host": worker.host,
                "pid": worker.pid,
                "engine": worker.engine,
                "capabilities": worker.capabilities,
            },
        )


def is_registered(database_url: str, pid: int) -> bool:
    """Return whether the process of this machine has a row and is alive. False too if Postgres does not answer now."""
    with outage_suppressed(), open_for_questions(database_url).connect() as connection:
        found = connection.execute(_REGISTERED, {"pid": pid, "host": socket.gethostname()})
        return bool(found.scalar())
    return False


async def beat(database: AsyncEngine, worker: WorkerIdentity) -> bool:
    """Say that the worker lives. Returns False if its row is gone: then it must register."""
    async with database.begin() as connection:
        return (await connection.execute(_BEAT, {"name": worker.name})).rowcount == 1


async def stages_on_duty(database: AsyncEngine) -> frozenset[Stage]:
    """Return what the workers that live now can do between them; stages of a newer version are left out."""
    async with database.connect() as connection:
        served = set((await connection.execute(_STAGES_ON_DUTY)).scalars())
    return frozenset(stage for stage in Stage if stage in served)


async def fields_filled(database: AsyncEngine) -> bool:
    """Return whether a worker that reads pages now fills fields too, or may; True while there is none to say no."""
    async with database.connect() as connection:
        return bool((await connection.execute(_FIELDS_FILLED)).scalar())


async def language_read(database: AsyncEngine, language: str) -> bool:
    """Return whether a worker that reads pages now reads that language, or may; True while there is none to say no."""
    async with database.connect() as connection:
        return bool((await connection.execute(_LANGUAGE_READ, {"language": language})).scalar())


async def stopped(database: AsyncEngine, worker: WorkerIdentity) -> None:
    """Say that the worker stopped of its own will: what it still holds is no strike against the part."""
    async with database.begin() as connection:
        await connection.execute(_STOPPED, {"name": worker.name})


async def forget_gone(database: AsyncEngine, *, age: timedelta) -> int:
    """Delete the rows of workers that stopped, or were seen last, that long ago; return how many.

    Parts and events keep their names.
    """
    async with database.begin() as connection:
        return (await connection.execute(_FORGET, {"age": age})).rowcount


@asynccontextmanager
async def keep_registered(
    database: AsyncEngine, worker: WorkerIdentity, *, every: timedelta = BEAT
) -> AsyncIterator[None]:
    """Keep the worker's row alive while the block runs, whether or not Postgres is there at the moment."""
    beating = asyncio.create_task(_keep_beating(database, worker, every.total_seconds()))
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        with suppress(TimeoutError), outage_suppressed():
            await asyncio.wait_for(stopped(database, worker), _FAREWELL_S)


async def _keep_beating(database: AsyncEngine, worker: WorkerIdentity, every_s: float) -> None:
    known = missed = False
    while True:
        try:
            known = known and await beat(database, worker)
            if not known:
                await register(database, worker)
            known, missed = True, False
        except Exception as error:  # noqa: BLE001  without a heartbeat the worker counts as dead for ever
            if not missed:
                log.warning("heartbeat_missed", error=name_of(error))
            missed = True
        await asyncio.sleep(every_s)
