"""Run one worker: claim parts, read them, commit their results. Owns stores, engine, decoders and heartbeat.

A part is claimed, run through its stage, committed or requeued. A claim follows a message or, while Redis does not
answer, is made straight in Postgres: by lane and age, without turns and shares. Suspects wait for Redis, and Celery and
Flower do not see parts claimed without a message.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from time import monotonic, time_ns
from typing import Any
from uuid import UUID

import structlog
from celery.exceptions import Ignore, Retry
from redis.exceptions import RedisError

from pecia_schemas import tracing
from pecia_schemas.bundles import Split
from pecia_schemas.connecting import name_of, outage_suppressed
from pecia_schemas.results import Page, Segment, Summary
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import ENGINELESS, Stage
from pecia_schemas.threads import end, finish
from pecia_workers.batching.batcher import EngineWatch, Priced
from pecia_workers.engines.profiles import with_profile
from pecia_workers.engines.registry import create_engine
from pecia_workers.ledger.database import OUTAGE, open_database, retry_unavailable
from pecia_workers.ledger.ledger import Ledger, PartLostError
from pecia_workers.ledger.recovery import pardon
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity
from pecia_workers.observability import metrics
from pecia_workers.observability.tracing import about_part, ended, processing
from pecia_workers.protocol.base import Budget, EngineDeadError, EngineDistrustedError
from pecia_workers.protocol.parts import (
    Backoff,
    ClaimedPart,
    Cut,
    Done,
    Failed,
    Finished,
    Outcome,
    PartCancelledError,
    PartFailedError,
    Postponed,
    RuntimeLostError,
    StorageUnavailableError,
    clocked,
    worked_longer,
)
from pecia_workers.queue.bus import Bus, DirectClaims
from pecia_workers.upkeep.loop import relay_due, workers_watched
from pecia_workers.worker.stages import Stages

log = structlog.get_logger(__name__)

_PUBLISHED_AT_ONCE = 1_000
_TURN_EVERY_S = 1.0
_LOAD_EVERY_S = 1.0
_REQUEUE_AFTER_FAULT_S = 1.0
_END_S = 3.0
_SIGHT_S = 10.0
_RATE_S = 60
_CLAIMED_AGO = timedelta(seconds=30)
"""Age of a claim at which its reply has arrived or is lost."""

_REST = Backoff(first_s=1.0, longest_s=60.0)


def unnoticed(*_news: Any) -> None:
    """Ignore a part's description or exact cost."""


