"""The loop that runs the steps of upkeep, and goes on whatever is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog
from redis.exceptions import RedisError

from pecia_schemas.connecting import is_transient, name_of
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.publication import forget_flows
from pecia_workers.ledger.workers import forget_gone
from pecia_workers.metrics import PULSE, UPKEEP_ACTIONS, UPKEEP_FAILURES
from pecia_workers.service import serve
from pecia_workers.upkeep.retention import retention_steps
from pecia_workers.upkeep.steps import Judging, Measurement, Reconciler, Stores, expire, open_stores, relay
from pecia_workers.upkeep.watching import hand_back_of_gone, look_every_s

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[int]]


class Upkeep:
    """Relays, reconciles and expires every `upkeep_interval`, judges workers, until it is stopped."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._due = asyncio.Event()
        """Set when there is something to publish before the next round is due, or nothing more at all."""
        self._outages: set[str] = set()

    def stop(self) -> None:
        """End after the step under way."""
        self._stopping.set()
        self._due.set()

    async def run(self) -> None:
        """Keep at it until `stop`, also while Redis or Postgres is away."""
        settings = self._settings
        every_s = settings.upkeep_interval.total_seconds()
        async with open_stores(settings) as stores, asyncio.TaskGroup() as loops:
            # Apart from what needs Redis: one that hangs must not interrupt the watch.
            judging = {"orphans": self._then_at_once(Judging(stores, settings))}
            loops.create_task(self._repeat(judging, self._stopping, look_every_s(settings)))
            loops.create_task(self._repeat(_duties(stores, settings), self._due, every_s))
            # What may take long, and must keep no part waiting.
            ends = {name: partial(step, stores.database) for name, step in retention_steps(settings).items()}
            loops.create_task(self._repeat(ends, self._stopping, every_s))

    def _then_at_once(self, step: Step) -> Step:
        async def run() -> int:
            if done := await step():
                self._due.set()
            return done

        return run

    async def _repeat(self, steps: Mapping[str, Step], waking: asyncio.Event, every_s: float) -> None:
        """Run the steps, one after the other, again and again: after `every_s`, or when woken."""
        known: set[str] = set()
        while not self._stopping.is_set():
            outages: set[str] = set()
            for name, step in steps.items():
                if self._stopping.is_set():
                    return
                if outage := await self._run(name, step):
                    outages.add(outage)
            for outage in (known - outages) & self._outages:
                self._outages.discard(outage)
                log.info("upkeep_recovered", outage=outage)
            known = outages
            with suppress(TimeoutError):
                await asyncio.wait_for(waking.wait(), every_s)
            if waking is self._due:
                waking.clear()

    async def _run(self, name: str, step: Step) -> str | None:
        """Run one step; return the code of what kept it from its work. An outage is told once."""
        try:
            if count := await step():
                UPKEEP_ACTIONS.labels(name).inc(count)
                log.info("upkeep_step", step=name, count=count)
        except (RedisError, OSError) as error:
            return self._outage("redis_unavailable", error)
        except Exception as error:  # noqa: BLE001  the other steps must go on
            code = "database_unavailable" if is_transient(error) else f"{name}_failed"
            return self._outage(code, error)
        finally:
            PULSE.beat()
        return None

    def _outage(self, code: str, error: Exception) -> str:
        UPKEEP_FAILURES.labels(code).inc()
        if code not in self._outages:
            log.warning("upkeep_outage", outage=code, error=name_of(error))
            self._outages.add(code)
        return code


def _duties(stores: Stores, settings: WorkerSettings) -> dict[str, Step]:
    # In the order in which a part passes them: what one of them frees, the last one publishes in the same round.
    seen = {"measure": partial(Measurement(window=settings.window), stores)} if settings.metrics_port else {}
    gone = {"forget": partial(forget_gone, stores.database, age=settings.keep_workers)}
    return {
        "taken": partial(hand_back_of_gone, stores.database, stores.redis),
        "expire": partial(expire, stores),
        **(gone if settings.keep_workers else {}),
        "flows": partial(forget_flows, stores.database),
        "reconcile": partial(Reconciler(), stores),
        "relay": partial(relay, stores),
        **seen,
    }


def run_upkeep(settings: WorkerSettings) -> None:
    """Run upkeep until SIGTERM or SIGINT."""
    serve("upkeep", Upkeep, settings)
