"""Receivers verify our callbacks with libraries of others, in whatever language they are written."""

import base64
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks
from pydantic import SecretStr

from foreign_verifiers import LIBRARIES, verified
from korean import NothingThereError
from pecia_schemas.states import new_id
from pecia_workers.webhooks import SignedNotice, Signer

pytestmark = pytest.mark.gate

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
FORMER = "whsec_" + base64.b64encode(b"o" * 24).decode()
NOTICE = {"type": "job.succeeded", "data": {"metadata": {"ward": "café 3 \u2028 漢字"}}}

Verify = Callable[[SignedNotice, str], Any]


def by_npm(library: str) -> Verify:
    def verify(request: SignedNotice, secret: str) -> Any:
        try:
            return verified(library, secret, request.headers, request.body)
        except NothingThereError as error:
            sentence = f"{error}; install node and npm with a registry."
            if os.environ.get("CI"):
                pytest.fail(sentence)
            pytest.skip(sentence)

    return verify


def by_python(request: SignedNotice, secret: str) -> Any:
    try:
        return standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))
    except standardwebhooks.WebhookVerificationError as error:
        return {"refused": str(error)}


@pytest.fixture(params=[*LIBRARIES, "python"])
def verify(request: pytest.FixtureRequest) -> Verify:
    return by_python if request.param == "python" else by_npm(request.param)


def signed(*secrets: str, at: datetime | None = None) -> SignedNotice:
    return Signer(*map(SecretStr, secrets)).sign(new_id(), NOTICE, at=at)


def test_it_verifies_what_we_sign(verify: Verify) -> None:
    assert verify(signed(SECRET), SECRET) == NOTICE


def test_either_secret_verifies_while_it_is_rotated(verify: Verify) -> None:
    request = signed(SECRET, FORMER)
    assert [verify(request, secret) for secret in (SECRET, FORMER)] == [NOTICE, NOTICE]


def test_it_refuses_what_was_changed_or_signed_with_another_secret_or_long_ago(verify: Verify) -> None:
    request = signed(SECRET)
    changed = SignedNotice(body=json.dumps({}).encode(), headers=request.headers)
    old = signed(SECRET, at=datetime.now(UTC) - timedelta(minutes=6))
    answers = [verify(changed, SECRET), verify(request, FORMER), verify(old, SECRET)]
    assert [list(answer) for answer in answers] == [["refused"]] * 3
