"""The webhook worker: takes what is due from the outbox, posts it, writes down what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import Verdict, name_of, verdict_on
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.database import open_database, outlast
from pecia_workers.ledger.outbox import (
    ClaimedDelivery,
    PausePolicy,
    Room,
    claim_deliveries,
    give_up,
    record_outcome,
)
from pecia_workers.metrics.declared import WEBHOOK_SECONDS, WEBHOOKS
from pecia_workers.metrics.health import PULSE
from pecia_workers.outgoing.guard import GuardedBackend
from pecia_workers.retries import RetrySchedule
from pecia_workers.service import serve
from pecia_workers.webhooks.courier import Courier, DeliveryPolicy, Secrets, Sender

log = structlog.get_logger(__name__)

_CONCURRENCY = 64
_RESOLVERS = 2 * _CONCURRENCY
"""Threads that look up names: one that hangs outlives its try, and must not keep another waiting."""
_POLL_S = 0.25
_GIVING_UP_S = 60.0
"""How often it is looked for what is too old."""
_MARGIN = timedelta(seconds=30)
"""What a claim is good for beyond the receiver's time: to write the outcome down, Postgres being slow or away."""


class WebhookWorker:
    """Delivers callbacks until it is stopped. Any number of them share one outbox."""

    def __init__(self, settings: WorkerSettings, *, schedule: RetrySchedule | None = None) -> None:
        self._settings = settings
        self._secrets = Secrets.of(settings)
        self._pause = PausePolicy(after=settings.webhook_pause_after, first=settings.webhook_pause)
        self._schedule = schedule or RetrySchedule(
            first=settings.webhook_retry_delay, longest=settings.webhook_retry_longest
        )
        self._under_way: Counter[str] = Counter()
        self._stopping = False
        self._stirred = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new; `run` returns when what is under way has been recorded."""
        self._stopping = True
        self._stirred.set()

    async def run(self) -> None:
        """Deliver until `stop`. Without the fleet's secret the webhooks of jobs wait, and the log says so."""
        if not self._secrets.fleet:
            log.warning("callbacks_wait", setting="PECIA_WEBHOOK_SECRET", reason="empty")
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_RESOLVERS, "resolver"))
        sender = self._open_sender()
        policy = DeliveryPolicy(attempts=self._settings.webhook_attempts, schedule=self._schedule)
        courier = Courier(sender, self._secrets, policy, self._settings.webhook_links)
        database = open_database(self._settings.database_url.get_secret_value())
        try:
            async with asyncio.TaskGroup() as tasks:
                giving_up = tasks.create_task(self._give_up(database))
                await self._deliver(database, courier)
                giving_up.cancel()
        finally:
            await sender.aclose()
            await database.dispose()

    def _open_sender(self) -> Sender:
        settings = self._settings
        backend = GuardedBackend(
            allow=settings.webhook_allow, ports=settings.webhook_ports, listener=settings.webhook_listener
        )
        return Sender(backend, timeout=settings.webhook_timeout, connections=_CONCURRENCY)

    async def _deliver(self, database: AsyncEngine, courier: Courier) -> None:
        visibility = self._settings.webhook_timeout + _MARGIN
        async with asyncio.TaskGroup() as tries:
            while not self._stopping:
                PULSE.beat()
                self._stirred.clear()
                claim = partial(claim_deliveries, database, self._room(), visibility=visibility)
                claimed = await outlast(claim) if self._under_way.total() < _CONCURRENCY else []
                for delivery in claimed:
                    self._under_way[delivery.receiver] += 1
                    tries.create_task(self._attempt(database, courier, delivery))
                if not claimed:
                    await self._until_stirred()

    def _room(self) -> Room:
        return Room(
            deliveries=_CONCURRENCY - self._under_way.total(),
            each=self._settings.webhook_concurrency,
            busy=dict(self._under_way),
            signs=bool(self._secrets.fleet),
        )

    async def _until_stirred(self) -> None:
        """Wait until a try has ended, and with it the reason why nothing was claimed, or for a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stirred.wait(), _POLL_S)

    async def _attempt(self, database: AsyncEngine, courier: Courier, delivery: ClaimedDelivery) -> None:
        try:
            outcome, tried = await courier.carry(delivery)
            record = partial(record_outcome, database, delivery, outcome, tried, self._pause)
            died_with_it = await outlast(record)
        except Exception as error:
            if verdict_on(error) is not Verdict.REFUSED:
                raise
            # The others go on; this one is tried again when its claim is over.
            log.error("callback_unrecorded", delivery=str(delivery.id), error=name_of(error))  # noqa: TRY400
            return
        finally:
            self._under_way -= Counter([delivery.receiver])  # forgets receivers that have none
            self._stirred.set()
        WEBHOOKS.labels(outcome.state).inc()
        WEBHOOKS.labels("dead").inc(died_with_it or 0)
        WEBHOOK_SECONDS.observe(tried.duration.total_seconds())
        log.info(
            "callback_tried",
            delivery=str(delivery.id),
            job=delivery.job_id and str(delivery.job_id),
            attempt=delivery.attempt,
            state=outcome.state.value,
            status=outcome.status,
            error=outcome.error,
            died_with_it=died_with_it or None,
            seconds=round(tried.duration.total_seconds(), 3),
        )

    async def _give_up(self, database: AsyncEngine) -> None:
        """End what was not delivered in time: also what waits for a paused receiver, or for a secret, has an end."""
        age = self._settings.webhook_give_up
        while True:
            ended = await outlast(partial(give_up, database, age=age))
            if ended:
                WEBHOOKS.labels("dead").inc(ended)
                log.warning("callbacks_given_up", number=ended)
            await asyncio.sleep(min(_GIVING_UP_S, age.total_seconds() / 4))


def run_webhooks(settings: WorkerSettings) -> None:
    """Run a webhook worker until SIGTERM or SIGINT, then finish what is under way."""
    signs = bool(Secrets.of(settings).fleet)
    serve("webhooks", WebhookWorker, settings, capabilities={"signs": signs})
