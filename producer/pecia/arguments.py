"""Arguments of a client's calls, checked and in the form that its stores take. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar
from uuid import UUID

from pydantic import ValidationError

from pecia.errors import InvalidOptionError, JobNotFoundError, RetryRefusedError
from pecia.handles import JobHandle, JobView
from pecia.records import Batch, Delivery, Endpoint, Listing, Selection
from pecia_schemas import storable
from pecia_schemas.events import ENDINGS, NoticeType, Webhook
from pecia_schemas.results import Verdict, VerdictName
from pecia_schemas.states import JobState, JobStateName, as_prefix, is_whole

if TYPE_CHECKING:
    from pecia_schemas.tasks import Task

E = TypeVar("E", bound=StrEnum)

_LARGEST = 16 * 1024
"""Characters of the schema as JSON: it is part of what the model reads with every page."""

_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""What holds names that are the author's own."""


def check_task(task: Task[Any]) -> None:
    """Raise `InvalidOptionError` if it is no task, or its adapter or the schema of its fields cannot be meant."""
    from pecia_schemas.tasks import Task  # noqa: PLC0415  tasks are slow to load

    if not isinstance(task, Task):
        raise InvalidOptionError("A task is a ReadDocument or a CaptionVideo.")
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
    # As a whole it may be a reference: so pydantic writes a model that holds itself.
    root = _at(schema, str(schema.get("$ref", "#")))
    if not isinstance(root, dict) or root.get("type") != "object":
        raise InvalidOptionError('fields asks for an object: a schema with "type": "object".')
    for name, value in _entries(schema):
        text = value if isinstance(value, str) else None
        if text is not None and name.endswith(("$ref", "$dynamicRef")) and not text.startswith("#"):
            raise InvalidOptionError(
                "fields refers, by $ref, to something elsewhere: write everything into the one schema, under $defs."
            )
        if name == "patternProperties":
            raise InvalidOptionError("fields names its properties: patternProperties is not understood.")
        if "\0" in name + (text or ""):
            raise InvalidOptionError("fields holds a NUL, which Postgres does not store.")
        if name == "$ref" and text and text.startswith("#/") and _at(schema, text) is None:
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
        steps: list[str] = []
        for step in error.absolute_path:  # without the names that the schema's author gave
            named = bool(steps) and steps[-1] in _NAMING
            steps.append("…" if named else str(step))
        raise InvalidOptionError(
            f"fields is no JSON schema: what stands at {'/'.join(steps) or 'the top'} breaks a rule of its own"
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


_CHOICE = (*ENDINGS, NoticeType.PART_DONE, NoticeType.REVISED)
"""What an endpoint can ask for."""


class Which(TypedDict, total=False):
    """Which jobs are meant: those to which all applies that is given."""

    batch: Batch | UUID | str | None
    """A batch by its name, its id, or how its id begins."""
    state: JobState | JobStateName | Iterable[JobState | JobStateName]
    """In one of these states."""
    verdict: Verdict | VerdictName | Iterable[Verdict | VerdictName]
    """With a page that was read with one of these verdicts."""
    kind: str | None
    """Of task, such as `document.read`."""
    part: UUID | str | None
    """The job of a part, by the id that logs and Flower know it under."""
    metadata: Mapping[str, str] | None
    """With all of these pairs."""
    since: datetime | timedelta | None
    """Submitted since a point in time, or so long ago."""


def listing(which: Which) -> Listing:
    """Return which jobs are to be listed, of whatever batch. Raises `InvalidOptionError` for what there is not."""
    metadata, part, kind = which.get("metadata"), which.get("part"), which.get("kind")
    if kind is not None and not storable.is_storable(kind):
        raise InvalidOptionError("A kind is text without NUL, such as document.read.")
    return Listing(
        states=some_of(JobState, which.get("state", ()), "A job's state"),
        verdicts=some_of(Verdict, which.get("verdict", ()), "A page's verdict"),
        kind=kind,
        part=None if part is None else id_of(part, "A part's id is a UUID, as logs and Flower have it."),
        metadata=None if metadata is None else checked_metadata(metadata),
        since=past(which.get("since")),
    )


def verdicts(verdict: Verdict | str | Iterable[Verdict | str]) -> tuple[Verdict, ...]:
    """Return the verdicts that are meant: with none, all that need review. Raises `InvalidOptionError`."""
    chosen = some_of(Verdict, verdict, "A page's verdict")
    return chosen or tuple(one for one in Verdict if one.needs_review)


def some_of(kind: type[E], given: str | Iterable[str], what: str) -> tuple[E, ...]:
    """Return the members that are meant. Raises `InvalidOptionError` if there is no such member."""
    try:
        return tuple(kind(one) for one in ([given] if isinstance(given, str) else given))
    except ValueError:
        raise InvalidOptionError(f"{what} is one of {', '.join(kind)}.") from None


def one_of(kind: type[E], given: str, what: str) -> E:
    """Return the member that is meant. Raises `InvalidOptionError` if there is no such member."""
    return some_of(kind, [given], what)[0]


def check_pages(limit: int | None, page_size: int = 1) -> None:
    """Raise `InvalidOptionError` for a limit, or a size of pages, by which nothing can be listed."""
    if (limit is not None and limit < 0) or page_size < 1:
        raise InvalidOptionError("limit is a number from 0, or None; page_size one from 1.")


def checked_revision(revision: int | None) -> int | None:
    """Return the number of a revision; None is the latest. Raises `InvalidOptionError` if it is out of range."""
    if revision is not None and not 0 <= revision < 2**31:
        raise InvalidOptionError("revision is a number from 0, which is the result as it was read.")
    return revision


def selection(
    *,
    job_ids: Collection[UUID] | None,
    before: datetime | timedelta | None,
    metadata: Mapping[str, str] | None,
) -> Selection:
    """Return which jobs are to be purged. Raises `InvalidOptionError` if nothing says which."""
    chosen = Selection(
        job_ids=job_ids,
        before=past(before, "before"),
        metadata=checked_metadata(metadata or {}),
    )
    if chosen.job_ids is None and chosen.before is None and not chosen.metadata:
        raise InvalidOptionError("Say what to purge: jobs, before or metadata.")
    return chosen


def past(since: datetime | timedelta | None, name: str = "since") -> datetime | None:
    """Return the point in time that a datetime, or a distance into the past, stands for."""
    # `-timedelta.max` overflows.
    return moment(-min(since, -timedelta.min) if isinstance(since, timedelta) else since, name)


def id_of(
    one: JobHandle[Any] | Endpoint | Delivery | UUID | str,
    otherwise: str = "A job's id is a UUID, as `submit` returned it.",
) -> UUID:
    """Return the id of what is named in any way. Raises `InvalidOptionError` if it is none."""
    if not isinstance(one, str):
        return one if isinstance(one, UUID) else one.id
    try:
        return UUID(one)
    except ValueError:
        raise InvalidOptionError(otherwise) from None


endpoint_id = partial(id_of, otherwise="An endpoint's id is a UUID.")
delivery_id = partial(id_of, otherwise="A delivery's id is a UUID.")


def prefix(job: UUID | str) -> str | None:
    """Return how an id begins that is not given whole. Raises `InvalidOptionError` if it is no id."""
    if isinstance(job, UUID) or is_whole(job):
        return None
    begins = as_prefix(job)
    if begins is None:
        raise InvalidOptionError(
            "A job's id is a UUID, as `submit` returned it, or four digits or more of it."
        )
    return begins


def only(views: Sequence[JobView], begins: str) -> JobView:
    """Return the only job whose id begins so. Raises `InvalidOptionError` if there is none, or another."""
    if len(views) != 1:
        which = "More than one job has an id" if views else "No job has an id"
        raise InvalidOptionError(f"{which} that begins with {begins}; `pecia list` shows those there are.")
    return views[0]


def endpoint(url: str, events: Iterable[NoticeType | str] | None) -> Webhook:
    """Return where to post what. Raises `InvalidOptionError` if there is no such event, or it is no address."""
    try:
        chosen = ENDINGS if events is None else tuple(NoticeType(event) for event in events)
    except ValueError:
        chosen = ()
    if not chosen or NoticeType.TEST in chosen:
        raise InvalidOptionError(f"An endpoint is notified of one or more of {', '.join(_CHOICE)}.")
    return webhook(url, tuple(dict.fromkeys(chosen)), "An endpoint")


def webhook(url: str, events: Sequence[NoticeType] = ENDINGS, what: str = "A webhook") -> Webhook:
    """Return where to post notices. Raises `InvalidOptionError` if it is no address."""
    try:
        return Webhook.model_validate({"url": url, "events": events})
    except ValidationError:
        raise InvalidOptionError(
            f"{what} is an absolute http or https URL without a user name or password, of at most "
            f"{storable.WEBHOOK_URL:,} characters."
        ) from None


def checked_overlap(overlap: timedelta) -> timedelta:
    """Return for how long two secrets, or keys, are valid. Raises `InvalidOptionError` for less than 0, or too long."""
    if overlap < timedelta():
        raise InvalidOptionError("overlap is a length of time: 0 ends the former at once.")
    moment(overlap, "overlap")
    return overlap


def found(job_id: UUID, views: Mapping[UUID, JobView], task: type[Task[Any]] | None = None) -> JobView:
    """Return the job of this id, and of this type of task. Raises `JobNotFoundError` if there is none."""
    view = views.get(job_id)
    if view is None or (task is not None and view.kind != task.kind):
        raise JobNotFoundError(job_id)
    return view


_BATCH_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{storable.BATCH - 1}}}")


