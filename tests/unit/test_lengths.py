"""Every text that is stored has a limit, in the contract and in its column."""

import pytest
from pydantic import ValidationError
from sqlalchemy import CheckConstraint, Table, Text

from pecia import ReadDocument, Webhook
from pecia_schemas import storable
from pecia_schemas.settings import ClientSettings
from pecia_schemas.tables import Base

FROM_A_FEW_WORDS = {"jobs.kind", "jobs.lane", "parts.lane", "job_events.state"}
"""Written from an enumeration of the code."""
CALLBACKS = {"deliveries", "delivery_attempts", "receivers"}
"""Copies of what has a limit where it comes from, and what the sender has cut."""


def is_checked(table: Table, column: str) -> bool:
    checks = [check for check in table.constraints if isinstance(check, CheckConstraint)]
    return any(f"{column} IN (" in str(check.sqltext) for check in checks)


def test_every_column_of_text_is_as_long_as_the_contract_lets_it_be() -> None:
    endless = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        if table.name not in CALLBACKS
        for column in table.columns
        if isinstance(column.type, Text) and not is_checked(table, column.name)
    }
    assert endless == FROM_A_FEW_WORDS


@pytest.mark.parametrize(
    "options",
    [
        {"adapter": "x" * (storable.NAME + 1)},
        {"password": "x" * (storable.PASSWORD + 1)},
        {"instructions": "x" * (storable.INSTRUCTIONS + 1)},
        {"instructions": " \n"},
        {"instructions": "a\0b"},
        {"pages": "1," * storable.PAGES + "1"},
        {"language": "eng"},
        {"options": {"seed": 2**63}},
        {"prepare": ("blank",) * 9},
    ],
)
def test_a_task_takes_no_text_that_is_too_long(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ReadDocument(b"", **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_webhook_and_the_name_of_a_client_have_a_limit() -> None:
    with pytest.raises(ValidationError, match="2048"):
        Webhook.model_validate({"url": "https://example.org/" + "x" * storable.WEBHOOK_URL})
    with pytest.raises(ValidationError, match="200"):
        ClientSettings(client_name="x" * (storable.NAME + 1))
