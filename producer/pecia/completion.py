"""Waiting for jobs: look, subscribe, look again, then wait for an announcement or for the polling interval to pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from redis import RedisError
from redis.client import PubSub

from pecia.connections import Connections
from pecia.errors import DatabaseUnavailableError, JobNotFoundError, JobTimeoutError
from pecia.publishing import Bus
from pecia.view import JobView
from pecia_schemas.messages import job_channel

_CONFIRMATION_S = 2.0
_LOOK_AT = 500  # rows in one query
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


class Announcements:
    """News about some jobs. Redis may be away: then only the polling interval passes."""

    def __init__(self, bus: Bus, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline) -> None:
        self._bus = bus
        self._ids = {job_channel(job_id): job_id for job_id in job_ids}
        self._poll_s = poll_s
        self._deadline = deadline
        self._pubsub: PubSub | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def wait(self) -> set[UUID]:
        """Return which jobs were announced; an empty set says: look at all of them.

        The first call subscribes and returns at once, for what happened before was not heard.
        """
        if self._pubsub is None and self._subscribe():
            return set()
        pause = self._deadline.within(self._poll_s)
        if self._pubsub is None:
            time.sleep(pause)
            return set()
        return self._listen(self._pubsub, pause)

    def _subscribe(self) -> bool:
        self._pubsub = self._bus.subscription()
        if self._pubsub is None:
            return False
        try:
            self._pubsub.subscribe(*self._ids)
            return self._confirmed(self._pubsub) or self._give_up()
        except (RedisError, OSError):
            return self._give_up()

    def _confirmed(self, pubsub: PubSub) -> bool:
        """Wait until Redis has noted every subscription: what is published from now on will be heard."""
        patience = Deadline(_CONFIRMATION_S)
        open_channels = len(self._ids)
        while open_channels and (left := patience.within(_CONFIRMATION_S)):
            message = pubsub.get_message(timeout=left)
            open_channels -= message is not None and message["type"] == "subscribe"
        return open_channels == 0

    def _listen(self, pubsub: PubSub, pause: float) -> set[UUID]:
        heard: set[UUID] = set()
        try:
            message = pubsub.get_message(timeout=pause)
            while message is not None and len(heard) < _LOOK_AT:
                if message["type"] == "message":
                    heard.add(self._ids[message["channel"]])
                message = pubsub.get_message(timeout=0)
        except (RedisError, OSError):
            self._give_up()
        return heard

    def _give_up(self) -> bool:
        self._bus.rest()
        self._hang_up()
        return False

    def _hang_up(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(RedisError, OSError):
                pubsub.close()


def announcements(connections: Connections, job_ids: Collection[UUID], deadline: Deadline) -> Announcements:
    """Return the news about these jobs, at the client's own polling interval."""
    return Announcements(connections.bus, job_ids, poll_s=connections.poll_s, deadline=deadline)


def finished(connections: Connections, job_ids: Sequence[UUID], deadline: Deadline) -> Iterator[JobView]:
    """Yield each job once it is over, as they finish.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of them does not exist.
    """
    pending = dict.fromkeys(job_ids)
    with announcements(connections, job_ids, deadline) as news:
        look_at = list(pending)
        while pending:
            for view in outlast(lambda: list(look(connections, look_at)), deadline):  # noqa: B023  called at once
                if view.state.is_terminal:
                    del pending[view.id]
                    yield view
            if pending:
                deadline.check(next(iter(pending)))
                heard = news.wait()
                look_at = [job_id for job_id in pending if not heard or job_id in heard]


def outlast(look: Callable[[], T], deadline: Deadline) -> T:
    """Return what it finds, looking again while Postgres restarts, for half a minute or to the deadline.

    Raises `DatabaseUnavailableError` when that is over.
    """
    patience = Deadline(_OUTAGE_S)
    while True:
        try:
            return look()
        except DatabaseUnavailableError:
            if not (pause := deadline.within(patience.within(_OUTAGE_PAUSE_S))):
                raise
            time.sleep(pause)


def look(connections: Connections, job_ids: Sequence[UUID]) -> Iterator[JobView]:
    """Yield the jobs as they are now. Raises `JobNotFoundError` if one of them does not exist."""
    for start in range(0, len(job_ids), _LOOK_AT):
        batch = job_ids[start : start + _LOOK_AT]
        views = connections.store.views(batch)
        for job_id in batch:
            if job_id not in views:
                raise JobNotFoundError(job_id)
            yield views[job_id]
