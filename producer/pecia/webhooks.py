"""The receiver's side of a callback: check who sent it, then read it.

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
    """Return the notice in a request whose signature is right and no older than five minutes.

    `body` is what arrived, byte for byte; the case of the headers' names does not matter. Answer with any 2xx status; a
    notice may come more than once, then with the same `webhook-id`. Raises `WebhookVerificationError`, or
    `ConfigurationError` if the secret is no key.
    """
    try:
        webhook = Webhook(secret)
    except (EmptyWebhookSecretError, ValueError):
        raise ConfigurationError("The webhook secret is no key: it is written `whsec_` and base64.") from None
    try:
        webhook.verify(body, dict(headers), json_parse=False)
    except (_StandardError, ValueError):
        # ValueError: headers or body that no sender of ours could have written.
        raise WebhookVerificationError("The request is not signed with this secret, or is too old.") from None
    try:
        return JobNotice.model_validate_json(body)
    except ValidationError:
        raise WebhookVerificationError(
            "The request is signed, but its body is no notice that this version knows: update pecia."
        ) from None
