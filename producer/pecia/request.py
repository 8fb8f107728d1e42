"""Requests to a fleet: tasks and their options, with one check for each. No I/O.

A client's keyword arguments, the command's options and a gateway's body all become `SubmitOptions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from pecia import sources
from pecia.errors import InvalidOptionError
from pecia_schemas import storable
from pecia_schemas.events import ENDINGS, NoticeType, Webhook
from pecia_schemas.states import Lane, LaneName, new_id

if TYPE_CHECKING:
    from pecia_schemas.tasks import Task

R = TypeVar("R", bound=BaseModel)
E = TypeVar("E", bound=StrEnum)

_LARGEST = 16 * 1024
"""Maximum length of a schema as JSON, in characters: the model reads it with every page."""

_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Schema keywords whose keys are names chosen by the author."""


def check_task(task: Task[Any]) -> None:
    """Raise `InvalidOptionError` if `task` is not a task, or its adapter or the schema of its fields is invalid."""
    from pecia_schemas.tasks import Task  # noqa: PLC0415  tasks are slow to load

    if not isinstance(task, Task):
        raise InvalidOptionError("A task must be a ReadDocument, a ReadBundle or a CaptionVideo.")
    if not (getattr(task, "adapter", None) or " ").isprintable():
        raise InvalidOptionError("The name of an adapter must be printable text.")
    if (fields := getattr(task, "fields", None)) is None:
        return
    try:
        schema = json.dumps(fields, ensure_ascii=False)
        schema.encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidOptionError("fields must be a JSON schema: only JSON values are allowed.") from None
    _check_schema(schema)


@lru_cache(maxsize=64)
def _check_schema(written: str) -> None:
    if len(written) > _LARGEST:
        raise InvalidOptionError(
            f"The schema in fields has {len(written):,} characters as JSON, of at most {_LARGEST:,}:"
            " request fewer fields, or read twice."
        )
    schema = json.loads(written)
    _check_meaning(schema)
    # The root may be a reference: pydantic writes recursive models so.
    root = _at(schema, str(schema.get("$ref", "#")))
    if not isinstance(root, dict) or root.get("type") != "object":
        raise InvalidOptionError('fields is the schema of an object: it needs "type": "object".')
    for name, value in _entries(schema):
        text = value if isinstance(value, str) else None
        if text is not None and name.endswith(("$ref", "$dynamicRef")) and not text.startswith("#"):
            raise InvalidOptionError(
                "fields refers by $ref to another schema: include everything in this schema, under $defs."
            )
        if name == "patternProperties":
            raise InvalidOptionError("patternProperties in fields is not supported: name the properties.")
        if "\0" in name + (text or ""):
            raise InvalidOptionError("fields contains a NUL character, which Postgres cannot store.")
        if name == "$ref" and text and text.startswith("#/") and _at(schema, text) is None:
            raise InvalidOptionError("fields refers by $ref to a definition that it does not contain.")


def _check_meaning(schema: dict[str, Any]) -> None:
    try:
        from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  slow, and few tasks have fields
        from jsonschema.validators import validator_for  # noqa: PLC0415
    except ModuleNotFoundError:  # a light client: its gateway checks the schema
        return

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        steps: list[str] = []
        for step in error.absolute_path:  # without the names that the schema's author gave
            named = bool(steps) and steps[-1] in _NAMING
            steps.append("…" if named else str(step))
        raise InvalidOptionError(
            f"fields is not a valid JSON schema: the value at {'/'.join(steps) or 'the top'} breaks a rule"
            f" ({error.validator})."
        ) from None


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


def some_of(kind: type[E], given: str | Iterable[str], what: str) -> tuple[E, ...]:
    """Return the named members of an enum. Raises `InvalidOptionError` for an unknown name."""
    try:
        return tuple(kind(one) for one in ([given] if isinstance(given, str) else given))
    except ValueError:
        raise InvalidOptionError(f"{what} must be one of {', '.join(kind)}.") from None


def one_of(kind: type[E], given: str, what: str) -> E:
    """Return the named member of an enum. Raises `InvalidOptionError` for an unknown name."""
    return some_of(kind, [given], what)[0]


