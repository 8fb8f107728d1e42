"""What the runbook has people ask `pecia`, asked of real servers."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pecia.cli.app import app
from runbook import typed

QUESTIONS = {"audit", "dead list", "doctor", "keys new", "keys status", "list", "purge"}
"""Verbs of the runbook that change nothing as it has them typed, and want nothing but the stores."""


def questions() -> list[tuple[str, ...]]:
    found = {one.pecia for one in typed() if one.pecia}
    return sorted(words for words in found if {words[0], " ".join(words[:2])} & QUESTIONS)


def test_every_question_of_the_runbook_is_asked() -> None:
    asked = {" ".join(words) for words in questions()}
    assert {"doctor", "doctor --deep", "dead list", "purge --before 90d --dry-run", "keys status"} <= asked


@pytest.mark.parametrize("words", questions(), ids=" ".join)
def test_a_question_is_answered(words: tuple[str, ...], stores: dict[str, str]) -> None:
    told = CliRunner().invoke(app, words, env=stores)
    nobody_on_duty = 4 if words[0] == "doctor" else 0
    assert told.exit_code == nobody_on_duty, told.output
    assert told.stdout or words[0] in ("audit", "dead", "list")
