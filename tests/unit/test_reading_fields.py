"""What a language model is asked to do with a page, and what its answer to `fields=` is worth."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import storable
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.fields import Fields, closed, judge, parser
from pecia_workers.reading.ladder import Reading
from pecia_workers.reading.page import fields_instruction, instruction_for
from tests.shared.chat_server import serving

SCHEMA = {
    "type": "object",
    "properties": {"drug": {"type": "string"}, "refills": {"type": "integer", "maximum": 9}},
    "required": ["drug"],
    "additionalProperties": False,
}
GOOD = '{"drug": "Aspirin", "refills": 2}'
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def read(text: str, verdict: Verdict = Verdict.OK) -> Reading:
    answer = judge(SCHEMA)(Generation(text=text, verdict=verdict, usage=TokenUsage(prompt=5, output=5)))
    return Reading(engine="test", change=None, generation=answer, seen=(1, 1))


@pytest.mark.parametrize("text", [GOOD, f" {GOOD}\n", f"```json\n{GOOD}\n```"])
def test_an_answer_that_follows_the_schema_is_an_object(text: str) -> None:
    assert parser(SCHEMA)(text) == {"drug": "Aspirin", "refills": 2}


@pytest.mark.parametrize(
    "text",
    [
        *('{"drug": "Aspi', "[]", '"Aspirin"', "{}", '{"drug": 1}', "Sure! Here it is.", ""),
        *('{"drug": "a", "refills": 10}', '{"drug": "a", "extra": 1}', '{"drug": ' * 500),
        *('{"drug": "a", "refills": NaN}', '{"drug": "a", "refills": -1e999}'),
    ],
)
def test_any_other_answer_is_none(text: str) -> None:
    assert parser(SCHEMA)(text) is None


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", '{"a":' * 300 + "1" + "}" * 300])
def test_a_number_that_is_no_json_and_what_is_nested_without_end_answers_nothing(value: str) -> None:
    assert parser({"type": "object"})(f'{{"a": {value}}}') is None


def test_a_pattern_is_the_engines_to_keep() -> None:
    hostile = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    assert parser(hostile)(json.dumps({"a": "a" * 40 + "!"}))


def test_a_schema_that_refers_to_elsewhere_fetches_nothing() -> None:
    with serving() as elsewhere:
        assert parser({"type": "object", "$ref": f"{elsewhere.url}/models"})("{}") is None
    assert elsewhere.looked == []


@given(ANY_JSON)
def test_whatever_follows_can_be_stored(value: Any) -> None:
    kept = parser({"type": "object"})(json.dumps({"a": value}))
    assert kept is not None
    text = json.dumps(kept, ensure_ascii=False)
    assert "\\u0000" not in text
    assert text.encode()


def test_texts_lose_what_postgres_does_not_store_and_nothing_else() -> None:
    assert storable({"a\0": ["\ud83d\ude00", "\ud83d", 1]}) == {
        "a": ["\N{GRINNING FACE}", "\N{REPLACEMENT CHARACTER}", 1]
    }


def test_a_model_has_no_room_to_invent_fields() -> None:
    drug = {"type": "object", "properties": {"properties": {"type": "string"}}}
    asked = {
        "properties": {"drugs": {"items": {"$ref": "#/$defs/D"}}, "other": {"anyOf": [drug]}},
        "$defs": {"D": drug},
    }

    shut = drug | {"additionalProperties": False}
    assert closed(asked) == {
        "properties": {"drugs": {"items": {"$ref": "#/$defs/D"}}, "other": {"anyOf": [shut]}},
        "$defs": {"D": shut},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    ],
)
def test_what_was_left_open_on_purpose_stays_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_an_answer_is_judged_by_the_schema_and_not_by_its_end() -> None:
    assert read(GOOD, Verdict.TRUNCATED).generation.verdict is Verdict.OK
    assert read('{"drug": "Aspi', Verdict.TRUNCATED).generation.verdict is Verdict.TRUNCATED
    assert read("{}", Verdict.REPETITION).generation.verdict is Verdict.REPETITION
    assert read("{}").generation.verdict is Verdict.UNREADABLE


def test_the_answer_that_followed_is_kept_else_the_best_as_text_and_the_others_are_told() -> None:
    bad, good = read("{}"), read(GOOD)
    fields = Fields.of([bad, good], SCHEMA)
    assert fields == Fields(values={"drug": "Aspirin", "refills": 2}, text=None, kept=good, others=(bad,))
    looped, cut = read("{", Verdict.REPETITION), read('{"drug": "Aspi', Verdict.TRUNCATED)
    none = Fields(values=None, text='{"drug": "Aspi', kept=None, others=(looped, cut))
    assert Fields.of([looped, cut], SCHEMA) == none


@pytest.mark.parametrize("language", ["en", "ko", "zh", None])
def test_the_instruction_tells_the_schema_with_its_descriptions(language: str | None) -> None:
    schema = {"type": "object", "properties": {"약": {"description": "약 이름"}}}
    assert '"약":{"description":"약 이름"}' in fields_instruction(schema, language)


@pytest.mark.parametrize("document_type", DocumentType)
@pytest.mark.parametrize(("language", "word"), [("en", "Transcribe"), ("ko", "마크다운"), ("zh", "转写")])
def test_every_kind_of_document_has_its_words_in_every_language(
    document_type: DocumentType, language: str, word: str
) -> None:
    assert word in instruction_for(document_type, language)
    assert "Markdown" in instruction_for(document_type, language) or language == "ko"


@pytest.mark.parametrize("language", [None, "fr"])
def test_any_other_page_is_asked_for_in_english(language: str | None) -> None:
    english = instruction_for(DocumentType.CHART, "en")
    assert instruction_for(DocumentType.CHART, language) == english
    kinds = itertools.product(DocumentType, ("en", "ko", "zh"))
    assert len({instruction_for(*kind) for kind in kinds}) == 3 * len(DocumentType), "no two are the same"
