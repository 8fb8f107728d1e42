"""The parts that this worker runs, each on its way: claimed, run through its stage, committed or given back.

A claim comes with a message or, while Redis does not answer, straight from Postgres: by lane and age, without turns and
shares. Suspects wait for Redis, and Celery and Flower see nothing of what came without a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from typing import Any, TypeVar
from uuid import UUID

import structlog
from celery.exceptions import Ignore, Retry
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import tracing
from pecia_schemas.connecting import name_of, outage_suppressed
from pecia_schemas.states import Stage
from pecia_workers.batching import meter
from pecia_workers.engines.base import EngineDeadError
from pecia_workers.ledger.commit import ClaimedPart, Cut, Failed, Finished, Outcome
from pecia_workers.ledger.ledger import Ledger, PartLostError
from pecia_workers.ledger.recovery import relay_due
from pecia_workers.queue.bus import Bus
from pecia_workers.tracing import about_part, ended, processing
from pecia_workers.worker.attempts import PartCancelledError, PartFailedError, clocked, end
from pecia_workers.worker.runner import RuntimeLostError, task_arguments, task_result
from pecia_workers.worker.stages import Stages

log = structlog.get_logger(__name__)

_PUBLISHED_AT_ONCE = 1_000
_LOOK_S = 1.0

R = TypeVar("R")


def unnoticed(*_told: Any) -> None:
    """Ignore what a part is, or its exact price."""


class Parts:
    """Runs parts of the given stages, all on one loop; `Runtime` makes what they need before the first one begins."""

    _bus: Bus
    _database: AsyncEngine
    _ledger: Ledger
    _stages: Stages
    _direct: DirectClaims

    def __init__(self, stages: Collection[Stage]) -> None:
        self._served = frozenset(stages)
        self._claimed: set[UUID] = set()
        """Parts from the moment their claim is sent to their commit: this worker asks for each but once."""
        self._running: dict[UUID, tuple[ClaimedPart, asyncio.Task[None]]] = {}
        self._cancelled: set[UUID] = set()
        self._died_on: set[UUID] = set()
        self._committed = 0

    async def run(
        self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None] = unnoticed
    ) -> Mapping[str, Any] | None:
        """Run one part to its commit, as `PartRuntime` says. Raises `RuntimeLostError` if the engine is gone."""
        try:
            return task_result(await self._run(part, deaths=deaths, begun=begun))
        except Ignore:
            if await self._ledger.withdrawn(part):
                raise PartCancelledError from None
            raise

    async def _run(self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None]) -> Outcome:
        await self._direct.idle()
        if part in self._claimed:
            raise Ignore("it runs here already, claimed without a message")
        self._claimed.add(part)
        try:
            asked = time_ns()
            claimed = await _finish(self._ledger.claim(part, deaths=deaths))
            if claimed is None:
                raise Ignore("nothing to do: done, cancelled or another worker's")
            begun(task_arguments(claimed))
            return await self._run_claimed(claimed, asked)
        finally:
            self._claimed.discard(part)

    async def _claim_waiting(self, slots: int) -> list[ClaimedPart]:
        parts = await self._ledger.claim_waiting(self._served, slots, without=self._claimed)
        self._claimed.update(part.id for part in parts)
        return parts

    async def _run_without_message(self, part: ClaimedPart) -> None:
        """Run a part that Celery does not hear of; whatever keeps it from its end, it goes back."""
        try:
            await self._run_claimed(part, time_ns())
        except (Ignore, Retry, PartFailedError):
            pass
        except asyncio.CancelledError:
            await self.give_back([part.id])
        except Exception as error:  # noqa: BLE001  a fault of ours: the part must not suffer for it
            log.error("thrown_out", part=str(part.id), error=type(error).__name__)  # noqa: TRY400  it quotes data
            await asyncio.sleep(_LOOK_S)
            await self.give_back([part.id])
        finally:
            self._claimed.discard(part.id)

    async def _run_claimed(self, part: ClaimedPart, asked: int) -> Outcome:
        with about_part(part.job_id, part.id, part.attempt), clocked(part.id), processing(part, asked):
            meter.begun(part)
            began = monotonic()
            try:
                outcome = await self._work(part)
                with tracing.span("commit"):
                    written = await _finish(self._ledger.commit(Finished(part=part, outcome=outcome)))
            finally:
                self._stages.cache.ended(part.id)
            outcome, committed = written or outcome, written is not None
            meter.ended(part, outcome, monotonic() - began, committed=committed)
            ended(outcome, committed=committed)
            if not committed:
                raise Ignore("the part was cancelled or taken over meanwhile")
            if isinstance(outcome, Cut) or part.stage is Stage.CAPTION:
                await self._publish_parts()
            if isinstance(outcome, Failed):  # Celery, and so Flower, shows it by its code
                failed = PartFailedError(outcome.failure.code)
                if outcome.retry_in is None:
                    raise failed
                raise Retry(exc=failed, when=outcome.retry_in.total_seconds())
            self._committed += 1
            return outcome

    async def _work(self, part: ClaimedPart) -> Outcome:
        """Run the part's stage, visible to cancellation meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  the pool runs parts as tasks
        self._running[part.id] = (part, task)
        try:
            return await self._stages.run(part)
        except asyncio.CancelledError:
            # Old news, if the job was retried since: then the part is still ours, and goes on elsewhere.
            if part.id in self._cancelled and not await self._ledger.give_back([part.id]):
                raise Ignore("the job was cancelled") from None
            raise
        except PartLostError:
            raise Ignore("the part was cancelled or taken over meanwhile") from None
        except EngineDeadError as error:
            died_on = self._stages.batcher.died_on if self._stages.batcher else None
            # While the worker's own engine lives, it was the fallback that died, on this part.
            self._died_on.update([part.id] if died_on is None else died_on)
            raise RuntimeLostError("the engine is gone") from error
        finally:
            del self._running[part.id]
            self._cancelled.discard(part.id)

    async def _publish_parts(self) -> None:
        """Publish what ingest has cut, a summary that waited for this segment, a suspect; the relay does the rest."""
        with suppress(RedisError, OSError), outage_suppressed():
            await relay_due(self._database, self._bus, limit=_PUBLISHED_AT_ONCE)

    def _cancel_job(self, job_id: UUID) -> None:
        for part, task in self._running.values():
            if part.job_id == job_id:
                self._cancelled.add(part.id)
                task.cancel()

    async def give_back(self, parts: Collection[UUID]) -> None:
        """Queue again, in Postgres, what this worker holds of these parts and will not finish.

        Those that the engine died on count it as a death, or one page could take down engine after engine; their
        messages are the relay's.
        """
        died_on = self._died_on.intersection(parts)
        await self._ledger.give_back(parts, died_on=died_on)
        if died_on:
            await self._publish_parts()

    async def overdue(self, part: UUID) -> None:
        """Queue a part elsewhere that has been held for too long; it counts as a death."""
        self._died_on.add(part)
        await self.give_back([part])
        self._died_on.discard(part)

    async def revoked(self, part: UUID) -> None:
        """End a part that an operator revoked through Celery."""
        await self._ledger.revoke(part)


