"""What two submits of the same work have in common."""

from typing import Any

import pytest

from pecia_schemas.encryption import Keyring, task_digest

TASK = {"source": {"sha256": "0" * 64}, "language": "en", "fields": None}


def digest(task: dict[str, Any]) -> str:
    return task_digest("document.read", task, "normal", Keyring(), None)


def test_a_password_and_a_field_that_a_later_version_adds_change_nothing() -> None:
    assert digest(TASK | {"password": "open sesame"}) == digest(TASK)
    assert digest(TASK | {"invented_later": None}) == digest(TASK)


@pytest.mark.parametrize(
    "change", [{"language": "ko"}, {"fields": {"drug": "string"}}, {"pages": "1"}, {"cache": False}]
)
def test_other_work_has_another_digest(change: dict[str, Any]) -> None:
    assert digest(TASK | change) != digest(TASK)
