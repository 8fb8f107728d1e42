"""Answers to `fields=`: validation, values of truncated answers, and the lists that the schema asks for."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Self

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from pecia_schemas.blocks import MergeRule, storable
from pecia_schemas.merging import pointer
from pecia_schemas.results import Verdict
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.ladder import Reading, best, unfenced

_MERGE: Final = "x-merge"
_ROWS: Final = "x-rows"
_DEFINED: Final = "#/$defs/"
_ALL_OF: Final = '"allOf":'
_SCHEMAS: Final = frozenset({"items", "additionalProperties"})
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "$defs", "definitions"})
_SCHEMAS_IN_A_LIST: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_NEEDED: Final = frozenset({"required", "minItems", "minProperties", "dependentRequired"})
"""Rules that a truncated object or list may break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The outcome of all readings for the fields of one page."""

    values: dict[str, Any] | None
    text: str | None
    """The best answer, if none followed the schema."""
    kept: Reading | None
    """The answer that followed the schema, or the cut answer that holds `values`."""
    others: tuple[Reading, ...]
    cut: str | None = None
    """JSON pointer to the list or object in which the answer was truncated; None: complete."""

    @classmethod
    def of(cls, readings: list[Reading], schema: Mapping[str, Any]) -> Self:
        """Return the best answer; of truncated ones, that with the most complete values."""
        kept, cut = best(readings), None
        text, values = kept.generation.text, parser(schema)(kept.generation.text)
        if values is None:
            completed = [(one, _completed(one.generation.text, schema)) for one in readings if _is_cut(one)]
            rescued = [(one, known) for one, known in completed if known]
            if not rescued:
                return cls(values=None, text=text, kept=None, others=tuple(readings))
            kept, (values, cut) = max(rescued, key=lambda pair: len(json.dumps(pair[1][0])))
            text = kept.generation.text
        others = tuple(reading for reading in readings if reading is not kept)
        return cls(values=values, text=None if cut is None else text, kept=kept, others=others, cut=cut)

    @property
    def is_cut(self) -> bool:
        """Whether the best answer was truncated."""
        return self.cut is not None or (self.values is None and any(map(_is_cut, self.others)))


def _is_cut(reading: Reading) -> bool:
    return reading.generation.verdict is Verdict.TRUNCATED


def judge(schema: Mapping[str, Any]) -> Callable[[Generation], Generation]:
    """Return a judge of answers: `ok` if they follow the schema, `unreadable` if only the engine called them good."""
    parse = parser(schema)

    def judged(generation: Generation) -> Generation:
        verdict = Verdict.UNREADABLE if generation.verdict is Verdict.OK else generation.verdict
        return replace(generation, verdict=Verdict.OK if parse(generation.text) is not None else verdict)

    return judged


def parser(schema: Mapping[str, Any]) -> Callable[[str], dict[str, Any] | None]:
    """Return a parser that turns an answer into a storable object that follows the schema, or into None."""
    validator = _validator(schema)

    def parse(text: str) -> dict[str, Any] | None:
        try:
            value = _loaded(unfenced(text))
            return value if isinstance(value, dict) and validator.is_valid(value) else None
        except (ValueError, RecursionError, Unresolvable):
            return None

    return parse


def _validator(schema: Mapping[str, Any]) -> Validator:
    """Return the schema's validator. It ignores `pattern`, since a hostile one could block the worker."""
    kind = extend(validator_for(schema, default=Draft202012Validator), {"pattern": lambda *_: ()})
    return kind(dict(schema), registry=Registry())  # it fetches nothing


def _loaded(text: str) -> Any:
    return storable(json.loads(text, parse_constant=_finite, parse_float=_finite))


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        message = f"{digits} is no JSON"
        raise ValueError(message)
    return number


