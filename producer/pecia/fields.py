"""Whether `fields=` can be meant: a JSON schema of an object, small, and complete in itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pecia.errors import InvalidOptionError

if TYPE_CHECKING:
    from pecia_schemas.tasks import Task

_LARGEST = 16 * 1024
"""Characters of the schema as JSON: it is part of what the model reads with every page."""

_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""What holds names that are the author's own."""


def check(task: Task[Any]) -> None:
    """Raise `InvalidOptionError` if the task asks for fields by a schema that no answer could be held to."""
    asked = getattr(task, "fields", None)
    if asked is None:
        return
    try:
        written = json.dumps(asked, ensure_ascii=False)
        written.encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidOptionError("fields is a JSON schema: what it holds must be JSON.") from None
    _check(written)


@lru_cache(maxsize=64)
def _check(written: str) -> None:
    if len(written) > _LARGEST:
        raise InvalidOptionError(
            f"The schema in fields has {len(written):,} characters as JSON, {_LARGEST:,} at most: ask for less,"
            " or read twice."
        )
    schema = json.loads(written)
    _check_meaning(schema)
    if _root(schema).get("type") != "object":
        raise InvalidOptionError('fields asks for an object: a schema with "type": "object".')
    for name, value in _entries(schema):
        _check_entry(name, value)
        if (
            name == "$ref"
            and isinstance(value, str)
            and value.startswith("#/")
            and _at(schema, value) is None
        ):
            raise InvalidOptionError("fields refers, by $ref, to something that it does not hold.")


def _check_meaning(schema: dict[str, Any]) -> None:
    try:
        from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  slow, and few tasks have fields
        from jsonschema.validators import validator_for  # noqa: PLC0415
    except ModuleNotFoundError:  # a light client: its gateway checks the schema
        return

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        raise InvalidOptionError(
            f"fields is no JSON schema: what stands at {_place(error.absolute_path)} breaks a rule of its own"
            f" ({error.validator})."
        ) from None


def _place(path: Iterable[str | int]) -> str:
    """Return where in a schema something stands, without the names that its author gave."""
    steps: list[str] = []
    for step in path:
        named = bool(steps) and steps[-1] in _NAMING
        steps.append("…" if named else str(step))
    return "/".join(steps) or "the top"


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, or what it refers to as a whole, as pydantic writes it of a model that holds itself."""
    root = _at(schema, str(schema.get("$ref", "#")))
    return root if isinstance(root, dict) else {}


def _at(schema: dict[str, Any], pointer: str) -> Any:
    place: Any = schema
    for step in pointer.split("/")[1:]:
        place = place.get(step) if isinstance(place, dict) else None
    return place


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from _entries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield "", inner
            yield from _entries(inner)


def _check_entry(name: str, value: Any) -> None:
    if name.endswith(("$ref", "$dynamicRef")) and isinstance(value, str) and not value.startswith("#"):
        raise InvalidOptionError(
            "fields refers, by $ref, to something elsewhere: write everything into the one schema, under $defs."
        )
    if name == "patternProperties":
        raise InvalidOptionError("fields names its properties: patternProperties is not understood.")
    if "\0" in name or (isinstance(value, str) and "\0" in value):
        raise InvalidOptionError("fields holds a NUL, which Postgres does not store.")
