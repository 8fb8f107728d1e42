"""What one worker's loop owns: stores, engine and decoders, heartbeat and watchers; `Parts` is the way of a part."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import structlog

from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.batching import meter
from pecia_workers.batching.batcher import Priced
from pecia_workers.engines.base import Budget, EngineDeadError
from pecia_workers.engines.profiles import with_profile
from pecia_workers.engines.registry import create_engine
from pecia_workers.ledger.database import OUTAGE, open_database, outlast
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import pardon
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity
from pecia_workers.queue.bus import Bus
from pecia_workers.upkeep.loop import watch_workers
from pecia_workers.worker.attempts import end
from pecia_workers.worker.parts import DirectClaims, Parts, unnoticed
from pecia_workers.worker.stages import Stages

log = structlog.get_logger(__name__)

_LOOK_S = 1.0
_END_S = 3.0
_SIGHT_S = 10.0
_RATE_S = 60
_CLAIMED_AGO = timedelta(seconds=30)
"""So long ago the reply to a claim has come, or it is lost."""


class Runtime(Parts):
    """Owns what parts of the given stages run on. Everything happens on the loop that `start` runs on."""

    stages = Stages
    """What runs a part through its stage."""

    def __init__(self, settings: WorkerSettings, stages: Collection[Stage]) -> None:
        super().__init__(stages)
        self._settings = settings
        self._resources = AsyncExitStack()
        self._turned_at = monotonic()
        self._engine_seen: meter.EngineWatch | None = None
        self._each_second: deque[int] = deque([0], maxlen=_RATE_S + 1)
        """Parts committed since the start, as of each of the last seconds."""

    @property
    def name(self) -> str:
        """The worker's name in Postgres and Redis."""
        return self._identity.name

    async def start(self, priced: Priced = unnoticed) -> Budget:
        """Open the stores, load the engine if a stage needs one, register; return how much may be claimed."""
        engine = None
        if self._served - {Stage.INGEST}:
            captions = Stage.READ not in self._served
            self._settings = await asyncio.to_thread(with_profile, self._settings, captions=captions)
            engine = create_engine(self._settings)
        settings = self._settings
        role = "engine" if engine else "ingest"
        identity = self._identity = WorkerIdentity.new(role, self._served, engine)
        self._bus = Bus(settings.redis_url.get_secret_value(), window=settings.window)
        self._resources.push_async_callback(self._bus.close)
        self._database = open_database(settings.database_url.get_secret_value())
        self._resources.push_async_callback(self._database.dispose)
        self._ledger = Ledger(self._database, identity.name, announce=self._bus.tell, keys=settings.keyring)
        self._resources.push_async_callback(self._let_ledger_end)
        self._stages = self.stages(settings, identity, engine, self._ledger, self._database, self._resources)
        budget = await self._stages.start(priced)
        self._engine_seen = meter.EngineWatch(engine.capabilities.name) if engine else None
        self._in_background(self._keep_turning())
        self._beats = await self._resources.enter_async_context(
            Heartbeat(
                settings.database_url.get_secret_value(),
                identity.running(engine) if engine else identity,
                lease=settings.lease,
                alive=self._is_turning,
                on_lost=partial(asyncio.get_running_loop().call_soon_threadsafe, self._taken_for_dead),
            )
        )
        self._in_background(self._bus.hear_cancelled(self._cancel_job))
        self._in_background(watch_workers(self._database, self._bus, settings))
        self._in_background(self._keep_sight())
        self._slots = min(budget.slots, settings.max_in_flight or budget.slots)
        self._direct = DirectClaims(
            self._bus, claim=self._claim_waiting, free=self._free, run=self._run_without_message
        )
        self._direct.start()
        self._resources.push_async_callback(self._direct.stop)
        return budget

    def _in_background(self, work: Awaitable[Any]) -> None:
        self._resources.push_async_callback(end, asyncio.ensure_future(work))

    async def _let_ledger_end(self) -> None:
        with suppress(TimeoutError):  # Postgres is away
            await asyncio.wait_for(self._ledger.idle(), _END_S)

    async def _keep_turning(self) -> None:
        while True:
            self._turned_at = monotonic()
            await asyncio.sleep(_LOOK_S)

    def _is_turning(self) -> bool:
        """Return whether the loop moves; a part may keep it for as long as parts may take. On any thread."""
        return monotonic() - self._turned_at < self._settings.part_timeout.total_seconds()

    async def _keep_sight(self) -> None:
        """Give back what runs here for Postgres alone: the reply to a claim may have been lost."""
        while True:
            await asyncio.sleep(_SIGHT_S)
            with outage_suppressed():
                unseen = await self._ledger.running(age=_CLAIMED_AGO) - self._claimed
                if unseen:
                    log.warning("parts_unseen", parts=len(unseen))
                    await self._ledger.give_back(unseen)

    def _taken_for_dead(self) -> None:
        """Let go of everything: others run it now. What was counted against it is taken back."""
        log.error("taken_for_dead", parts=len(self._running))
        lost = [part.fence for part, _ in self._running.values()]
        for _, task in self._running.values():
            task.cancel()
        if lost:
            self._in_background(outlast(partial(pardon, self._database, lost)))

    @property
    def room(self) -> float:
        """Share of what may be claimed as a rule: less after the engine ran out of memory, none without Postgres.

        Nor as long as Postgres does not know the worker, or takes it for dead. What came without a message takes part
        of it.
        """
        return max(0.0, self._share - len(self._direct) / self._slots)

    @property
    def _share(self) -> float:
        return 0.0 if OUTAGE.is_on or not self._beats.known else self._stages.memory

    def _free(self) -> int:
        """Return how many parts may begin without a message."""
        return math.floor(self._slots * self._share) - len(self._running)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Parts committed in the last minute, share of what may be claimed as a rule, KV cache in use (0 to 1)."""
        figures: dict[str, Any] = {
            "parts-per-minute": self._each_second[-1] - self._each_second[0],
            "share-of-budget": round(self.room, 2),
        }
        if self._engine_seen and self._engine_seen.kv_used is not None:
            figures["kv-cache-used"] = round(self._engine_seen.kv_used, 3)
        return figures

    async def lost(self) -> None:
        """Return once the engine has died, of a part or of itself; never for a worker without one."""
        with suppress(EngineDeadError):
            while True:
                self._each_second.append(self._committed)
                if self._stages.engine and self._engine_seen:
                    self._engine_seen.saw(self._stages.engine.load(), self._stages.memory)
                await asyncio.sleep(_LOOK_S)
        if batcher := self._stages.batcher:  # the pool may cancel the parts before they find out
            batcher.found_dead()
            self._died_on.update(batcher.died_on or ())

    async def stop(self) -> None:
        """Stop the engine and the decoders, sign off, close every connection."""
        await self._resources.aclose()
