"""What two submits of the same work have in common."""

from __future__ import annotations

from typing import Any

import pytest

from pecia_schemas.encryption import Keyring
from pecia_schemas.stored_tasks import task_digest

TASK = {"source": {"sha256": "0" * 64}, "language": "en", "fields": None}


def digest(task: dict[str, Any]) -> str:
    return task_digest("document.read", task, "normal", Keyring(), None)


def test_a_field_that_a_later_version_adds_changes_nothing_until_it_is_used() -> None:
    assert digest(TASK | {"invented_later": None}) == digest(TASK)


@pytest.mark.parametrize(
    "change", [{"language": "ko"}, {"fields": {"drug": "string"}}, {"pages": "1"}, {"cache": False}]
)
def test_other_work_has_another_digest(change: dict[str, Any]) -> None:
    assert digest(TASK | change) != digest(TASK)


def test_a_password_is_no_part_of_it() -> None:
    assert digest(TASK | {"password": "open sesame"}) == digest(TASK)