def _completed(text: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Return the complete values of a truncated answer and where it ends, or None if it has none.

    They follow the schema, except that open lists and objects may lack members.
    """
    try:
        closed_text, depth = _closed_text(unfenced(text))
        value = _loaded(closed_text)
        inner: Any = value
        path: list[Any] = []
        for _ in range(depth - 1):  # an open value is always the last of its list or object
            path.append(len(inner) - 1 if isinstance(inner, list) else [*inner][-1])
            inner = inner[path[-1]]
        if not isinstance(value, dict) or not any(value.values()):
            return None
        for error in _validator(schema).iter_errors(value):
            place = [*error.absolute_path]
            if error.validator not in _NEEDED or place != path[: len(place)]:
                return None
    except (ValueError, LookupError, TypeError, RecursionError, Unresolvable):
        return None
    *_, where = accumulate(path, pointer, initial="")
    return value, where


def _closed_text(text: str) -> tuple[str, int]:
    """Return truncated JSON, closed after its last complete row, and how many lists and objects that closes.

    Of a truncated item, only a list that has begun in it is kept.
    """
    # The closing sign of each open list or object, and where its last complete value ends.
    ends: list[tuple[str, int]] = []
    in_text = is_escaped = False
    for place, sign in enumerate(text):
        if in_text:
            in_text = is_escaped or sign != '"'
            is_escaped = sign == "\\" and not is_escaped
        elif sign == '"':
            in_text = True
        elif sign in "[{":
            ends.append(("]" if sign == "[" else "}", place + 1))
        elif sign in "]}" and ends:
            ends.pop()
            if ends:
                ends[-1] = (ends[-1][0], place + 1)
        elif sign == "," and ends:
            ends[-1] = (ends[-1][0], place)
    lists = [number for number, (closing, _) in enumerate(ends, 1) if closing == "]"]
    depth = lists[-1] if lists else len(ends)
    return text[: ends[depth - 1][1]] + "".join(closing for closing, _ in reversed(ends[:depth])), depth


def merge_rules(schema: Mapping[str, Any]) -> dict[str, MergeRule]:
    """Return the `x-merge` rules of a schema, by JSON pointer: how the pages' values become one object.

    Rules that this version does not know are ignored.
    """
    rules = list(MergeRule)
    return {
        path: MergeRule(one[_MERGE]) for path, one in _properties(schema, schema) if one.get(_MERGE) in rules
    }


def rows_of_lists(schema: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """Return, by JSON pointer, the lists that need all rows: the name of each value, and whether it is a number.

    A list with `"x-rows": "some"` is a selection of rows, and left out.
    """
    lists: dict[str, dict[str, bool]] = {}
    for path, described in _properties(schema, schema):
        items = described.get("items")
        if isinstance(items, Mapping) and described.get(_ROWS) != "some":
            columns = lists[path] = {}
            for name, one in _properties(items, schema):
                if name.count("/") == 1:
                    columns[name] = columns.get(name, False) or one.get("type") in ("number", "integer")
    return lists


def _properties(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: str = "", within: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a schema and its properties' schemas by JSON pointer, including `anyOf` choices and `$ref` targets."""
    yield path, schema
    for choice in [schema, *schema.get("anyOf", ())]:
        if choice is not schema:
            yield path, choice
        name = choice.get("$ref", "").removeprefix(_DEFINED)
        if name and name not in within and name in root.get("$defs", {}):
            yield from _properties(root["$defs"][name], root, path, within | {name})
        for inner, described in choice.get("properties", {}).items():
            if isinstance(described, Mapping):
                yield from _properties(described, root, pointer(path, inner), within)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with `additionalProperties` false where it does not say.

    A model that decodes by an open schema adds properties. Members of `allOf` stay open, as each must admit the others.
    """
    return dict(schema) if _ALL_OF in json.dumps(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    inner = {name: value for name, value in schema.items() if name not in (_MERGE, _ROWS)}
    for name, value in inner.items():
        if name in _SCHEMAS_BY_NAME:
            inner[name] = {key: _closed(one) for key, one in value.items()}
        elif name in _SCHEMAS_IN_A_LIST:
            inner[name] = list(map(_closed, value))
        elif name in _SCHEMAS:
            inner[name] = _closed(value)
    return {"additionalProperties": False} | inner if "properties" in schema else inner