class _Storage:
    """State of this worker's disk and the payload store: after a failure the worker claims nothing for a while.

    Each pause is twice as long as the last, until a part ends again.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    @property
    def rests(self) -> bool:
        return monotonic() < self._until

    def failed(self, error: StorageUnavailableError) -> None:
        if not self.rests:  # else others that ran beside it have said so
            self._failures += 1
            rest_s = _REST.wait_s(self._failures)
            self._until = monotonic() + rest_s
            check = "PECIA_SPOOL_DIR, PECIA_PAYLOAD_URL"
            log.error("storage_unavailable", error=str(error), check=check, rest_s=rest_s)

    def worked(self) -> None:
        self._failures = 0


class Runtime:
    """Runs parts of the given stages. Everything happens on the loop that `start` runs on."""

    stages = Stages
    """Runs a part through its stage."""
    name: str
    """The worker's name in Postgres and Redis, once it has started."""

    def __init__(
        self,
        settings: WorkerSettings,
        stages: Collection[Stage],
        *,
        redis_serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """`redis_serves()`: whether parts arrive through Redis; otherwise they are claimed from Postgres."""
        self._redis_serves = redis_serves
        self._served = frozenset(stages)
        self._claimed: set[UUID] = set()
        """Parts from the sending of their claim to their commit, so that this worker claims each only once."""
        self._held: dict[UUID, ClaimedPart] = {}
        """Parts from the reply to their claim to their commit."""
        self._taken = 0
        """How often this worker was declared dead."""
        self._running: dict[UUID, tuple[ClaimedPart, asyncio.Task[None]]] = {}
        self._cancelled: set[UUID] = set()
        self._died_on: set[UUID] = set()
        self._overdue: set[UUID] = set()
        """Parts that still run here after they were given up."""
        self._requeue_reason = "given_back"
        self._committed = 0
        self._storage = _Storage()
        self._settings = settings
        self._resources = AsyncExitStack()
        self._turned_at = monotonic()
        self._engine_seen: EngineWatch | None = None
        self._each_second: deque[int] = deque([0], maxlen=_RATE_S + 1)
        """Count of parts committed since the start, as of each of the last seconds."""

    async def start(self, priced: Priced = unnoticed) -> Budget:
        """Open the stores, load the engine if a stage needs one, register; return the budget for claims.

        `priced` is called with each part's actual cost, in tokens.
        """
        engine = None
        if self._served - ENGINELESS:
            captions = Stage.READ not in self._served
            self._settings = await asyncio.to_thread(with_profile, self._settings, captions=captions)
            engine = create_engine(self._settings)
        settings = self._settings
        identity = WorkerIdentity.new("engine" if engine else "ingest", self._served, engine)
        self.name = identity.name
        self._bus = Bus(settings.redis_url.get_secret_value(), window=settings.window)
        self._resources.push_async_callback(self._bus.close)
        self._database = open_database(settings.database_url.get_secret_value())
        self._resources.push_async_callback(self._database.dispose)
        self._ledger = Ledger(self._database, self.name, announce=self._bus.announce, keys=settings.keyring)
        self._resources.push_async_callback(self._ledger.idle, limit_s=_END_S)
        self._stages = self.stages(settings, identity, engine, self._ledger, self._database, self._resources)
        budget = await self._stages.start(priced)
        self._slots = min(budget.slots, settings.max_in_flight or budget.slots)
        if engine:
            self._engine_seen = EngineWatch(engine.capabilities.name)
            identity = identity.running(engine)
        await self._go_on_duty(identity)
        return budget

    async def _go_on_duty(self, identity: WorkerIdentity) -> None:
        """Register, and start the heartbeat, the listener for cancellations, upkeep, and direct claims."""
        settings, enter = self._settings, self._resources.enter_async_context
        self._in_background(self._keep_turning())
        lost = partial(asyncio.get_running_loop().call_soon_threadsafe, self._taken_for_dead)
        url, lease = settings.database_url.get_secret_value(), settings.lease
        self._beats = await enter(Heartbeat(url, identity, lease=lease, alive=self._is_turning, on_lost=lost))
        self._in_background(self._bus.hear_cancelled(self._cancel_job))
        await enter(workers_watched(self._database, self._bus, settings))
        self._in_background(self._keep_sight())
        self._direct = DirectClaims(
            redis_serves=self._redis_serves,
            claim=partial(self._ledger.claim_waiting, self._served, without=self._claimed),
            claimed=self._claimed,
            free=self._free,
            run=self._run_without_message,
        )
        self._resources.push_async_callback(self._direct.stop)
        self._in_background(self._direct.keep_claiming())

    def _in_background(self, work: Awaitable[Any]) -> None:
        self._resources.push_async_callback(end, asyncio.ensure_future(work))

    async def _keep_turning(self) -> None:
        limit_s = (self._settings.part_timeout + self._settings.lease).total_seconds()
        while True:
            self._turned_at = monotonic()
            for part in worked_longer(limit_s):
                if part in self._running and part not in self._overdue:
                    self._overdue.add(part)
                    self._running[part][1].cancel()
                    self._in_background(self._give_up(part))
            await asyncio.sleep(_TURN_EVERY_S)

    def _is_turning(self) -> bool:
        """Return whether the loop makes progress; a part may block it until its timeout. Callable on any thread."""
        return monotonic() - self._turned_at < self._settings.part_timeout.total_seconds()

    async def _keep_sight(self) -> None:
        """Requeue parts that Postgres lists here and this process does not know: the reply to their claim was lost."""
        while True:
            await asyncio.sleep(_SIGHT_S)
            try:
                unseen = await self._ledger.running(age=_CLAIMED_AGO) - self._claimed
                if unseen:
                    log.warning("parts_unseen", parts=len(unseen))
                    await self._ledger.requeue(unseen, unpublish=True)
            except Exception as error:  # noqa: BLE001  the next look may succeed, and there is no other
                log.info("look_failed", error=name_of(error))

    def _taken_for_dead(self) -> None:
        """Cancel all parts, which others run now, and undo the deaths that were counted on them."""
        log.error("taken_for_dead", parts=len(self._running))
        self._taken += 1
        for _, task in self._running.values():
            task.cancel()
        if self._held:
            self._pardon(list(self._held.values()))

    def _pardon(self, lost: Sequence[ClaimedPart]) -> None:
        self._in_background(retry_unavailable(partial(pardon, self._database, lost)))

    @property
    def room(self) -> float:
        """Share of the usual budget that may be claimed: less after the engine ran out of memory, 0 without Postgres.

        Also 0 for a while after a full disk or an outage of the payload store, and while the worker is not registered
        or declared dead. Parts claimed without a message use some of it.
        """
        return max(0.0, self._share - len(self._direct) / self._slots)

    @property
    def _share(self) -> float:
        works = self._beats.known and not OUTAGE.is_on and not self._storage.rests
        return self._stages.memory if works else 0.0

    def _free(self) -> int:
        """Return how many parts may begin without a message."""
        return math.floor(self._slots * self._share) - len(self._running)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Parts committed in the last minute, share of the budget that may be claimed, KV cache in use (0 to 1)."""
        figures: dict[str, Any] = {
            "parts-per-minute": self._each_second[-1] - self._each_second[0],
            "share-of-budget": round(self.room, 2),
        }
        if self._engine_seen and self._engine_seen.kv_used is not None:
            figures["kv-cache-used"] = round(self._engine_seen.kv_used, 3)
        return figures

    async def lost(self) -> None:
        """Wait until the engine has died, on a part or without one; forever on a worker without an engine."""
        with suppress(EngineDeadError):
            while True:
                self._each_second.append(self._committed)
                if self._stages.engine and self._engine_seen:
                    self._engine_seen.saw(self._stages.engine.load(), self._stages.memory)
                await asyncio.sleep(_LOAD_EVERY_S)
        if batcher := self._stages.batcher:  # the pool may cancel the parts before they find out
            batcher.found_dead()
            self._died_on.update(batcher.died_on or ())

    async def stop(self) -> None:
        """Stop the engine and the decoders, mark the worker stopped, close every connection."""
        await self._resources.aclose()

    async def run(
        self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None] = unnoticed
    ) -> Mapping[str, Any] | None:
        """Run one part to its commit, and return its result event. Skips it if more than `deaths` workers died on it.

        `begun` is called once the part is claimed in Postgres, with its event: ids, enumerations, numbers.
        Raises `celery.exceptions.Ignore` if there is nothing to do, `PartCancelledError` if it was cancelled, `Retry`
        if it failed and will be tried again, `PartFailedError` if it failed for good, `RuntimeLostError` if the engine
        is gone. After any other exception, `StorageUnavailableError` for one, the part is requeued.
        """
        await self._direct.idle()
        with suppress(Ignore):
            if part not in self._claimed:  # else it runs here already, claimed without a message
                self._claimed.add(part)
                try:
                    claimed_at, taken = time_ns(), self._taken
                    # a claim must be known, to be requeued
                    if claimed := await finish(self._ledger.claim(part, deaths=deaths)):
                        if taken != self._taken:  # while the answer was on its way
                            self._pardon([claimed])
                        begun(task_arguments(claimed))
                        return task_result(await self._run_claimed(claimed, claimed_at))
                finally:
                    self._claimed.discard(part)
        if await self._ledger.withdrawn(part):
            raise PartCancelledError
        raise Ignore("nothing to do: done, taken over, another worker's or running here without a message")

    async def _run_without_message(self, part: ClaimedPart) -> None:
        """Run a part without Celery; requeue it if anything prevents its end."""
        try:
            await self._run_claimed(part, time_ns())
        except (Ignore, Retry, PartFailedError):
            pass
        except (asyncio.CancelledError, StorageUnavailableError):
            await self.requeue([part.id])
        except Exception as error:  # noqa: BLE001  a fault of ours: the part must not suffer for it
            log.error("thrown_out", part=str(part.id), error=type(error).__name__)  # noqa: TRY400  it quotes data
            await asyncio.sleep(_REQUEUE_AFTER_FAULT_S)
            await self.requeue([part.id])
        finally:
            self._claimed.discard(part.id)

    async def _run_claimed(self, part: ClaimedPart, claimed_at: int) -> Outcome:
        with about_part(part.job_id, part.id, part.attempt), clocked(part.id), processing(part, claimed_at):
            began = monotonic()
            self._held[part.id] = part
            try:
                outcome = await self._work(part)
                with tracing.span("commit"):  # what waits for Postgres is not thrown away
                    written = await finish(self._ledger.commit(Finished(part=part, outcome=outcome)))
            finally:
                del self._held[part.id]
                self._stages.cache.ended(part.id)
            outcome, committed = written or outcome, written is not None
            ended(part, outcome, monotonic() - began, committed=committed)
            if not committed:
                raise Ignore("the part was cancelled or taken over meanwhile")
            if isinstance(outcome, Cut) or part.may_release:
                await self._publish_parts()
            if isinstance(outcome, Postponed):
                raise Retry(when=outcome.retry_in.total_seconds())
            if isinstance(outcome, Failed):  # Celery, and so Flower, shows it by its code
                failed = PartFailedError(outcome.failure.code)
                if outcome.retry_in is None:
                    raise failed
                raise Retry(exc=failed, when=outcome.retry_in.total_seconds())
            self._committed += 1
            return outcome

    async def _work(self, part: ClaimedPart) -> Outcome:
        """Run the part's stage; cancellations reach it meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  the pool runs parts as tasks
        self._running[part.id] = (part, task)
        try:
            outcome = await self._stages.run(part)
        except StorageUnavailableError as error:
            self._storage.failed(error)
            raise
        except asyncio.CancelledError:
            # Old news, if the job was retried since: then the part is still ours, and goes on elsewhere.
            if part.id in self._cancelled and not await self._ledger.requeue([part.id]):
                raise Ignore("the job was cancelled") from None
            raise
        except PartLostError:
            raise Ignore("the part was cancelled or taken over meanwhile") from None
        except EngineDistrustedError as error:
            self._requeue_reason = "canary_failed"
            raise RuntimeLostError(str(error)) from error
        except EngineDeadError as error:
            died_on = self._stages.batcher.died_on if self._stages.batcher else None
            # While the worker's own engine lives, it was the fallback that died, on this part.
            self._died_on.update([part.id] if died_on is None else died_on)
            raise RuntimeLostError("the engine is gone") from error
        else:
            self._storage.worked()
            return outcome
        finally:
            del self._running[part.id]
            self._cancelled.discard(part.id)
            self._overdue.discard(part.id)

    async def _publish_parts(self) -> None:
        """Publish the parts that ingest made, released parts and suspects; the relay publishes all others."""
        with suppress(RedisError, OSError), outage_suppressed():
            await relay_due(self._database, self._bus, limit=_PUBLISHED_AT_ONCE)

    def _cancel_job(self, job_id: UUID) -> None:
        for part, task in self._running.values():
            if part.job_id == job_id:
                self._cancelled.add(part.id)
                task.cancel()

    async def requeue(self, parts: Collection[UUID]) -> None:
        """Requeue, in Postgres, those of the parts that this worker holds and will not finish.

        Parts that the engine died on count a death, or one page could take down engine after engine. The relay
        publishes them, and all parts while Redis is unavailable; the pool puts the others back into Redis.
        """
        died_on = self._died_on.intersection(parts)
        unpublish = not self._redis_serves()
        await self._ledger.requeue(parts, died_on=died_on, reason=self._requeue_reason, unpublish=unpublish)
        if died_on:
            await self._publish_parts()

    async def _give_up(self, part: UUID) -> None:
        """Requeue a part that does not end, not even when cancelled; it counts a death."""
        metrics.OVERDUE_PARTS.inc()
        log.error("part_overdue", part=str(part))
        self._died_on.add(part)
        await self.requeue([part])
        self._died_on.discard(part)

    async def revoked(self, part: UUID) -> None:
        """End a part that an operator revoked through Celery."""
        await self._ledger.revoke(part)


_NUMBERED = {Stage.READ: "page", Stage.CAPTION: "segment"}


def task_arguments(part: ClaimedPart) -> dict[str, Any]:
    """Describe a claimed part, page and job first, since lists of tasks show forty characters."""
    about: dict[str, Any] = {}
    if part.stage in _NUMBERED:
        about[_NUMBERED[part.stage]] = part.ordinal + 1
    about |= {"job": str(part.job_id), "lane": str(part.lane), "attempt": part.attempt}
    if document_type := part.stored_task.get("document_type"):
        about["document_type"] = document_type
    return about


def task_result(outcome: Outcome) -> dict[str, Any] | None:
    """Describe the outcome of a part that did not fail."""
    match outcome:
        case Done(content=Split() as split):
            return {"documents": len(split.documents)}
        case Done(content=(Page() | Segment() | Summary()) as content):
            prompt, output = content.usage.prompt, content.usage.output
            return {"verdict": str(content.verdict), "prompt_tokens": prompt, "output_tokens": output}
        case Cut(parts=parts):
            return {"parts": len(parts)}
    return None