def webhook(url: str, events: Sequence[NoticeType] = ENDINGS, what: str = "A webhook") -> Webhook:
    """Return a webhook for these events. Raises `InvalidOptionError` for an invalid URL."""
    try:
        return Webhook.model_validate({"url": url, "events": events})
    except ValidationError:
        raise InvalidOptionError(
            f"{what} must be an absolute http or https URL without a user name or password, of at most "
            f"{storable.WEBHOOK_URL:,} characters."
        ) from None


def moment(value: datetime | timedelta | None, name: str) -> datetime | None:
    """Return the point in time for a datetime or a distance from now."""
    if isinstance(value, timedelta):
        try:
            return datetime.now(UTC) + value
        except OverflowError:
            raise InvalidOptionError(f"{name} is further away than any date: give a shorter time.") from None
    if value is not None and value.tzinfo is None:
        raise InvalidOptionError(
            f"{name} needs a time zone: for example datetime.now(UTC) + timedelta(hours=1)."
        )
    return value


def checked_key(key: str) -> str:
    """Return the idempotency key. Raises `InvalidOptionError` if it is empty or too long."""
    if not 0 < len(key) <= storable.IDEMPOTENCY_KEY or not storable.is_storable(key):
        raise InvalidOptionError(
            f"An idempotency key must have 1 to {storable.IDEMPOTENCY_KEY} characters without NUL."
        )
    return key


def checked_label(label: str | None) -> str | None:
    """Return the label of a document. Raises `InvalidOptionError` if it cannot be stored."""
    if label is not None and not (0 < len(label) <= storable.LABEL and storable.is_storable(label)):
        raise InvalidOptionError(f"A label must have 1 to {storable.LABEL:,} characters without NUL.")
    return label


def checked_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata. Raises `InvalidOptionError` if it is too large, or not text."""
    is_text = isinstance(metadata, Mapping) and all(
        isinstance(text, str) for text in chain(*metadata.items())
    )
    if not is_text:
        raise InvalidOptionError("Metadata must map text to text: convert numbers and dates with str().")
    if len(metadata) > storable.METADATA_ENTRIES:
        raise InvalidOptionError(
            f"Metadata may have at most {storable.METADATA_ENTRIES} keys, not {len(metadata)}."
        )
    for key, value in metadata.items():
        too_long = max(len(key), len(value)) > storable.METADATA
        if not key or too_long or not storable.is_storable(key + value):
            raise InvalidOptionError(
                f"Metadata keys and values may have at most {storable.METADATA} characters without NUL."
            )
    return metadata


def _seconds(given: Any) -> Any:
    """Return a number that is written as text, as in a query, as a float; anything else unchanged."""
    return (
        float(given) if isinstance(given, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", given) else given
    )


Moment: TypeAlias = Annotated[
    timedelta | datetime, Field(union_mode="left_to_right"), BeforeValidator(_seconds)
]
"""A point in time, or a distance from now; a number is in seconds."""


def _in_time(value: datetime | timedelta | None, info: ValidationInfo) -> datetime | timedelta | None:
    moment(value, str(info.field_name))
    return value


class SubmitOptions(BaseModel):
    """Options of jobs besides their tasks, in a submit or in the body of a gateway's request."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    priority: Annotated[Lane, BeforeValidator(partial(one_of, Lane, what="priority"))] = Lane.NORMAL
    metadata: Annotated[dict[str, str], BeforeValidator(checked_metadata)] = Field(default_factory=dict)
    webhook: Webhook | None = None
    not_before: Annotated[Moment | None, AfterValidator(_in_time)] = None
    """A point in time, or a duration from when the job is accepted, by the clock of Postgres; a number is seconds."""
    expires: Annotated[Moment | None, AfterValidator(_in_time)] = None


class Options(SubmitOptions):
    """The options of a submit, with its client and tenant."""

    client: str
    fair_by: str
    """Metadata key by whose value jobs take turns; empty if they do not."""
    tenant: str | None = None
    """Tenant of a job that came through the gateway. All jobs of a tenant take turns as one."""
    batch: UUID | None = None

    def of(self, own: Submission[Any]) -> Options:
        """Return the options of one of many tasks. Raises `InvalidOptionError`."""
        if own.metadata is None and own.priority is None:
            return self
        metadata = {**self.metadata, **checked_metadata(own.metadata or {})}
        lane = self.priority if own.priority is None else one_of(Lane, own.priority, "priority")
        return self.model_copy(update={"priority": lane, "metadata": checked_metadata(metadata)})


