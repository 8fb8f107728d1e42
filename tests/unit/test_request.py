"""The options of a request: one model for a client's keywords, a gateway's body and what a client sends there."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from pecia import InvalidOptionError, ReadDocument, Webhook, request
from pecia.gateway.bodies import Submission
from pecia.remote.calls import body_of
from pecia.testing import FakeFleet


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": "soon"},
        {"metadata": {"ward": "7" * 513}},
        {"metadata": {"ward": 7}},
        {"metadata": ["ward"]},
        {"metadata": {str(number): "" for number in range(65)}},
        {"not_before": datetime(2026, 11, 27)},  # noqa: DTZ001  the fault itself
        {"expires": timedelta.max},
    ],
)
def test_a_wrong_option_gets_the_same_sentence_from_a_client_and_a_gateway(wrong: dict[str, Any]) -> None:
    with FakeFleet() as fleet, pytest.raises(InvalidOptionError) as refused:
        fleet.client().submit(ReadDocument(b""), **wrong)
    with pytest.raises(ValidationError) as answered:
        Submission.model_validate(wrong)
    assert [error["msg"] for error in answered.value.errors()] == [f"Value error, {refused.value}"]


def test_what_a_client_sends_is_what_a_gateway_takes() -> None:
    options = request.options(
        priority="urgent",
        metadata={"ward": "7"},
        webhook="https://example.org/hook",
        not_before=timedelta(minutes=5),
        expires=datetime(2027, 1, 1, tzinfo=UTC),
        client="app",
        fair_by="ward",
    )
    task = ReadDocument("https://example.org/scan.pdf")
    body = body_of([(request.Item(0, request.Submission(task, key="first")), None)], options)
    taken = Submission.model_validate_json(body["content"])
    assert {name: getattr(taken, name) for name in request.SubmitOptions.model_fields} == {
        name: getattr(options, name) for name in request.SubmitOptions.model_fields
    }
    assert isinstance(taken.webhook, Webhook)
    assert taken.idempotency_keys == ["first"]
