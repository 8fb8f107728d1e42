"""What a task may say, and what two submits of the same work have in common."""

import ast
import inspect
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pecia import CaptionVideo, InvalidOptionError, ReadDocument, Webhook
from pecia.request import check_task
from pecia_schemas import events, states, storable, tasks
from pecia_schemas.encryption import Keyring, task_digest
from pecia_schemas.media import PageRanges
from pecia_schemas.settings import ClientSettings
from tests.shared.samples import page


class Drug(BaseModel):
    name: str
    dose: str | None = None


class Prescription(BaseModel):
    patient: str
    drugs: list[Drug]


class Section(BaseModel):
    title: str
    sections: "list[Section]" = []


@pytest.mark.parametrize("fields", [None, Prescription, Section, {"type": "object"}])
def test_a_model_or_the_schema_of_an_object_is_taken(fields: Any) -> None:
    check_task(ReadDocument(b"", fields=fields))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "not a valid JSON schema.*type"),
        ({}, "an object"),
        ({"type": "array"}, "an object"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/a"}}}, "this schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}, "does not contain"),
        ({"type": "object", "patternProperties": {"(a+)+": {}}}, "patternProperties"),
        ({"type": "object", "description": "\0"}, "NUL"),
        ({"type": "object", "description": "\ud800"}, "only JSON values"),
        ({"type": "object", "enum": [{1}]}, "only JSON values"),
        ({"type": "object", "description": "long " * 4000}, "at most"),
    ],
)
def test_what_no_answer_could_be_held_to_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOptionError, match=why):
        check_task(ReadDocument(b"", fields=schema))


def test_fields_come_back_as_the_model_they_were_asked_for_with() -> None:
    found = page(fields={"patient": "Ada", "drugs": [{"name": "Aspirin"}]}).fields_as(Prescription)
    assert found == Prescription(patient="Ada", drugs=[Drug(name="Aspirin")])
    assert page().fields_as(Prescription) is None


COUNT = 60
ends = st.integers(1, COUNT)
closed = st.one_of(
    ends.map(lambda page: ({page}, f"{page}")),
    st.tuples(ends, ends).map(
        lambda pair: (set(range(min(pair), max(pair) + 1)), f" {min(pair)} -{max(pair)}")
    ),
)
pieces = st.one_of(closed, ends.map(lambda page: (set(range(page, COUNT + 1)), f"{page}-")))


@given(st.lists(pieces, min_size=1, max_size=8))
def test_ranges_mean_the_pages_as_counted_once_and_in_order(asked: list[tuple[set[int], str]]) -> None:
    wanted = sorted(set[int]().union(*(pages for pages, _ in asked)))
    ranges = PageRanges.parse(",".join(text for _, text in asked))
    assert ranges.missing_from(COUNT) is None
    assert [index + 1 for index in ranges.indices(COUNT)] == wanted
    assert ranges.length(COUNT) == len(wanted)
    assert PageRanges.parse(str(ranges)) == ranges


@given(st.lists(closed, min_size=1, max_size=8), st.integers(0, COUNT))
def test_the_first_page_beyond_a_document_is_found(asked: list[tuple[set[int], str]], count: int) -> None:
    beyond = [page for pages, _ in asked for page in pages if page > count]
    assert PageRanges.parse(",".join(text for _, text in asked)).missing_from(count) == min(
        beyond, default=None
    )


def test_an_open_range_needs_a_page_to_begin_with() -> None:
    assert PageRanges.parse("5-").missing_from(4) == 5
    assert PageRanges.parse("2,5-").missing_from(4) == 5
    assert PageRanges.parse("5-").missing_from(5) is None


def test_the_same_pages_are_the_same_task_however_they_are_written() -> None:
    one = ReadDocument(b"", pages="7, 2-3,1")
    assert one.pages == "1-3,7"
    assert one == ReadDocument(b"", pages="1,2,3,7-7")
    assert ReadDocument(b"", pages="5-,8").pages == "5-"


def test_a_huge_range_costs_nothing_before_the_document_is_known() -> None:
    ranges = PageRanges.parse("1-999999999,5-")
    assert ranges.missing_from(10) is None
    assert ranges.length(10) == 10
    assert PageRanges.parse("1-999999999").missing_from(10) == 11


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "1,", "-3", "3-1", "1--3", "1-2-3", "one", "1;2", "\uff11", "1.5", "9" * 10, "1," * 1_500],
)
def test_what_is_no_range_is_refused_where_the_task_is_made(text: str) -> None:
    with pytest.raises(
        ValidationError, match=r"pages are written like '1-3,7,9-'|pages have at most 2,000 characters"
    ):
        ReadDocument(b"", pages=text)


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
