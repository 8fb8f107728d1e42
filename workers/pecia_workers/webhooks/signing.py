"""Signatures by Standard Webhooks, so that receivers check them with any of its libraries."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import SecretStr
from standardwebhooks import Webhook

_LEAST_KEY_BYTES = 24  # the specification's minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNotice:
    """What is posted: exactly these bytes under exactly these headers."""

    body: bytes
    headers: Mapping[str, str]


class Signer:
    """Signs notices with one secret, `whsec_` and at least 24 bytes in base64. Raises `ValueError` for any other."""

    def __init__(self, secret: SecretStr) -> None:
        self._webhook = Webhook(_key_of(secret.get_secret_value()))

    def sign(self, delivery: UUID, notice: Mapping[str, Any], *, at: datetime | None = None) -> SignedNotice:
        """Return the notice as it goes out now. The delivery's id is the same in every try, the time is not."""
        # The library takes any time for UTC and signs text: hand it both ready, send the very bytes.
        moment = (at or datetime.now(UTC)).astimezone(UTC)
        text = json.dumps(notice, separators=(",", ":"), ensure_ascii=False)
        headers = {
            "content-type": "application/json",
            "webhook-id": str(delivery),
            "webhook-timestamp": str(int(moment.timestamp())),
            "webhook-signature": self._webhook.sign(str(delivery), moment, text),
        }
        return SignedNotice(body=text.encode(), headers=headers)


def _key_of(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) < _LEAST_KEY_BYTES:
        raise ValueError(
            "PECIA_WEBHOOK_SECRET is no key: write `whsec_` and at least 24 random bytes in base64."
        )
    return key
