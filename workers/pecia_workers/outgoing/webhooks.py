"""Signed callbacks: deliveries are rows in Postgres, retries included; the guard checks every address."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import httpcore2
import httpx2
import structlog
from pydantic import SecretStr
from standardwebhooks import Webhook

from pecia_schemas import tracing
from pecia_schemas.connecting import name_of
from pecia_schemas.encryption import DecryptionError
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import DeliveryState
from pecia_workers.ledger import outbox
from pecia_workers.ledger.database import open_database, retry_unavailable
from pecia_workers.observability.metrics import LIVENESS, WEBHOOK_SECONDS, WEBHOOKS
from pecia_workers.observability.tracing import delivering, tried
from pecia_workers.outgoing import guard as outgoing
from pecia_workers.outgoing.places import Places
from pecia_workers.processes.service import serve
from pecia_workers.protocol.parts import Backoff

log = structlog.get_logger(__name__)

_PLACES = 512
"""Concurrent calls of a worker. Nearly all of them wait: each of a hundred stalled receivers has one."""
_RESOLVERS = 2 * _PLACES
"""Threads for name lookups: a hanging lookup outlives its attempt, and must not block others."""
_OPEN_FILES = 4 * _PLACES
_POLL_S = 0.25
_GIVING_UP_S = 60.0
"""Seconds between searches for expired deliveries."""
_MARGIN = timedelta(seconds=30)
"""Visibility of a claim beyond the receiver's timeout: time to record the outcome while Postgres is slow."""

MAX_REPLY_BYTES = 64 * 1024
"""Most bytes read of a reply's body; only the status matters."""

KEPT_REPLY_BYTES = 512
"""Most bytes of the reply that are kept for diagnosis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNotice:
    """A request to post: exactly these bytes and headers."""

    body: bytes
    headers: Mapping[str, str]


def sign(
    delivery: UUID, notice: Mapping[str, Any], secrets: Iterable[str], *, at: datetime | None = None
) -> SignedNotice:
    """Return the notice as it goes out now, signed so that each of the secrets verifies it.

    The secrets have the form that `WorkerSettings` admits. The delivery's id is the same in every try, the time is not.
    """
    # The library takes any time for UTC and signs text: hand it both ready, send the very bytes.
    moment = (at or datetime.now(UTC)).astimezone(UTC)
    text = json.dumps(notice, separators=(",", ":"), ensure_ascii=False)
    signatures = (Webhook(secret).sign(str(delivery), moment, text) for secret in secrets)
    headers = {
        "content-type": "application/json",
        "webhook-id": str(delivery),
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return SignedNotice(body=text.encode(), headers=headers)


RETRIES: Final = Backoff(first_s=5.0, longest_s=12 * 3_600.0, factor=3.0, spread=(0.8, 1.2))
"""By default 5 s, 15 s, 45 s … 12 h, two days and a half over fourteen tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Any 2xx delivers; 410 and a refused target are final; all else is retried, up to `attempts` times."""

    attempts: int
    backoff: Backoff = RETRIES

    def unanswered(self, turn: int, failure: Failure) -> outbox.DeliveryOutcome:
        """Return the outcome of a try that got no answer."""
        is_final = isinstance(failure, outgoing.Refusal) or failure is SendFailure.MALFORMED
        failed = outbox.DeliveryOutcome(
            state=DeliveryState.DEAD if is_final else DeliveryState.PENDING,
            error=failure.value,
            receiver=outbox.ReceiverState.UNKNOWN
            if is_final or failure in (SendFailure.INTERNAL, SendFailure.KEY)
            else outbox.ReceiverState.FAILING,
        )
        return self._again(turn, failed)

    def answered(self, turn: int, reply: Reply) -> outbox.DeliveryOutcome:
        """Return the outcome of an attempt with this answer. Redirects are not followed."""
        status, error = reply.status, f"http_{reply.status}"
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return outbox.DeliveryOutcome(
                state=DeliveryState.DELIVERED, status=status, receiver=outbox.ReceiverState.WELL
            )
        state, receiver = DeliveryState.PENDING, outbox.ReceiverState.FAILING
        if status == HTTPStatus.GONE:
            state, receiver = DeliveryState.DEAD, outbox.ReceiverState.GONE
        failed = outbox.DeliveryOutcome(state=state, status=status, error=error, receiver=receiver)
        return self._again(turn, failed, outgoing.parse_retry_after(reply.retry_after, reply.date))

    def _again(
        self, turn: int, failed: outbox.DeliveryOutcome, retry_after: timedelta | None = None
    ) -> outbox.DeliveryOutcome:
        """Return the outcome with the wait before the next try, or as the end where there is none.

        A receiver that asked for a wait gets it, within the shortest and the longest wait.
        """
        if failed.state is DeliveryState.DEAD or turn >= self.attempts:
            return replace(failed, state=DeliveryState.DEAD)
        wait_s = self.backoff.wait_s(turn)
        if retry_after is not None:
            wait_s = min(max(retry_after.total_seconds(), self.backoff.first_s), self.backoff.longest_s)
        return replace(failed, retry_in=timedelta(seconds=wait_s))


class SendFailure(StrEnum):
    """Reason why a POST got no answer, as stored with its delivery."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    BROKEN = "connection_broken"
    PROTOCOL = "not_http"
    INTERNAL = "internal"
    KEY = "secret_unreadable"
    """The endpoint's secret is encrypted under a key that this worker does not have."""
    MALFORMED = "malformed_notice"
    """The row holds no valid notice of its type."""


