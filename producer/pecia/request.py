"""What a request to a fleet is: tasks with their options, each checked once. No I/O.

A client's keywords, the command's options and a gateway's body are all made `SubmitOptions`.
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
"""Characters of the schema as JSON: it is part of what the model reads with every page."""

_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""What holds names that are the author's own."""


def check_task(task: Task[Any]) -> None:
    """Raise `InvalidOptionError` if it is no task, or its adapter or the schema of its fields cannot be meant."""
    from pecia_schemas.tasks import Task  # noqa: PLC0415  tasks are slow to load

    if not isinstance(task, Task):
        raise InvalidOptionError("A task is a ReadDocument, a ReadBundle or a CaptionVideo.")
    if not (getattr(task, "adapter", None) or " ").isprintable():
        raise InvalidOptionError("The name of an adapter is printable text.")
    if (fields := getattr(task, "fields", None)) is None:
        return
    try:
        schema = json.dumps(fields, ensure_ascii=False)
        schema.encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidOptionError("fields is a JSON schema: what it holds must be JSON.") from None
    _check_schema(schema)


@lru_cache(maxsize=64)
def _check_schema(written: str) -> None:
    if len(written) > _LARGEST:
        raise InvalidOptionError(
            f"The schema in fields has {len(written):,} characters as JSON, {_LARGEST:,} at most: ask for less,"
            " or read twice."
        )
    schema = json.loads(written)
    _check_meaning(schema)
    # Its root may be a reference: so pydantic writes a model that holds itself.
    root = _at(schema, str(schema.get("$ref", "#")))
    if not isinstance(root, dict) or root.get("type") != "object":
        raise InvalidOptionError('fields is the schema of an object: it needs "type": "object".')
    for name, value in _entries(schema):
        text = value if isinstance(value, str) else None
        if text is not None and name.endswith(("$ref", "$dynamicRef")) and not text.startswith("#"):
            raise InvalidOptionError(
                "A $ref in fields points elsewhere: write everything into the one schema, under $defs."
            )
        if name == "patternProperties":
            raise InvalidOptionError("patternProperties in fields is not supported: name the properties.")
        if "\0" in name + (text or ""):
            raise InvalidOptionError("fields holds a NUL, which Postgres does not store.")
        if name == "$ref" and text and text.startswith("#/") and _at(schema, text) is None:
            raise InvalidOptionError("A $ref in fields points to something that the schema does not hold.")


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
            f"fields is no JSON schema: it is wrong at {'/'.join(steps) or 'the top'} ({error.validator})."
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
    """Return the members that are meant. Raises `InvalidOptionError` if there is no such member."""
    try:
        return tuple(kind(one) for one in ([given] if isinstance(given, str) else given))
    except ValueError:
        raise InvalidOptionError(f"{what} is one of {', '.join(kind)}.") from None


def one_of(kind: type[E], given: str, what: str) -> E:
    """Return the member that is meant. Raises `InvalidOptionError` if there is no such member."""
    return some_of(kind, [given], what)[0]


def webhook(url: str, events: Sequence[NoticeType] = ENDINGS, what: str = "A webhook") -> Webhook:
    """Return where to post notices. Raises `InvalidOptionError` if it is no address."""
    try:
        return Webhook.model_validate({"url": url, "events": events})
    except ValidationError:
        raise InvalidOptionError(
            f"{what} is an absolute http or https URL without a user name or password, of at most "
            f"{storable.WEBHOOK_URL:,} characters."
        ) from None


def moment(value: datetime | timedelta | None, name: str) -> datetime | None:
    """Return the point in time that a datetime, or a distance from now, stands for."""
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
            f"An idempotency key has 1 to {storable.IDEMPOTENCY_KEY} characters, none of them NUL."
        )
    return key


def checked_label(label: str | None) -> str | None:
    """Return what a document is called. Raises `InvalidOptionError` if that cannot be stored."""
    if label is not None and not (0 < len(label) <= storable.LABEL and storable.is_storable(label)):
        raise InvalidOptionError(f"A label has 1 to {storable.LABEL:,} characters, none of them NUL.")
    return label


