"""Checks of the arguments of client calls other than submits; they return the form that the stores take. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypedDict, TypeVar
from uuid import UUID

from pecia.errors import InvalidOptionError, RetryRefusedError
from pecia.handles import JobHandle, JobView
from pecia.records import Batch, Delivery, Endpoint, Listing, Selection
from pecia.request import checked_metadata, moment, some_of, webhook
from pecia_schemas import storable
from pecia_schemas.events import ENDINGS, NoticeType, Webhook
from pecia_schemas.results import Verdict, VerdictName
from pecia_schemas.states import JobState, JobStateName, as_prefix, is_complete_id

E = TypeVar("E", bound=StrEnum)

_CHOICE = (*ENDINGS, NoticeType.PART_DONE, NoticeType.REVISED, NoticeType.READY)
"""Events that an endpoint can subscribe to."""


class Which(TypedDict, total=False):
    """Filters of jobs; all given filters must match."""

    batch: Batch | UUID | str | None
    """A batch by its name, its id, or the beginning of its id."""
    state: JobState | JobStateName | Iterable[JobState | JobStateName]
    """In one of these states."""
    verdict: Verdict | VerdictName | Iterable[Verdict | VerdictName]
    """With a page of one of these verdicts."""
    kind: str | None
    """Kind of task, such as `document.read`."""
    part: UUID | str | None
    """The job of this part, by the part's id in logs and Flower."""
    metadata: Mapping[str, str] | None
    """With all of these pairs."""
    since: datetime | timedelta | None
    """Submitted since a point in time, or a duration ago."""


def listing(which: Which) -> Listing:
    """Return the listing of these filters, without the batch. Raises `InvalidOptionError` for an unknown value."""
    metadata, part, kind = which.get("metadata"), which.get("part"), which.get("kind")
    if kind is not None and not storable.is_storable(kind):
        raise InvalidOptionError("A kind must be text without NUL, such as document.read.")
    return Listing(
        states=some_of(JobState, which.get("state", ()), "A job's state"),
        verdicts=some_of(Verdict, which.get("verdict", ()), "A page's verdict"),
        kind=kind,
        part=None if part is None else id_of(part, "A part's id must be a UUID, as logs and Flower show it."),
        metadata=None if metadata is None else checked_metadata(metadata),
        since=past(which.get("since")),
    )


def verdicts(verdict: Verdict | str | Iterable[Verdict | str]) -> tuple[Verdict, ...]:
    """Return the chosen verdicts, or all that need a review if none is chosen. Raises `InvalidOptionError`."""
    chosen = some_of(Verdict, verdict, "A page's verdict")
    return chosen or tuple(one for one in Verdict if one.needs_review)


def check_pages(limit: int | None, page_size: int = 1) -> None:
    """Raise `InvalidOptionError` for an invalid limit or page size."""
    if (limit is not None and limit < 0) or page_size < 1:
        raise InvalidOptionError("limit is a number from 0, or None; page_size is a number from 1.")


def selection(
    *,
    job_ids: Collection[UUID] | None,
    before: datetime | timedelta | None,
    metadata: Mapping[str, str] | None,
) -> Selection:
    """Return the selection of jobs for a purge. Raises `InvalidOptionError` if no argument selects any."""
    chosen = Selection(
        job_ids=job_ids, before=past(before, "before"), metadata=checked_metadata(metadata or {})
    )
    if chosen.job_ids is None and chosen.before is None and not chosen.metadata:
        raise InvalidOptionError("Name what to purge: jobs, before or metadata.")
    return chosen


def past(since: datetime | timedelta | None, name: str = "since") -> datetime | None:
    """Return the point in time for a datetime or a duration ago."""
    # `-timedelta.max` overflows.
    return moment(-min(since, -timedelta.min) if isinstance(since, timedelta) else since, name)


def id_of(
    one: JobHandle[Any] | Endpoint | Delivery | UUID | str,
    otherwise: str = "A job's id must be a UUID, as `submit` returned it.",
) -> UUID:
    """Return the id of a handle, a record or text. Raises `InvalidOptionError` for invalid text."""
    if not isinstance(one, str):
        return one if isinstance(one, UUID) else one.id
    try:
        return UUID(one)
    except ValueError:
        raise InvalidOptionError(otherwise) from None


endpoint_id = partial(id_of, otherwise="An endpoint's id must be a UUID.")
delivery_id = partial(id_of, otherwise="A delivery's id must be a UUID.")


def prefix(job: UUID | str) -> str | None:
    """Return the beginning of an id, or None for a complete id. Raises `InvalidOptionError` for other text."""
    if isinstance(job, UUID) or is_complete_id(job):
        return None
    begins = as_prefix(job)
    if begins is None:
        raise InvalidOptionError(
            "A job's id must be a UUID, as `submit` returned it, or its first four or more digits."
        )
    return begins


def only(views: Sequence[JobView], begins: str) -> JobView:
    """Return the only job whose id begins so. Raises `InvalidOptionError` for none or several."""
    if len(views) != 1:
        which = "More than one job has an id" if views else "No job has an id"
        raise InvalidOptionError(f"{which} that begins with {begins}; `pecia list` shows the existing jobs.")
    return views[0]


def endpoint(url: str, events: Iterable[NoticeType | str] | None) -> Webhook:
    """Return the webhook of an endpoint. Raises `InvalidOptionError` for an unknown event or an invalid URL."""
    try:
        chosen = ENDINGS if events is None else tuple(NoticeType(event) for event in events)
    except ValueError:
        chosen = ()
    if not chosen or NoticeType.TEST in chosen:
        raise InvalidOptionError(f"An endpoint must be notified of one or more of {', '.join(_CHOICE)}.")
    return webhook(url, tuple(dict.fromkeys(chosen)), "An endpoint")


def checked_overlap(overlap: timedelta) -> timedelta:
    """Return how long two secrets or keys overlap. Raises `InvalidOptionError` if it is negative or too long."""
    if overlap < timedelta():
        raise InvalidOptionError("overlap is not negative; 0 ends the former secret or key at once.")
    moment(overlap, "overlap")
    return overlap


_BATCH_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{storable.BATCH - 1}}}")


def checked_batch(name: str | None) -> str | None:
    """Return the name of a batch. Raises `InvalidOptionError` if it is invalid."""
    if name is not None and not _BATCH_NAME.fullmatch(name):
        raise InvalidOptionError(
            f"The name of a batch has 1 to {storable.BATCH} letters, digits, dots, colons, dashes, underscores."
        )
    return name


def checked_reason(reason: str | None) -> str | None:
    """Return the reason. Raises `InvalidOptionError` if it is too long to be stored."""
    if reason is not None and (len(reason) > storable.REASON or not storable.is_storable(reason)):
        raise InvalidOptionError(f"A reason may have at most {storable.REASON} characters without NUL.")
    return reason


def check_retry(job_id: UUID, state: JobState) -> None:
    """Raise `RetryRefusedError` if a job has not ended or has succeeded."""
    if state is JobState.SUCCEEDED or not state.is_terminal:
        raise RetryRefusedError(job_id, f"Job {job_id} is {state}: only failed parts can be run again.")
