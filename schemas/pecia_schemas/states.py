"""Where a job and its parts can be, which lane they wait in, and which stage works on them.

Where a caller may write a name instead of a member, the parameter is of both types: `Lane | LaneName`.
"""

import re
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from uuid_utils.compat import uuid7

_PREFIX: Final = re.compile(r"[0-9a-f]{4,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?|[0-9a-f]{9,32}")


def as_prefix(text: str) -> str | None:
    """Return an id, or its beginning of four digits or more; None for anything else."""
    text = text.lower()
    return text if _PREFIX.fullmatch(text) else None


def is_complete_id(text: str) -> bool:
    """Return whether a text is an id, from its first digit to its last."""
    begins = as_prefix(text)
    return begins is not None and len(begins.replace("-", "")) == len(UUID(int=0).hex)


def new_id() -> UUID:
    """Return a fresh, time-ordered id."""
    return uuid7()


class Lane(StrEnum):
    """The queue a job waits in. Declared in the order the fleet serves them."""

    URGENT = "urgent"
    NORMAL = "normal"
    BULK = "bulk"

    @property
    def rank(self) -> int:
        """Place in the order of service; smaller is sooner."""
        return list(Lane).index(self)


LaneName = Literal["urgent", "normal", "bulk"]


class Stage(StrEnum):
    """What a fleet worker does to a part."""

    SPLIT = "split"  # find a bundle's documents in its pages; first: it ends a job, and others' ingests may be many
    INGEST = "ingest"  # validate a payload and cut it into parts
    READ = "read"  # turn one page into text
    CAPTION = "caption"  # turn one video segment into a caption
    SUMMARIZE = "summarize"  # summarise a video from its captions


AWAITED: Final = {Stage.SUMMARIZE: Stage.CAPTION, Stage.SPLIT: Stage.READ}
"""Stages whose part is held until its job's parts of another stage are over, and which stage that is."""
ENGINELESS: Final = frozenset({Stage.INGEST, Stage.SPLIT})
"""Stages that need no engine."""


class JobState(StrEnum):
    """Life of a job. Terminal states never change, but for an explicit retry."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"  # some parts failed, the others' results are there
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing but an explicit retry can change it."""
        return self not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def has_result(self) -> bool:
        """Whether there is something to read, if only in part."""
        return self in (JobState.SUCCEEDED, JobState.PARTIAL)


JobStateName = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled", "expired"]


class PartState(StrEnum):
    """Life of a part: one page or one video segment."""

    HELD = "held"
    """It waits for other parts of its job: a video's summary for the segments, a bundle's split for the pages."""
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing but an explicit retry can change it."""
        return self not in (PartState.HELD, PartState.QUEUED, PartState.RUNNING)


class DeliveryState(StrEnum):
    """Life of a callback."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up: its tries are used up, or it is too old, or its receiver is gone or must not be called."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing but a replay can change it."""
        return self is not DeliveryState.PENDING


DeliveryStateName = Literal["pending", "delivered", "dead"]
