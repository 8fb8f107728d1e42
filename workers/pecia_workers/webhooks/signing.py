"""Signatures by Standard Webhooks, so that receivers check them with any of its libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import SecretStr
from standardwebhooks import Webhook


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
