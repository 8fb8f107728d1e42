"""States of jobs and parts, lanes, and stages.

A parameter that accepts a member or its name has both types: `Lane | LaneName`.
"""

import re
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from uuid_utils.compat import uuid7

_PREFIX: Final = re.compile(r"[0-9a-f]{4,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?|[0-9a-f]{9,32}")


def as_prefix(text: str) -> str | None:
    """Return an id, or its beginning of at least four digits, in lower case; None for other text."""
    text = text.lower()
    return text if _PREFIX.fullmatch(text) else None


def is_complete_id(text: str) -> bool:
    """Return whether a text is a complete id."""
    begins = as_prefix(text)
    return begins is not None and len(begins.replace("-", "")) == len(UUID(int=0).hex)


def new_id() -> UUID:
    """Return a new, time-ordered id."""
    return uuid7()


class Lane(StrEnum):
    """The queue of a job. Declared in the order of service."""

    URGENT = "urgent"
    NORMAL = "normal"
    BULK = "bulk"

    @property
    def rank(self) -> int:
        """Position in the order of service; a smaller rank is served first."""
        return list(Lane).index(self)


LaneName = Literal["urgent", "normal", "bulk"]


class Stage(StrEnum):
    """The work that a fleet worker does on a part."""

    SPLIT = "split"  # find a bundle's documents in its pages; served first, because it ends a job
    INGEST = "ingest"  # validate a payload and cut it into parts
    READ = "read"  # turn one page into text
    CAPTION = "caption"  # turn one video segment into a caption
    SUMMARIZE = "summarize"  # summarise a video from its captions


AWAITED: Final = {Stage.SUMMARIZE: Stage.CAPTION, Stage.SPLIT: Stage.READ}
"""Stages whose part is held until the job's parts of another stage have ended, with that other stage."""
ENGINELESS: Final = frozenset({Stage.INGEST, Stage.SPLIT})
"""Stages that need no engine."""


class JobState(StrEnum):
    """State of a job. Only an explicit retry changes a terminal state."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"  # some parts failed, the others have results
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        """Whether only an explicit retry can change this state."""
        return self not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def has_result(self) -> bool:
        """Whether the job has a complete or partial result."""
        return self in (JobState.SUCCEEDED, JobState.PARTIAL)


JobStateName = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled", "expired"]


class PartState(StrEnum):
    """State of a part: one page or one video segment."""

    HELD = "held"
    """The part waits for other parts of its job: a video's summary for segments, a bundle's split for pages."""
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether only an explicit retry can change this state."""
        return self not in (PartState.HELD, PartState.QUEUED, PartState.RUNNING)


class DeliveryState(StrEnum):
    """State of a callback."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """The delivery was given up: no attempts are left, it is too old, or its receiver is gone or must not be called."""

    @property
    def is_terminal(self) -> bool:
        """Whether only a replay can change this state."""
        return self is not DeliveryState.PENDING


DeliveryStateName = Literal["pending", "delivered", "dead"]
