"""What the runbook and its entries for alerts have people ask `pecia`, asked of real servers."""

import pytest

from tests.shared.fixture_types import Make
from tests.shared.runbook import ALERTS, RUNBOOK, typed

pytestmark = pytest.mark.gate

LISTS = {"audit", "dead list", "list", "webhook deliveries", "webhook list"}
"""Verbs that may say nothing, of a fleet in which nothing has happened yet."""
QUESTIONS = LISTS | {"doctor", "keys new", "keys status", "purge"}
"""Verbs that change nothing as they are typed there, and want nothing but the stores."""


def questions() -> list[tuple[str, ...]]:
    found = {one.pecia for file in (RUNBOOK, ALERTS) for one in typed(file) if one.pecia}
    return sorted(words for words in found if verbs(words) & QUESTIONS and "ID" not in words)


def verbs(words: tuple[str, ...]) -> set[str]:
    return {words[0], " ".join(words[:2])}


def test_every_question_of_the_runbook_is_asked() -> None:
    asked = {" ".join(words) for words in questions()}
    assert {"doctor", "doctor --deep", "dead list", "purge --before 90d --dry-run", "keys status"} <= asked
    assert "webhook deliveries --state dead --since 2h" in asked


@pytest.mark.parametrize("words", questions(), ids=" ".join)
def test_a_question_is_answered(words: tuple[str, ...], pecia: Make) -> None:
    told = pecia(*words)
    nobody_on_duty = 4 if words[0] == "doctor" else 0
    assert told.exit_code == nobody_on_duty, told.output
    assert told.stdout or verbs(words) & LISTS
