"""Waiting for jobs: look, subscribe, look again, then wait for an announcement or for the polling interval to pass.

What a wait has seen and what it does next is the same for both kinds of client; the asynchronous one shares all of it
but the functions that wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pecia.errors import JobNotFoundError, JobTimeoutError, UnavailableError
from pecia.view import JobView
from pecia_schemas.messages import job_channel

if TYPE_CHECKING:
    from pecia.connections import Connections
    from pecia.publishing import Announcements

CONFIRMATION_S = 2.0
"""How long Redis has to note subscriptions."""
LOOK_AT = 500
"""Rows in one query, and announcements that are taken in before a look."""
_OUTAGE_S = 30.0
_OUTAGE_PAUSE_S = 0.5

T = TypeVar("T")


class Deadline:
    """When a caller's patience ends. None: never; 0: at once, so that things are looked at exactly once."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def within(self, seconds: float) -> float:
        """Return so many seconds, or those that are left if they are fewer."""
        return seconds if self._at is None else max(0.0, min(seconds, self._at - time.monotonic()))

    def check(self, job_id: UUID) -> None:
        """Raise `JobTimeoutError` if it has passed."""
        if self._at is not None and self.timeout is not None and time.monotonic() >= self._at:
            raise JobTimeoutError(job_id, self.timeout)


class Outage:
    """How long a wait puts up with a Postgres that is away: half a minute, or to the caller's deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._patience = Deadline(_OUTAGE_S)

    def pause(self) -> float:
        """Return the seconds until Postgres may be asked again; 0 when the patience is over."""
        return self._deadline.within(self._patience.within(_OUTAGE_PAUSE_S))


class Pending:
    """The jobs of one wait that are not over, and which of them to look at next."""

    def __init__(self, job_ids: Sequence[UUID], deadline: Deadline) -> None:
        self._open = dict.fromkeys(job_ids)
        self._deadline = deadline
        self.look_at = list(self._open)

    def __bool__(self) -> bool:
        return bool(self._open)

    def settle(self, view: JobView) -> bool:
        """Take in how a job is now; return whether it is over."""
        if view.state.is_terminal:
            del self._open[view.id]
        return view.state.is_terminal

    def check(self) -> None:
        """Raise `JobTimeoutError` about the first of them if the deadline has passed."""
        self._deadline.check(next(iter(self._open)))

    def hear(self, announced: Collection[UUID]) -> None:
        """Look next at those that were announced; at all of them if none was."""
        self.look_at = [job_id for job_id in self._open if not announced or job_id in announced]


class Channels:
    """On which channels jobs are announced, and which subscriptions Redis has confirmed."""

    def __init__(self, job_ids: Collection[UUID]) -> None:
        self._ids = {job_channel(job_id): job_id for job_id in job_ids}
        self._unconfirmed = 0

    def ask(self) -> list[str]:
        """Return the channels to subscribe to; none of them is confirmed from here on."""
        self._unconfirmed = len(self._ids)
        return list(self._ids)

    @property
    def confirmed(self) -> bool:
        """Whether what is published from now on will be heard."""
        return self._unconfirmed == 0

    def confirm(self, message: Mapping[str, Any] | None) -> None:
        """Take in what came while subscribing."""
        self._unconfirmed -= message is not None and message["type"] == "subscribe"

    def announced(self, message: Mapping[str, Any]) -> set[UUID]:
        """Return the job that a message is about, if it is about one."""
        return {self._ids[message["channel"]]} if message["type"] == "message" else set()


def announcements(connections: Connections, job_ids: Collection[UUID], deadline: Deadline) -> Announcements:
    """Return the news about these jobs, at the client's own polling interval."""
    return connections.announcements(job_ids, deadline)


def finished(connections: Connections, job_ids: Sequence[UUID], deadline: Deadline) -> Iterator[JobView]:
    """Yield each job once it is over, as they finish.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of them does not exist.
    """
    pending = Pending(job_ids, deadline)
    with announcements(connections, job_ids, deadline) as news:
        while pending:
            for view in outlast(lambda: list(look(connections, pending.look_at)), deadline):
                if pending.settle(view):
                    yield view
            if pending:
                pending.check()
                pending.hear(news.wait())


def outlast(look: Callable[[], T], deadline: Deadline) -> T:
    """Return what it finds, looking again while Postgres restarts, for half a minute or to the deadline.

    Raises `UnavailableError` when that is over.
    """
    outage = Outage(deadline)
    while True:
        try:
            return look()
        except UnavailableError:
            if not (pause := outage.pause()):
                raise
            time.sleep(pause)


def look(connections: Connections, job_ids: Sequence[UUID]) -> Iterator[JobView]:
    """Yield the jobs as they are now. Raises `JobNotFoundError` if one of them does not exist."""
    for batch in batches(job_ids):
        yield from in_order(batch, connections.store.views(batch))


def batches(job_ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Yield the jobs as many at a time as one query looks at."""
    for start in range(0, len(job_ids), LOOK_AT):
        yield job_ids[start : start + LOOK_AT]


def in_order(job_ids: Sequence[UUID], views: Mapping[UUID, JobView]) -> Iterator[JobView]:
    """Yield the jobs as they were asked for. Raises `JobNotFoundError` for the first that does not exist."""
    for job_id in job_ids:
        if job_id not in views:
            raise JobNotFoundError(job_id)
        yield views[job_id]
