"""The names that callers may write instead of an enumeration's members, as type checkers know them."""

import ast
import inspect
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest

from pecia import CaptionVideo, ReadDocument
from pecia_schemas import events, states, tasks


@pytest.mark.parametrize(
    ("names", "enumeration"),
    [
        (states.LaneName, states.Lane),
        (states.JobStateName, states.JobState),
        (states.DeliveryStateName, states.DeliveryState),
        (events.NoticeTypeName, events.NoticeType),
    ],
)
def test_every_member_can_be_written_by_name(names: object, enumeration: type[StrEnum]) -> None:
    assert get_args(names) == tuple(enumeration)


@pytest.mark.parametrize(
    "enumeration", [tasks.DocumentType, tasks.Preparation, tasks.Preset, tasks.CaptionStyle]
)
def test_every_member_of_a_tasks_option_can_be_written_by_name(enumeration: type[StrEnum]) -> None:
    [written] = [
        node.value
        for node in ast.walk(ast.parse(Path(tasks.__file__).read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"Any{enumeration.__name__}"
    ]
    names = {node.value for node in ast.walk(written) if isinstance(node, ast.Constant)}
    assert names == set(enumeration)


@pytest.mark.parametrize("task", [ReadDocument, CaptionVideo])
def test_a_task_shows_its_options_where_a_program_looks_for_them(task: type) -> None:
    source, *options = inspect.signature(task).parameters.values()
    assert (source.name, source.kind) == ("source", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert {"language", "preset", "cache"} <= {option.name for option in options}