async def _finish(work: Coroutine[Any, Any, R]) -> R:
    """Await work that goes on even if the caller is cancelled meanwhile.

    What is claimed must be known, to be given back; and a result that waits for Postgres is not thrown away.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class DirectClaims:
    """Looks after Redis every second, and begins waiting parts while it does not answer."""

    def __init__(
        self,
        bus: Bus,
        *,
        claim: Callable[[int], Awaitable[Sequence[ClaimedPart]]],
        free: Callable[[], int],
        run: Callable[[ClaimedPart], Awaitable[None]],
    ) -> None:
        """`claim` claims up to so many, `free` tells how many may begin, `run` runs one to its end without raising."""
        self._bus = bus
        self._claim = claim
        self._claiming = asyncio.Lock()
        self._free = free
        self._run = run
        self._running: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._running)

    def start(self) -> None:
        """Begin to look after Redis."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Begin nothing more, and cancel what runs: `run` gives it back."""
        if self._looking:
            await end(self._looking)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def idle(self) -> None:
        """Return once no claim is under way: a message's claim beside it could take the same part."""
        if self._claiming.locked():
            async with self._claiming:
                pass

    async def _look(self) -> None:
        away = False
        while True:
            await asyncio.sleep(_LOOK_S)
            was_away, away = away, not await self._bus.answers()
            if away != was_away:
                log.warning("claiming_directly" if away else "claiming_through_redis", running=len(self))
            try:
                while away and await self._begin():
                    pass
            except Exception as error:  # noqa: BLE001  the next look may succeed, and nothing else claims now
                log.warning("direct_claim_failed", error=name_of(error))

    async def _begin(self) -> bool:
        """Begin what fits; return whether more may."""
        if (slots := self._free()) <= 0:
            return False
        async with self._claiming:
            parts = await self._claim(slots)
        for part in parts:
            task = asyncio.ensure_future(self._run(part))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        await asyncio.sleep(0)  # they begin, and so take their room
        return bool(parts)
