"""The loop of upkeep and its steps, and the steps that workers run while no upkeep process lives.

A step is short, changes nothing if nothing is due, and returns how many items it changed. Outages do not end the loop.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import tracing
from pecia_schemas.connecting import is_transient, name_of
from pecia_schemas.messages import CANCEL_CHANNEL, PartMessage
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import JobState, Lane, Stage
from pecia_schemas.threads import end
from pecia_workers.ledger import publication, recovery, standing
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_database
from pecia_workers.ledger.retention import retention_steps
from pecia_workers.ledger.workers import for_ever, forget_gone, stand_in
from pecia_workers.observability import metrics
from pecia_workers.observability.metrics import LIVENESS
from pecia_workers.processes.service import serve
from pecia_workers.protocol.parts import NO_FLOW
from pecia_workers.queue import lists
from pecia_workers.queue.bus import Bus

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[int]]

_BATCH = 1_000
GRACE = timedelta(seconds=5)
"""Age up to which a published part counts as in transit and is left alone."""
LATELY = timedelta(seconds=20)
"""Time since a worker's end in which it may have lost parts that neither Redis holds nor Postgres lists as running."""
_LONGEST_WITHOUT_COMPARISON_S = 300.0
_SECOND_LOOK_S = 1.0
_SHARE_OF_COMPARING = 5
"""Least pause between comparisons, in multiples of the last one's duration."""
_MEASURE_EVERY_S = 5.0
_ROLES = ("ingest", "engine", "webhooks", "upkeep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores that the steps work on."""

    database: AsyncEngine
    redis: Redis
    bus: Bus


@asynccontextmanager
async def open_stores(settings: WorkerSettings) -> AsyncIterator[Stores]:
    """Yield the stores in the settings, for the running loop."""
    redis_url = settings.redis_url.get_secret_value()
    stores = Stores(
        database=open_database(settings.database_url.get_secret_value(), timeout=LONG_STATEMENT_TIMEOUT),
        redis=lists.connect(redis_url),
        bus=Bus(redis_url, window=settings.window),
    )
    try:
        yield stores
    finally:
        await stores.bus.close()
        stores.redis.close()
        await stores.database.dispose()


class Upkeep:
    """Relays, reconciles and expires every `upkeep_interval`, and judges workers, until stopped."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._due = asyncio.Event()
        """Set to wake the relay before its next round, and to stop it."""
        self._outages: set[str] = set()

    def stop(self) -> None:
        """End after the current step."""
        self._stopping.set()
        self._due.set()

    async def run(self) -> None:
        """Run until `stop`, also while Redis or Postgres is unavailable."""
        settings = self._settings
        every_s = settings.upkeep_interval.total_seconds()
        async with open_stores(settings) as stores, asyncio.TaskGroup() as loops:
            judge = recovery.Judge(stores.database, settings, stores.bus.announce)

            async def take_back() -> int:
                if done := await judge.judge():
                    self._due.set()
                return done

            # Apart from steps that need Redis: a hanging step must not interrupt the watch.
            loops.create_task(self._repeat({"orphans": take_back}, self._stopping, judge.every_s))
            loops.create_task(self._repeat(_duties(stores, settings), self._due, every_s))
            # What may take long, and must keep no part waiting.
            ends = {name: partial(step, stores.database) for name, step in retention_steps(settings).items()}
            loops.create_task(self._repeat(ends, self._stopping, every_s))

    async def _repeat(self, steps: Mapping[str, Step], waking: asyncio.Event, every_s: float) -> None:
        """Run the steps repeatedly, one after the other: every `every_s`, or when woken."""
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
        """Run one step; return the error code if it failed. An outage is logged once."""
        try:
            count = await step()
        except Exception as error:  # noqa: BLE001  the other steps must go on
            code = "database_unavailable" if is_transient(error) else f"{name}_failed"
            if isinstance(error, RedisError | OSError):
                code = "redis_unavailable"
            metrics.UPKEEP_FAILURES.labels(code).inc()
            if code not in self._outages:
                log.warning("upkeep_outage", outage=code, error=name_of(error))
                self._outages.add(code)
            return code
        finally:
            LIVENESS.beat()
        if count:
            metrics.UPKEEP_ACTIONS.labels(name).inc(count)
            log.info("upkeep_step", step=name, count=count)
        return None


def _duties(stores: Stores, settings: WorkerSettings) -> dict[str, Step]:
    # In the order in which a part passes them: what one of them frees, the last one publishes in the same round.
    seen = {"measure": partial(Measurement(window=settings.window), stores)} if settings.metrics_port else {}
    gone = {"forget": partial(forget_gone, stores.database, age=settings.keep_workers)}
    return {
        "expire": partial(expire, stores),
        **(gone if settings.keep_workers else {}),
        "flows": partial(publication.forget_flows, stores.database),
        "reconcile": partial(Reconciler(), stores),
        "relay": partial(relay, stores),
        **seen,
    }


def run_upkeep(settings: WorkerSettings) -> None:
    """Run upkeep until SIGTERM or SIGINT."""
    asyncio.run(serve("upkeep", Upkeep, settings))


async def expire(stores: Stores) -> int:
    """End expired jobs, and notify the workers that run their parts."""

    async def notify(expired: Sequence[UUID]) -> None:
        await stores.bus.announce(dict.fromkeys(expired, JobState.EXPIRED))
        pipe = stores.redis.pipeline(transaction=False)
        for job_id in expired:
            pipe.publish(CANCEL_CHANNEL, str(job_id))
        with suppress(RedisError, OSError):  # the fence refuses a result that comes too late
            await asyncio.to_thread(pipe.execute)

    return await recovery.expire_jobs(stores.database, limit=_BATCH, notify=notify)


async def relay(stores: Stores) -> int:
    """Publish parts that are due and not in Redis: submitted without Redis, retried, or lost."""
    total, relayed = 0, _BATCH
    while relayed >= _BATCH:
        relayed = await relay_due(stores.database, stores.bus, limit=_BATCH)
        total += relayed
    return total


async def find_lost(stores: Stores, *, before: datetime) -> set[str]:
    """Return the parts that were published before that time, are queued, and are not in Redis."""
    present = await asyncio.to_thread(lists.held_parts, stores.redis)
    return set(await publication.find_missing(stores.database, present, before))


class Reconciler:
    """Finds parts that are queued in Postgres and not in Redis: lost by Redis, or in transit to a worker that died.

    Two counts show whether anything can be missing; only then, after an outage of Redis or the end of a worker, and
    every five minutes, all ids are compared. What is missing at two looks is published again: a part is missing once
    while a worker takes it from Redis and has not yet claimed it in Postgres.
    """

    def __init__(self) -> None:
        self._not_before = 0.0
        self._at_latest = time.monotonic() + _LONGEST_WITHOUT_COMPARISON_S
        self._missing: set[str] = set()

    async def __call__(self, stores: Stores) -> int:
        """Mark lost parts for the relay; return how many."""
        try:
            # Redis first: a commit between the two counts lowers only the second.
            held = (await asyncio.to_thread(lists.count_waiting, stores.redis)).total()
        except (RedisError, OSError):
            self._at_latest = 0.0
            raise
        expected = await publication.expected_in_redis(stores.database, grace=GRACE, lately=LATELY)
        began = time.monotonic()
        in_doubt = held < expected.parts or expected.in_doubt or self._missing
        if began < self._at_latest and (not in_doubt or began < self._not_before):
            return 0
        await asyncio.to_thread(lists.mend_turns, stores.redis)
        missing = await find_lost(stores, before=expected.before)
        lost = missing & self._missing
        await publication.unpublish(stores.database, lost, before=expected.before)
        self._missing = missing - lost
        ended = time.monotonic()
        self._not_before = ended + max(_SECOND_LOOK_S, (ended - began) * _SHARE_OF_COMPARING)
        self._at_latest = ended + _LONGEST_WITHOUT_COMPARISON_S
        return len(lost)


class Measurement:
    """A step of upkeep that only measures, by a few short queries, at most every five seconds."""

    def __init__(self, *, window: int) -> None:
        self._window = window
        self._not_before = 0.0

    async def __call__(self, stores: Stores) -> int:
        """Measure, and return 0."""
        if time.monotonic() < self._not_before:
            return 0
        async with stores.database.connect() as connection:
            left = await connection.run_sync(self.show_postgres)
        in_postgres = {(one.stage, one.lane): one.parts for one in left}
        waiting = await asyncio.to_thread(lists.count_waiting, stores.redis)
        for queue, (stage, lane) in lists.QUEUES.items():
            metrics.QUEUE_PARTS.labels(stage, lane).set(waiting[queue] + in_postgres.get((stage, lane), 0))
        for queue, stage in lists.QUARANTINES.items():
            metrics.QUEUE_PARTS.labels(stage, "quarantine").set(waiting[queue])
        strange: Any = await asyncio.to_thread(stores.redis.llen, lists.DEAD)
        metrics.STRANGE_MESSAGES.set(strange)
        metrics.MEASURED.set_to_current_time()
        self._not_before = time.monotonic() + _MEASURE_EVERY_S
        return 0

    def show_postgres(self, connection: Connection) -> list[standing.Left]:
        """Export figures from Postgres; return the parts of each list that wait there."""
        oldest_s, roles = standing.oldest_waiting(connection), standing.roles_on_duty(connection)
        for lane in Lane:
            metrics.QUEUE_OLDEST.labels(lane).set(oldest_s.get(lane, 0.0))
        for role in _ROLES:
            metrics.WORKERS.labels(role).set(roles.get(role, 0))
        metrics.LEASED_PARTS.set(standing.count_running(connection).total())
        removals, removals_s = standing.awaiting_removal(connection)
        metrics.REMOVALS.set(removals)
        metrics.REMOVALS_OLDEST.set(removals_s)
        left = standing.left_in_postgres(connection)
        lag = standing.lag(connection, left, window=self._window)
        metrics.UNPUBLISHED.set(lag.unpublished)
        metrics.UNPUBLISHED_OLDEST.set(lag.unpublished_s)
        metrics.DUE_WEBHOOKS.set(lag.deliveries)
        metrics.DUE_WEBHOOKS_OLDEST.set(lag.deliveries_s)
        metrics.PAUSED_RECEIVERS.set(lag.paused)
        return left


@asynccontextmanager
async def workers_watched(database: AsyncEngine, bus: Bus, settings: WorkerSettings) -> AsyncIterator[None]:
    """Judge, reconcile and relay in a worker, during the block, while no upkeep process lives.

    Steps that need Redis run in a separate task: a hanging step must not interrupt the watch. Uses no `TaskGroup`,
    which cancels a task once, while redis-py swallows a cancel during a connect; `end` repeats it.
    """
    judge, due = recovery.Judge(database, settings, bus.announce), asyncio.Event()
    reconciler = Reconciler()

    async def take_back() -> None:
        await judge.judge()
        due.set()

    async def publish() -> None:
        await due.wait()
        due.clear()
        await reconciler(Stores(database=database, redis=redis, bus=bus))
        await relay_due(database, bus, limit=_BATCH)

    with lists.connect(settings.redis_url.get_secret_value()) as redis:
        steps = (partial(stand_in, database, take_back, every_s=judge.every_s), publish)
        tasks = [asyncio.create_task(for_ever(step)) for step in steps]
        try:
            yield
        finally:
            for task in tasks:
                await end(task)


def _trace_sent(messages: Sequence[PartMessage], began: int) -> None:
    """Record in each job's trace that parts of it were published."""
    ended = time.time_ns()
    for traceparent, number in Counter(message.traceparent for message in messages).items():
        if traceparent:
            about = tracing.messaging("send", number)
            kind = tracing.SpanKind.PRODUCER
            tracing.past("send", about, kind=kind, began=began, ended=ended, below=traceparent)


async def relay_due(database: AsyncEngine, bus: Bus, *, limit: int) -> int:
    """Publish up to `limit` due parts of each list; return how many, 0 while another relay runs.

    Parts are published first and marked after: a crash in between publishes them twice, which is harmless.
    """
    spaces = [space for space in await bus.spaces(most=limit) if space.parts]
    async with database.begin() as connection:
        if not await publication.is_free(connection):
            return 0
        due = await publication.due_parts(connection, spaces)
        if not due and any(space.after != NO_FLOW for space in spaces):
            await bus.relay((), [(space, frozenset()) for space in spaces])  # begins anew
            spaces = [replace(space, after=NO_FLOW) for space in spaces]
            due = await publication.due_parts(connection, spaces)
        flows: defaultdict[tuple[Stage, Lane], set[UUID]] = defaultdict(set)
        for message, attempt in due:
            if attempt == 0:
                flows[message.stage, message.lane].add(message.flow)
        began, messages = time.time_ns(), [message for message, _ in due]
        refused = await bus.relay(messages, [(space, flows[space.stage, space.lane]) for space in spaces])
        _trace_sent(messages, began)
        unsent = {message.part for message in refused}
        sent = [(message.part, attempt) for message, attempt in due if message.part not in unsent]
        await publication.mark_published(connection, sent)
        return len(sent)
