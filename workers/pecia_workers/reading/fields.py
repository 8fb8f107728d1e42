"""What an answer to `fields=` is worth: JSON that follows the task's schema, or not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from jsonschema import Draft202012Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from pecia_schemas.blocks import MergeRule
from pecia_schemas.merging import pointer
from pecia_schemas.results import Verdict
from pecia_schemas.storable import storable
from pecia_workers.engines.base import Generation
from pecia_workers.reading.ladder import Reading, best, unfenced

_MERGE: Final = "x-merge"
_DEFINED: Final = "#/$defs/"
_ALL_OF: Final = '"allOf":'
_SCHEMAS: Final = frozenset({"items", "additionalProperties"})
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "$defs", "definitions"})
_SCHEMAS_IN_A_LIST: Final = frozenset({"anyOf", "oneOf", "prefixItems"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What came of all readings for the fields of one page."""

    values: dict[str, Any] | None
    text: str | None
    """The best answer, if none followed the schema."""
    kept: Reading | None
    """The answer that followed."""
    others: tuple[Reading, ...]

    @classmethod
    def of(cls, readings: list[Reading], schema: Mapping[str, Any]) -> Fields:
        """Return the best of the answers."""
        first = best(readings)
        values = parser(schema)(first.generation.text)
        if values is None:
            return cls(values=None, text=first.generation.text, kept=None, others=tuple(readings))
        others = tuple(reading for reading in readings if reading is not first)
        return cls(values=values, text=None, kept=first, others=others)


def merge_rules(schema: Mapping[str, Any]) -> dict[str, MergeRule]:
    """Return how a document's pages become one object, by JSON pointer, where the schema says it with `x-merge`.

    Other rules than those of this version are none.
    """
    return dict(_rules(schema, schema, "", frozenset()))


def _rules(
    schema: Mapping[str, Any], whole: Mapping[str, Any], path: str, within: frozenset[str]
) -> Iterator[tuple[str, MergeRule]]:
    rule = schema.get(_MERGE)
    if rule in list(MergeRule):
        yield path, MergeRule(rule)
    for choice in [schema, *schema.get("anyOf", ())]:
        name = choice.get("$ref", "").removeprefix(_DEFINED)
        if name and name not in within and name in whole.get("$defs", {}):
            yield from _rules(whole["$defs"][name], whole, path, within | {name})
        for inner, described in choice.get("properties", {}).items():
            if isinstance(described, Mapping):
                yield from _rules(described, whole, pointer(path, inner), within)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with no room for properties that it does not name, where it leaves that open.

    A model that decodes by it would fill that room. What `allOf` combines must stay open to the other parts.
    """
    return dict(schema) if _ALL_OF in json.dumps(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    inner = {name: value for name, value in schema.items() if name != _MERGE}
    for name, value in inner.items():
        if name in _SCHEMAS_BY_NAME:
            inner[name] = {key: _closed(one) for key, one in value.items()}
        elif name in _SCHEMAS_IN_A_LIST:
            inner[name] = list(map(_closed, value))
        elif name in _SCHEMAS:
            inner[name] = _closed(value)
    return {"additionalProperties": False} | inner if "properties" in schema else inner


def judge(schema: Mapping[str, Any]) -> Callable[[Generation], Generation]:
    """Return what judges answers: `ok` if they follow the schema, `unreadable` if only the engine thought so."""
    parse = parser(schema)

    def judged(generation: Generation) -> Generation:
        verdict = Verdict.UNREADABLE if generation.verdict is Verdict.OK else generation.verdict
        return replace(generation, verdict=Verdict.OK if parse(generation.text) is not None else verdict)

    return judged


def parser(schema: Mapping[str, Any]) -> Callable[[str], dict[str, Any] | None]:
    """Return what turns an answer into an object that follows the schema and can be stored, or into None.

    A `pattern` is the engine's to keep: tried again here, a hostile one could hold the worker for ever.
    """
    kind = extend(validator_for(schema, default=Draft202012Validator), {"pattern": lambda *_: ()})
    validator = kind(dict(schema), registry=Registry())  # one that fetches nothing

    def parse(text: str) -> dict[str, Any] | None:
        try:
            value = storable(json.loads(unfenced(text), parse_constant=_refuse, parse_float=_finite))
            return value if isinstance(value, dict) and validator.is_valid(value) else None
        except (ValueError, RecursionError, Unresolvable):
            return None

    return parse


def _refuse(constant: str) -> NoReturn:
    message = f"{constant} is no JSON"
    raise ValueError(message)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse("infinity")
