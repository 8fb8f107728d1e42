"""The webhook worker: takes what is due from the outbox, posts it, writes down what came of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.database import open_database, outlast
from pecia_workers.ledger.outbox import ClaimedDelivery, DeliveryOutcome, claim_deliveries, record_outcome
from pecia_workers.outgoing.guard import GuardedBackend, RefusedTargetError
from pecia_workers.service import serve
from pecia_workers.webhooks.policy import DeliveryPolicy
from pecia_workers.webhooks.schedule import RetrySchedule
from pecia_workers.webhooks.sender import Sender, SendError, SendFailure
from pecia_workers.webhooks.signing import Signer

log = structlog.get_logger(__name__)

_CONCURRENCY = 32
_POLL_S = 0.25
_MARGIN = timedelta(seconds=30)
"""What a claim is good for beyond the receiver's time: to write the outcome down, Postgres being slow or away."""


class WebhookWorker:
    """Delivers callbacks until it is stopped. Any number of them share one outbox."""

    def __init__(self, settings: WorkerSettings, *, schedule: RetrySchedule | None = None) -> None:
        self._settings = settings
        self._policy = DeliveryPolicy(
            attempts=settings.webhook_attempts, schedule=schedule or RetrySchedule()
        )
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new; `run` returns when what is under way has been recorded."""
        self._stopping.set()

    async def run(self) -> None:
        """Deliver until `stop`. Without a secret nothing can be signed: then callbacks wait, and the log says so."""
        if not self._settings.webhook_secret.get_secret_value():
            log.warning("callbacks_wait", setting="PECIA_WEBHOOK_SECRET", reason="empty")
            await self._stopping.wait()
            return
        signer = Signer(self._settings.webhook_secret)
        sender = self._open_sender()
        database = open_database(self._settings.database_url.get_secret_value())
        try:
            await self._deliver(database, _Courier(sender, signer, self._policy))
        finally:
            await sender.aclose()
            await database.dispose()

    def _open_sender(self) -> Sender:
        settings = self._settings
        backend = GuardedBackend(allow=settings.webhook_allow, ports=settings.webhook_ports)
        return Sender(backend, timeout=settings.webhook_timeout, connections=_CONCURRENCY)

    async def _deliver(self, database: AsyncEngine, courier: _Courier) -> None:
        visibility = self._settings.webhook_timeout + _MARGIN
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tries:
            while not self._stopping.is_set():
                claim = partial(
                    claim_deliveries, database, limit=_CONCURRENCY - len(under_way), visibility=visibility
                )
                claimed = await outlast(claim)
                for delivery in claimed:
                    task = tries.create_task(_attempt(database, courier, delivery))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                if not claimed:
                    await self._pause()
                elif len(under_way) == _CONCURRENCY:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _POLL_S)


class _Courier:
    """Signs a delivery, posts it and judges the answer."""

    def __init__(self, sender: Sender, signer: Signer, policy: DeliveryPolicy) -> None:
        self._sender = sender
        self._signer = signer
        self._policy = policy

    async def carry(self, delivery: ClaimedDelivery) -> DeliveryOutcome:
        notice = self._signer.sign(delivery.id, delivery.body)
        try:
            reply = await self._sender.post(delivery.url, notice.body, notice.headers)
        except RefusedTargetError as error:
            return self._policy.refused(error.refusal)
        except SendError as error:
            return self._policy.unanswered(delivery.attempt, error.failure)
        except Exception as error:  # noqa: BLE001  one bad delivery must not stop the others
            log.error("callback_error", delivery=str(delivery.id), error=type(error).__name__)  # noqa: TRY400  no texts
            return self._policy.unanswered(delivery.attempt, SendFailure.INTERNAL)
        return self._policy.answered(delivery.attempt, reply)


async def _attempt(database: AsyncEngine, courier: _Courier, delivery: ClaimedDelivery) -> None:
    outcome = await courier.carry(delivery)
    await outlast(partial(record_outcome, database, delivery, outcome))
    log.info(
        "callback_tried",
        delivery=str(delivery.id),
        job=str(delivery.job_id),
        attempt=delivery.attempt,
        state=outcome.state.value,
        status=outcome.status,
        error=outcome.error,
    )


def run_webhooks(settings: WorkerSettings) -> None:
    """Run a webhook worker until SIGTERM or SIGINT, then finish what is under way."""
    serve("webhooks", WebhookWorker, settings)
