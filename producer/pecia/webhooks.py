"""Verification of callbacks, for their receiver.

notice = verify(request.body, request.headers, secret="whsec_…")
"""

from collections.abc import Mapping

from pydantic import ValidationError
from standardwebhooks import Webhook
from standardwebhooks import WebhookVerificationError as _StandardError
from standardwebhooks.webhooks import EmptyWebhookSecretError

from pecia.errors import ConfigurationError, WebhookVerificationError
from pecia_schemas.events import JobNotice

__all__ = ["verify"]


def verify(body: bytes, headers: Mapping[str, str], secret: str) -> JobNotice:
    """Return the notice of a request whose signature is valid and at most five minutes old.

    `body` must be the received bytes; the case of header names does not matter. Answer with any 2xx status. A notice
    may arrive more than once, with the same `webhook-id`. Raises `WebhookVerificationError`, or `ConfigurationError`
    if the secret is invalid.
    """
    try:
        webhook = Webhook(secret)
    except (EmptyWebhookSecretError, ValueError):
        raise ConfigurationError("The webhook secret is invalid: write `whsec_` and base64.") from None
    try:
        webhook.verify(body, dict(headers), json_parse=False)
    except (_StandardError, ValueError):
        # ValueError: headers or body that this fleet's sender could not have written.
        raise WebhookVerificationError("The request is not signed with this secret, or is too old.") from None
    try:
        return JobNotice.model_validate_json(body)
    except ValidationError:
        raise WebhookVerificationError(
            "The request is signed, but this version does not know its kind of notice: update pecia."
        ) from None