def checked_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata. Raises `InvalidOptionError` if it is too much, or not text."""
    is_text = isinstance(metadata, Mapping) and all(
        isinstance(text, str) for text in chain(*metadata.items())
    )
    if not is_text:
        raise InvalidOptionError("Metadata maps text to text: convert numbers and dates with str().")
    if len(metadata) > storable.METADATA_ENTRIES:
        raise InvalidOptionError(
            f"Metadata has at most {storable.METADATA_ENTRIES} keys, not {len(metadata)}."
        )
    for key, value in metadata.items():
        too_long = max(len(key), len(value)) > storable.METADATA
        if not key or too_long or not storable.is_storable(key + value):
            raise InvalidOptionError(
                f"Metadata keys and values have at most {storable.METADATA} characters, none of them NUL."
            )
    return metadata


def _seconds(given: Any) -> Any:
    """Return a number that is written as text, as in a query; anything else as it is."""
    return (
        float(given) if isinstance(given, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", given) else given
    )


Moment: TypeAlias = Annotated[
    timedelta | datetime, Field(union_mode="left_to_right"), BeforeValidator(_seconds)
]
"""A point in time, or a distance from now: a number is seconds."""


def _in_time(value: datetime | timedelta | None, info: ValidationInfo) -> datetime | timedelta | None:
    moment(value, str(info.field_name))
    return value


class SubmitOptions(BaseModel):
    """What is said of jobs beside their tasks: by a submit, and by the body of a gateway's request."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    priority: Annotated[Lane, BeforeValidator(partial(one_of, Lane, what="priority"))] = Lane.NORMAL
    metadata: Annotated[dict[str, str], BeforeValidator(checked_metadata)] = Field(default_factory=dict)
    webhook: Webhook | None = None
    not_before: Annotated[Moment | None, AfterValidator(_in_time)] = None
    """A point in time, or how long from when the job is accepted, by the clock of Postgres; a number is seconds."""
    expires: Annotated[Moment | None, AfterValidator(_in_time)] = None


class Options(SubmitOptions):
    """The options of a submit, and whose it is."""

    client: str
    fair_by: str
    """Metadata key by which the job takes turns with others; empty: with none."""
    tenant: str | None = None
    """Whose job it is, if it came through the gateway. All jobs of a tenant take turns as one."""
    batch: UUID | None = None

    def of(self, own: Submission[Any]) -> Options:
        """Return the options of one task of many. Raises `InvalidOptionError`."""
        if own.metadata is None and own.priority is None:
            return self
        metadata = {**self.metadata, **checked_metadata(own.metadata or {})}
        lane = self.priority if own.priority is None else one_of(Lane, own.priority, "priority")
        return self.model_copy(update={"priority": lane, "metadata": checked_metadata(metadata)})


def options(**said: Any) -> Options:
    """Return the checked options. Raises `InvalidOptionError` for the first that cannot be meant."""
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
    """A task of many, with options of its own. What is None is as the call says for all."""

    task: Task[R]
    metadata: Mapping[str, str] | None = None
    """Beside that of the call; of a key that both have, this value is taken."""
    priority: Lane | LaneName | None = None
    key: str | None = None
    """Its idempotency key."""
    label: str | None = None
    """What the document is called. It is stored as results are: encrypted where there is a key, erased with them."""


@dataclass(frozen=True, slots=True)
class Item:
    """One task of those that are submitted together; counted from 0."""

    number: int
    own: Submission[Any]
    job_id: UUID = field(default_factory=new_id)
    """Drawn as the tasks come: documents are stored side by side, and jobs are listed in the order of their ids."""
    traceparent: str | None = None
    """The span in which it is submitted."""


_MOST_TASKS: Final = 1_000
_MOST_BYTES: Final = 64 * 1024**2
"""Where a step ends: so many tasks, or so many bytes of documents that are held in memory."""


class Steps:
    """Tasks as many at a time as are held in memory and written together.

    Their idempotency keys are their own, else `prefix/n` for the n-th, or those that are given, or none.
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
        """Take in the next task; return whether it fills a step."""
        own = one if isinstance(one, Submission) else Submission(one)
        number = next(self._numbers)
        if own.key is None and self._keys is not None:
            try:
                own = replace(own, key=next(self._keys))
            except StopIteration:
                raise InvalidOptionError(
                    "idempotency_keys has fewer keys than there are tasks: give one for each."
                ) from None
        elif own.key is None and self._prefix is not None:
            own = replace(own, key=f"{self._prefix}/{number}")
        self._step.append(Item(number, own))
        source = getattr(own.task, "source", None)
        self._held += len(source) if isinstance(source, bytes) else 0
        return len(self._step) == _MOST_TASKS or self._held >= _MOST_BYTES

    def take(self) -> list[Item]:
        """Return what has been taken in since the last step."""
        step, self._step, self._held = self._step, [], 0
        return step


def by_lane(items: Sequence[Item], options: Options) -> list[tuple[list[Item], Options]]:
    """Return the tasks of each lane with their options; an invalid priority is found when the task is checked."""
    lanes: dict[Lane, list[Item]] = {}
    for item in items:
        lane = Lane(item.own.priority) if item.own.priority in tuple(Lane) else options.priority
        lanes.setdefault(lane, []).append(item)
    return [(some, options.model_copy(update={"priority": lane})) for lane, some in lanes.items()]


def check(item: Item, options: Options) -> None:
    """Raise `InvalidOptionError` or `InvalidSourceError` for what can be seen without storing anything."""
    own = item.own
    checked_label(own.label)
    options.of(own)
    check_task(own.task)
    if own.key is not None:
        checked_key(own.key)
    sources.check(own.task.source)
