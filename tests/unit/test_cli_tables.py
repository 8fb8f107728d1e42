"""Tables on terminals: an id is there to be copied, so it stands whole; what there is no room for is left out."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from pecia import FailureCode, ReadDocument
from pecia.cli.output import fitting, table
from pecia.testing import FakeFleet


def drawn(width: int) -> tuple[list[str], list[str]]:
    """Return the table of a job that was read and one that failed, and their ids."""
    with FakeFleet() as fleet:
        client = fleet.client()
        read = client.submit(ReadDocument(b"a scan")).wait()
        fleet.fails(ReadDocument, FailureCode.LANGUAGE_UNAVAILABLE)
        failed = client.submit(ReadDocument(b"another")).wait()
        return table([read, failed], width).splitlines(), [str(read.id), str(failed.id)]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_width_has_whole_ids_states_and_reasons(width: int) -> None:
    lines, ids = drawn(width)
    shown = [line for line in lines if any(one in line for one in ids)]
    assert len(shown) == len(ids)
    assert "succeeded" in shown[0]
    assert "failed" in shown[1]
    assert "language_unavailable" in shown[1]
    assert "…" not in "".join(lines)


def test_a_wide_terminal_has_every_column_and_a_narrow_one_those_that_matter() -> None:
    wide, narrow = (" ".join(drawn(width)[0]).split() for width in (200, 80))
    assert wide[:8] == ["job", "kind", "lane", "state", "parts", "submitted", "took", "why"]
    assert narrow[:4] == ["job", "state", "parts", "why"]


def test_columns_go_in_the_order_that_was_given_until_the_rest_has_room() -> None:
    now = datetime.now(UTC).isoformat()
    made = fitting(("a", "b", "c", "d"), [(str(uuid4()), now, now, "x")], spare=("b", "c"), width=80)
    assert made.split()[:3] == ["a", "c", "d"]


def test_columns_are_as_wide_on_the_terminal_as_what_is_in_them() -> None:
    rows = [("처방전", "\x1b[32mdone\x1b[0m", "x"), ("plain", "failed", "y")]
    lines = fitting(("name", "state", "why"), rows, spare=()).splitlines()
    assert lines[3:5] == [" 처방전  \x1b[32mdone\x1b[0m    x", " plain   failed  y"]


def test_what_the_last_column_has_no_room_for_goes_on_below() -> None:
    lines = fitting(("id", "why"), [("1", "abcdefghijklm")], spare=(), width=14).splitlines()
    assert lines[3:5] == [" 1   abcdefghi", "     jklm"]