Failure = SendFailure | outgoing.TlsFault | outgoing.Refusal


class SendError(Exception):
    """The receiver gave no answer; a retry may succeed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A receiver's answer."""

    status: int
    retry_after: str | None
    """The header of that name, as sent."""
    date: str | None = None
    """The time by the receiver's clock, as sent."""
    text: str = ""
    """The beginning of its body, without control characters that terminals or databases reject."""


class Sender:
    """Posts through the guard. Every call opens its own connection, so that the guard checks each."""

    def __init__(
        self,
        backend: outgoing.GuardedBackend,
        *,
        timeout: timedelta,
        connections: int,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout_s = timeout.total_seconds()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or httpcore2.default_ssl_context(),
            network_backend=backend,
            max_connections=connections,
            max_keepalive_connections=0,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Post, and return the answer. Raises `RefusedTargetError`, or `SendError`, also if it takes too long."""
        posted = [("Content-Length", str(len(body))), *headers.items()]
        call = outgoing.request("POST", outgoing.parse_target(url), posted, content=body)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._pool.handle_async_request(call)
                try:
                    # Raw bytes: a compressed reply stays as small as it came.
                    read, kept = 0, b""
                    async for chunk in response.aiter_stream():
                        read += len(chunk)
                        kept += chunk[: KEPT_REPLY_BYTES - len(kept)]
                        if read >= MAX_REPLY_BYTES:
                            break
                finally:
                    await response.aclose()
        except (TimeoutError, httpcore2.TimeoutException):
            raise SendError(SendFailure.TIMEOUT) from None
        except (httpcore2.NetworkError, ssl.SSLError) as error:
            unreachable = isinstance(error, outgoing.NoConnectionError)
            other = SendFailure.UNREACHABLE if unreachable else SendFailure.BROKEN
            raise SendError(outgoing.tls_fault(error) or other) from None
        except httpcore2.ProtocolError:
            raise SendError(SendFailure.PROTOCOL) from None
        text = "".join(each if each.isprintable() else " " for each in kept.decode(errors="replace"))
        headers = httpx2.Headers(response.headers)
        retry_after, date = headers.get("retry-after"), headers.get("date")
        return Reply(status=response.status, retry_after=retry_after, date=date, text=text.strip())

    async def aclose(self) -> None:
        """Close the open connections."""
        await self._pool.aclose()


def _checked(delivery: outbox.ClaimedDelivery) -> dict[str, Any]:
    """Return the body of a delivery. Raises `SendError` unless it is a notice of the type that its row says."""
    body: Any = delivery.body
    if not isinstance(body, dict) or body.get("type") != delivery.type:
        raise SendError(SendFailure.MALFORMED)
    if delivery.job_id is not None and not isinstance(body.get("data"), dict):
        raise SendError(SendFailure.MALFORMED)
    return body


def _secrets_of(settings: WorkerSettings) -> tuple[SecretStr, ...]:
    """Return the secrets that sign webhooks submitted with jobs; two during a rotation."""
    return tuple(secret for secret in (settings.webhook_secret, settings.webhook_former_secret) if secret)


class WebhookWorker:
    """Delivers callbacks until stopped. Any number of workers share the outbox."""

    def __init__(self, settings: WorkerSettings, *, backoff: Backoff | None = None) -> None:
        self._settings = settings
        self._secrets = _secrets_of(settings)
        self._keys = settings.keyring
        self._pause = outbox.PausePolicy(after=settings.webhook_pause_after, first=settings.webhook_pause)
        first, longest = settings.webhook_retry_delay, settings.webhook_retry_longest
        waits = replace(RETRIES, first_s=first.total_seconds(), longest_s=longest.total_seconds())
        self._policy = DeliveryPolicy(attempts=settings.webhook_attempts, backoff=backoff or waits)
        backend = outgoing.GuardedBackend(
            allow=settings.webhook_allow, ports=settings.webhook_ports, listener=settings.webhook_listener
        )
        self._sender = Sender(backend, timeout=settings.webhook_timeout, connections=_PLACES)
        url = settings.database_url.get_secret_value()
        self._database = open_database(url, connections=3)
        # A hundred calls that time out together are a hundred outcomes: no claim waits behind them.
        self._records = open_database(url, connections=3)
        self._places = Places(_PLACES, each=settings.webhook_concurrency)
        self._stopping = False
        self._stirred = asyncio.Event()

    def stop(self) -> None:
        """Claim no further deliveries; `run` returns when those in flight are recorded."""
        self._stopping = True
        self._stirred.set()

    async def run(self) -> None:
        """Deliver until `stop`. Without the fleet's secret the webhooks of jobs wait, with a warning in the log."""
        if not self._secrets:
            log.warning("callbacks_wait", setting="PECIA_WEBHOOK_SECRET", reason="empty")
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_RESOLVERS, "resolver"))
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._give_up()), tasks.create_task(self._fan_out())]
                while not self._stopping:
                    LIVENESS.beat()
                    self._stirred.clear()
                    claimed = await retry_unavailable(self._claim)
                    for delivery in claimed:
                        self._places.take(delivery.taken)
                        tasks.create_task(self._attempt(delivery))
                    if not claimed:
                        # Until a try has ended, and with it the reason why nothing was claimed, or for a moment.
                        with suppress(TimeoutError):
                            await asyncio.wait_for(self._stirred.wait(), _POLL_S)
                for task in beside:
                    task.cancel()
        finally:
            await self._sender.aclose()
            await self._database.dispose()
            await self._records.dispose()

    async def _claim(self) -> list[outbox.ClaimedDelivery]:
        return await outbox.claim_deliveries(
            self._database,
            self._places,
            signs=bool(self._secrets),
            visibility=self._settings.webhook_timeout + _MARGIN,
        )

    async def _attempt(self, delivery: outbox.ClaimedDelivery) -> None:
        try:
            outcome, tried = await self._carry(delivery)
            record = partial(outbox.record_outcome, self._records, delivery, outcome, tried, self._pause)
            died_with_it = await retry_unavailable(record)
        except Exception as error:  # noqa: BLE001  the others go on; this one is tried again when its claim is over
            log.error("callback_unrecorded", delivery=str(delivery.id), error=name_of(error))  # noqa: TRY400  no texts
            return
        finally:
            self._places.release(delivery.taken)
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

    async def _carry(self, delivery: outbox.ClaimedDelivery) -> tuple[outbox.DeliveryOutcome, outbox.Try]:
        """Attempt a delivery once, in its own span. Errors become its outcome."""
        at, begun = delivery.now, time.monotonic()
        reply: Reply | None = None
        with delivering(delivery) as span:
            try:
                secrets, body = [one.get_secret_value() for one in self._secrets], _checked(delivery)
                if delivery.endpoint_id is not None:
                    stored = [one for one in (delivery.secret, delivery.former_secret) if one is not None]
                    secrets = [self._keys.unseal(one, delivery.endpoint_id) for one in stored]
                if delivery.job_id is not None:
                    job, links = str(delivery.job_id), self._settings.webhook_links
                    links = {name: url.replace("{job_id}", job) for name, url in links.items()}
                    body = {**body, "data": {**body["data"], "links": links}}
                notice = sign(delivery.id, body, secrets, at=delivery.now)
                headers = {**notice.headers, **tracing.headers()}
                reply = await self._sender.post(delivery.url, notice.body, headers)
                outcome = self._policy.answered(delivery.turn, reply)
            except outgoing.RefusedTargetError as error:
                outcome = self._policy.unanswered(delivery.turn, error.refusal)
            except SendError as error:
                outcome = self._policy.unanswered(delivery.turn, error.failure)
            except DecryptionError:
                outcome = self._policy.unanswered(delivery.turn, SendFailure.KEY)
            except Exception as error:  # noqa: BLE001  one bad delivery must not stop the others
                log.error("callback_error", delivery=str(delivery.id), error=type(error).__name__)  # noqa: TRY400  no texts
                outcome = self._policy.unanswered(delivery.turn, SendFailure.INTERNAL)
            tried(span, outcome)
        duration = timedelta(seconds=time.monotonic() - begun)
        written = None if reply is None else reply.text
        return outcome, outbox.Try(at=at, begun=begun, duration=duration, reply=written)

    async def _fan_out(self) -> None:
        """Make deliveries of notices, concurrently and with pauses, so that neither claims nor commits are delayed."""
        while True:
            try:
                notices = await retry_unavailable(partial(outbox.fan_out, self._database))
                if notices:
                    self._stirred.set()
            except Exception as error:  # noqa: BLE001  events that are due go out all the same
                log.error("fan_out_failed", error=name_of(error))  # noqa: TRY400  no texts
            await asyncio.sleep(_POLL_S)

    async def _give_up(self) -> None:
        """End deliveries that are too old, also those that wait for a paused receiver or for a secret."""
        age = self._settings.webhook_give_up
        while True:
            ended = await retry_unavailable(partial(outbox.give_up, self._database, age=age))
            if ended:
                WEBHOOKS.labels("dead").inc(ended)
                log.warning("callbacks_given_up", number=ended)
            await asyncio.sleep(min(_GIVING_UP_S, age.total_seconds() / 4))


def run_webhooks(settings: WorkerSettings) -> None:
    """Run a webhook worker until SIGTERM or SIGINT, then finish the deliveries in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))
    signs = {"signs": bool(_secrets_of(settings))}
    asyncio.run(serve("webhooks", WebhookWorker, settings, capabilities=signs))
