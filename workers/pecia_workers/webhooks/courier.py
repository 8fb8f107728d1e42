"""One delivery on its way: signed, posted, and the answer judged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import SecretStr

from pecia_schemas import tracing
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.outbox import ClaimedDelivery, DeliveryOutcome, Try
from pecia_workers.outgoing.guard import RefusedTargetError
from pecia_workers.tracing.callbacks import delivering, tried
from pecia_workers.webhooks.policy import DeliveryPolicy
from pecia_workers.webhooks.sender import Reply, Sender, SendError, SendFailure
from pecia_workers.webhooks.signing import Signer

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
