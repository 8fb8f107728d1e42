"""One delivery on its way: signed, posted, and the answer judged."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from uuid import UUID

import httpcore2
import structlog
from pydantic import SecretStr
from standardwebhooks import Webhook

from pecia_schemas import tracing
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import DeliveryState
from pecia_workers.ledger.outbox import ClaimedDelivery, DeliveryOutcome, ReceiverState, Try
from pecia_workers.outgoing.guard import GuardedBackend, Refusal, RefusedTargetError, parse_target
from pecia_workers.retries import RetrySchedule, parse_retry_after
from pecia_workers.tracing.parts import delivering, tried


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNotice:
    """What is posted: exactly these bytes under exactly these headers."""

    body: bytes
    headers: Mapping[str, str]


class Signer:
    """Signs notices with a secret in the form that `WorkerSettings` admits; with several, so that each verifies."""

    def __init__(self, *secrets: SecretStr) -> None:
        self._webhooks = [Webhook(secret.get_secret_value()) for secret in secrets]

    def sign(self, delivery: UUID, notice: Mapping[str, Any], *, at: datetime | None = None) -> SignedNotice:
        """Return the notice as it goes out now. The delivery's id is the same in every try, the time is not."""
        # The library takes any time for UTC and signs text: hand it both ready, send the very bytes.
        moment = (at or datetime.now(UTC)).astimezone(UTC)
        text = json.dumps(notice, separators=(",", ":"), ensure_ascii=False)
        headers = {
            "content-type": "application/json",
            "webhook-id": str(delivery),
            "webhook-timestamp": str(int(moment.timestamp())),
            "webhook-signature": " ".join(
                webhook.sign(str(delivery), moment, text) for webhook in self._webhooks
            ),
        }
        return SignedNotice(body=text.encode(), headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Any 2xx is delivery, 410 and a refused target are the end, everything else is tried again, `attempts` times."""

    attempts: int
    schedule: RetrySchedule = field(default_factory=RetrySchedule)

    def refused(self, refusal: Refusal) -> DeliveryOutcome:
        """Return the outcome for a target that may not be called."""
        return DeliveryOutcome(state=DeliveryState.DEAD, error=refusal.value)

    def unanswered(self, turn: int, failure: SendFailure) -> DeliveryOutcome:
        """Return the outcome of a try that got no answer."""
        ours = failure in {SendFailure.INTERNAL, SendFailure.KEY}
        receiver = ReceiverState.UNKNOWN if ours else ReceiverState.FAILING
        return self._again(turn, error=failure.value, receiver=receiver)

    def answered(self, turn: int, reply: Reply) -> DeliveryOutcome:
        """Return the outcome of a try that got this answer. A redirect is an answer, and not followed."""
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return DeliveryOutcome(
                state=DeliveryState.DELIVERED, status=reply.status, receiver=ReceiverState.WELL
            )
        error = f"http_{reply.status}"
        if reply.status == HTTPStatus.GONE:
            return DeliveryOutcome(
                state=DeliveryState.DEAD, status=reply.status, error=error, receiver=ReceiverState.GONE
            )
        asked = parse_retry_after(reply.retry_after)
        return self._again(
            turn, error=error, receiver=ReceiverState.FAILING, status=reply.status, asked=asked
        )

    def _again(
        self,
        turn: int,
        *,
        error: str,
        receiver: ReceiverState,
        status: int | None = None,
        asked: timedelta | None = None,
    ) -> DeliveryOutcome:
        if turn >= self.attempts:
            return DeliveryOutcome(state=DeliveryState.DEAD, status=status, error=error, receiver=receiver)
        return DeliveryOutcome(
            state=DeliveryState.PENDING,
            status=status,
            error=error,
            receiver=receiver,
            retry_in=self.schedule.after(turn, asked=asked),
        )


MAX_REPLY_BYTES = 64 * 1024
"""Of a reply's body, this much is read at most: a status is all that a receiver can tell us."""

KEPT_REPLY_BYTES = 512
"""Of that, this much is kept, for diagnosis."""


class SendFailure(StrEnum):
    """Why a POST got no answer, as it is stored with its delivery."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    BROKEN = "connection_broken"
    PROTOCOL = "not_http"
    INTERNAL = "internal"
    KEY = "secret_unreadable"
    """The endpoint's secret is encrypted under a key that is not here."""


class SendError(Exception):
    """The receiver gave no answer; another try may succeed."""

    def __init__(self, failure: SendFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a receiver answered."""

    status: int
    retry_after: str | None
    """The header of that name, as sent."""
    text: str = ""
    """The beginning of its body, without what no terminal and no database takes."""


class Sender:
    """Posts through the guard. Every call opens a connection of its own, so that every call is judged afresh."""

    def __init__(
        self,
        backend: GuardedBackend,
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
        """Return the answer. Raises `RefusedTargetError` or `SendError`, also when the whole takes too long."""
        target = parse_target(url)
        request = httpcore2.Request(
            "POST",
            httpcore2.URL(
                scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
            ),
            headers=[
                ("Host", target.netloc),
                ("User-Agent", "Pecia"),
                ("Content-Length", str(len(body))),
                *headers.items(),
            ],
            content=body,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(request)
        except (TimeoutError, httpcore2.TimeoutException):
            raise SendError(SendFailure.TIMEOUT) from None
        except httpcore2.ConnectError as error:
            is_tls = isinstance(error.__context__, ssl.SSLError)  # httpcore2 cuts the chain of causes
            raise SendError(SendFailure.TLS if is_tls else SendFailure.UNREACHABLE) from None
        except httpcore2.NetworkError:
            raise SendError(SendFailure.BROKEN) from None
        except httpcore2.ProtocolError:
            raise SendError(SendFailure.PROTOCOL) from None

    async def aclose(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    async def _exchange(self, request: httpcore2.Request) -> Reply:
        response = await self._pool.handle_async_request(request)
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
        return Reply(
            status=response.status, retry_after=_header(response, b"retry-after"), text=_printable(kept)
        )


def _printable(kept: bytes) -> str:
    return "".join(each if each.isprintable() else " " for each in kept.decode(errors="replace")).strip()


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    for key, value in response.headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What callbacks are signed with."""

    fleet: tuple[SecretStr, ...]
    """For webhooks that came with jobs; two while receivers change theirs."""
    keys: Keyring
    """What the endpoints' own are encrypted under."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Secrets:
        """Return those of the settings."""
        found = (settings.webhook_secret, settings.webhook_former_secret)
        return cls(
            fleet=tuple(secret for secret in found if secret.get_secret_value()), keys=settings.keyring
        )

    def signer(self, delivery: ClaimedDelivery) -> Signer:
        """Return what signs this delivery. Raises `DecryptionError`."""
        if delivery.endpoint_id is None:
            return Signer(*self.fleet)
        stored = [one for one in (delivery.secret, delivery.former_secret) if one is not None]
        return Signer(*(SecretStr(self.keys.unseal(one, delivery.endpoint_id)) for one in stored))


class Courier:
    """Signs deliveries, posts them and judges the answers."""

    def __init__(
        self, sender: Sender, secrets: Secrets, policy: DeliveryPolicy, links: Mapping[str, str]
    ) -> None:
        self._sender = sender
        self._secrets = secrets
        self._policy = policy
        self._links = links

    async def carry(self, delivery: ClaimedDelivery) -> tuple[DeliveryOutcome, Try]:
        """Try it once, in a span of its own. What goes wrong is the outcome."""
        with delivering(delivery) as span:
            outcome, made = await self._carry(delivery)
            tried(span, outcome)
        return outcome, made

    async def _carry(self, delivery: ClaimedDelivery) -> tuple[DeliveryOutcome, Try]:
        at, begun = datetime.now(UTC), time.monotonic()
        reply: Reply | None = None
        try:
            reply = await self._post(delivery)
            outcome = self._policy.answered(delivery.turn, reply)
        except RefusedTargetError as error:
            outcome = self._policy.refused(error.refusal)
        except SendError as error:
            outcome = self._policy.unanswered(delivery.turn, error.failure)
        except DecryptionError:
            outcome = self._policy.unanswered(delivery.turn, SendFailure.KEY)
        except Exception as error:  # noqa: BLE001  one bad delivery must not stop the others
            log.error("callback_error", delivery=str(delivery.id), error=type(error).__name__)  # noqa: TRY400  no texts
            outcome = self._policy.unanswered(delivery.turn, SendFailure.INTERNAL)
        duration = timedelta(seconds=time.monotonic() - begun)
        return outcome, Try(at=at, duration=duration, reply=None if reply is None else reply.text)

    async def _post(self, delivery: ClaimedDelivery) -> Reply:
        notice = self._secrets.signer(delivery).sign(delivery.id, self._with_links(delivery))
        return await self._sender.post(delivery.url, notice.body, {**notice.headers, **tracing.headers()})

    def _with_links(self, delivery: ClaimedDelivery) -> dict[str, Any]:
        if delivery.job_id is None:
            return delivery.body
        job_id = str(delivery.job_id)
        links = {name: link.replace("{job_id}", job_id) for name, link in self._links.items()}
        return {**delivery.body, "data": {**delivery.body["data"], "links": links}}