def moment(value: datetime | timedelta | None, name: str) -> datetime | None:
    """Return the point in time that a datetime, or a distance from now, stands for."""
    if isinstance(value, timedelta):
        try:
            return datetime.now(UTC) + value
        except OverflowError:
            raise InvalidOptionError(f"{name} is further away than any date: give less.") from None
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


def checked_batch(name: str | None) -> str | None:
    """Return the name of a batch. Raises `InvalidOptionError` if it is none."""
    if name is not None and not _BATCH_NAME.fullmatch(name):
        raise InvalidOptionError(
            f"A batch is called by 1 to {storable.BATCH} letters, digits, dots, colons, dashes and underscores."
        )
    return name


def checked_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata. Raises `InvalidOptionError` if it is too much, or not text."""
    if len(metadata) > storable.METADATA_ENTRIES:
        raise InvalidOptionError(
            f"Metadata has at most {storable.METADATA_ENTRIES} keys, not {len(metadata)}."
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidOptionError("Metadata maps text to text: convert numbers and dates with str().")
        too_long = max(len(key), len(value)) > storable.METADATA
        if not key or too_long or not storable.is_storable(key + value):
            raise InvalidOptionError(
                f"Metadata keys and values have at most {storable.METADATA} characters, none of them NUL."
            )
    return metadata


def checked_reason(reason: str | None) -> str | None:
    """Return the reason. Raises `InvalidOptionError` if it is too long to be stored."""
    if reason is not None and (len(reason) > storable.REASON or not storable.is_storable(reason)):
        raise InvalidOptionError(f"A reason has at most {storable.REASON} characters, none of them NUL.")
    return reason


def check_retry(job_id: UUID, state: JobState) -> None:
    """Raise `RetryRefusedError` while a job is at work or if it has succeeded."""
    if state is JobState.SUCCEEDED or not state.is_terminal:
        raise RetryRefusedError(job_id, f"Job {job_id} is {state}: only what failed can be run again.")