def options(**said: Any) -> Options:
    """Return the checked options. Raises `InvalidOptionError` for the first invalid one."""
    if isinstance(said["webhook"], str):
        said["webhook"] = webhook(said["webhook"])
    try:
        return Options.model_validate(said | {"metadata": said["metadata"] or {}})
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_input=False)
        why = first.get("ctx", {}).get("error")
        sentence = str(why) if isinstance(why, InvalidOptionError) else f"{first['loc'][0]}: {first['msg']}."
        raise InvalidOptionError(sentence) from None


@dataclass(frozen=True, slots=True)
class Submission(Generic[R]):
    """One of many tasks, with its own options. None stands for the option of the call."""

    task: Task[R]
    metadata: Mapping[str, str] | None = None
    """Added to the metadata of the call; if both have a key, this value counts."""
    priority: Lane | LaneName | None = None
    key: str | None = None
    """Idempotency key of this task."""
    label: str | None = None
    """Label of the document. It is stored like results: encrypted if a key is set, and erased with them."""


@dataclass(frozen=True, slots=True)
class Item:
    """One of the tasks that are submitted together; numbers count from 0."""

    number: int
    own: Submission[Any]
    job_id: UUID = field(default_factory=new_id)
    """Drawn in the order of the tasks: documents are stored in parallel, and jobs are listed by their ids."""
    traceparent: str | None = None
    """The span in which the task is submitted."""


_MOST_TASKS: Final = 1_000
_MOST_BYTES: Final = 64 * 1024**2
"""Limits of a step: its tasks, and the bytes of its documents in memory."""


class Steps:
    """Groups tasks into steps that are held in memory and written together.

    A task's idempotency key is its own, or else `prefix/n` for the n-th task, or the next of `keys`, or None.
    """

    def __init__(self, prefix: str | None, keys: Iterable[str] | None) -> None:
        if prefix is not None and keys is not None:
            raise InvalidOptionError("Give idempotency_prefix or idempotency_keys, not both.")
        self._prefix = None if prefix is None else checked_key(prefix)
        self._keys = None if keys is None else iter(keys)
        self._numbers = count()
        self._step: list[Item] = []
        self._held = 0

    def add(self, one: Task[Any] | Submission[Any]) -> bool:
        """Add the next task; return whether the step is full."""
        own = one if isinstance(one, Submission) else Submission(one)
        number = next(self._numbers)
        if own.key is None and self._keys is not None:
            try:
                own = replace(own, key=next(self._keys))
            except StopIteration:
                raise InvalidOptionError(
                    "idempotency_keys has fewer keys than tasks: give one key for each task."
                ) from None
        elif own.key is None and self._prefix is not None:
            own = replace(own, key=f"{self._prefix}/{number}")
        self._step.append(Item(number, own))
        source = getattr(own.task, "source", None)
        self._held += len(source) if isinstance(source, bytes) else 0
        return len(self._step) == _MOST_TASKS or self._held >= _MOST_BYTES

    def take(self) -> list[Item]:
        """Return the tasks added since the last step."""
        step, self._step, self._held = self._step, [], 0
        return step


def by_lane(items: Sequence[Item], options: Options) -> list[tuple[list[Item], Options]]:
    """Return the tasks of each lane with their options. An invalid priority is reported when its task is checked."""
    lanes: dict[Lane, list[Item]] = {}
    for item in items:
        lane = Lane(item.own.priority) if item.own.priority in tuple(Lane) else options.priority
        lanes.setdefault(lane, []).append(item)
    return [(some, options.model_copy(update={"priority": lane})) for lane, some in lanes.items()]


def check(item: Item, options: Options) -> None:
    """Raise `InvalidOptionError` or `InvalidSourceError` for errors that can be found without storing anything."""
    own = item.own
    checked_label(own.label)
    options.of(own)
    check_task(own.task)
    if own.key is not None:
        checked_key(own.key)
    sources.check(own.task.source)
