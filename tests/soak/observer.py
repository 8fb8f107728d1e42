"""What can be seen of a fleet in its Postgres, past the proxies: how far it is, who holds what, who works again."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import UUID

import psycopg

T = TypeVar("T")

_PROGRESS = """
    SELECT count(*) FILTER (WHERE stage <> 'ingest' AND state NOT IN ('queued', 'running')),
           count(*) FILTER (WHERE state IN ('queued', 'running')),
           coalesce(sum(greatest(attempt - 1, 0)), 0)
    FROM parts
"""
_OPEN_JOBS = "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"
_PENDING_CALLBACKS = "SELECT count(*) FROM deliveries WHERE state = 'pending'"
_NAME = """
    SELECT name FROM workers WHERE host = %s AND pid = %s AND stopped_at IS NULL ORDER BY started_at DESC LIMIT 1
"""
_HELD = "SELECT id, attempt FROM parts WHERE state = 'running' AND (%s::text IS NULL OR worker = %s)"
_STILL_HELD = """
    SELECT count(*) FROM parts JOIN unnest(%s::uuid[], %s::int[]) AS held (id, attempt) USING (id)
    WHERE parts.attempt = held.attempt AND parts.state IN ('queued', 'running')
"""
_BEGUN_AGAIN = """
    SELECT count(*) FROM parts JOIN unnest(%s::uuid[], %s::int[]) AS held (id, attempt) USING (id)
    WHERE parts.attempt > held.attempt
"""
_ARRIVED = "SELECT EXISTS (SELECT FROM workers WHERE role = %s AND started_at > %s)"
_COMMITTED = "SELECT EXISTS (SELECT FROM parts WHERE finished_at > %s)"
_ACCEPTED = "SELECT EXISTS (SELECT FROM jobs WHERE created_at > %s)"
_AT_WORK = """
    SELECT count(*) FROM (
        SELECT FROM parts WHERE stage <> 'ingest'
        GROUP BY worker HAVING bool_or(started_at > %s) AND bool_or(finished_at > %s)
    ) AS at_work
"""


@dataclass(frozen=True, slots=True)
class Progress:
    over: int
    """Pages that are done, failed or cancelled."""
    open_parts: int
    redone: int
    """Attempts beyond the first of all parts."""
    open_jobs: int
    pending_callbacks: int


@dataclass(frozen=True, slots=True)
class Held:
    """Parts that were running at a moment, with the attempt that ran."""

    parts: Sequence[tuple[UUID, int]]

    @property
    def columns(self) -> tuple[list[UUID], list[int]]:
        return [part for part, _ in self.parts], [attempt for _, attempt in self.parts]


class Observer:
    """Looks at Postgres directly. While that is away everything it answers is None: nobody knows."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def now(self) -> datetime | None:
        """Return the time by the clock of Postgres."""
        return cast("datetime | None", self._value("SELECT clock_timestamp()"))

    def progress(self) -> Progress | None:
        def look(connection: psycopg.Connection[tuple[Any, ...]]) -> Progress:
            over, open_parts, redone = connection.execute(_PROGRESS).fetchone() or (0, 0, 0)
            (open_jobs,) = connection.execute(_OPEN_JOBS).fetchone() or (0,)
            (pending,) = connection.execute(_PENDING_CALLBACKS).fetchone() or (0,)
            return Progress(over, open_parts, int(redone), open_jobs, pending)

        return self._try(look)

    def worker_named(self, pid: int) -> str | None:
        """Return the name under which a process of this machine is registered, if it is."""
        return cast("str | None", self._value(_NAME, socket.gethostname(), pid))

    def held_by(self, worker: str | None) -> Held | None:
        """Return what a worker runs now; for None, what all of them run."""
        rows = self._try(lambda connection: connection.execute(_HELD, (worker, worker)).fetchall())
        return None if rows is None else Held([(part, attempt) for part, attempt in rows])

    def are_taken_over(self, held: Held) -> bool | None:
        """Return whether each of the parts runs in a later attempt by now, or is over."""
        left: int | None = self._value(_STILL_HELD, *held.columns)
        return None if left is None else left == 0

    def begun_again(self, held: Held) -> int | None:
        """Return how many of the parts were begun again since."""
        return cast("int | None", self._value(_BEGUN_AGAIN, *held.columns))

    def has_arrived(self, role: str, since: datetime) -> bool | None:
        """Return whether a worker of the role has come on duty since."""
        return self._truth(_ARRIVED, role, since)

    def has_committed(self, since: datetime) -> bool | None:
        return self._truth(_COMMITTED, since)

    def has_accepted(self, since: datetime) -> bool | None:
        return self._truth(_ACCEPTED, since)

    def at_work(self, since: datetime) -> int | None:
        """Return how many engine workers have both claimed and committed since."""
        return cast("int | None", self._value(_AT_WORK, since, since))

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what a statement finds. Raises `psycopg.Error`."""
        with psycopg.connect(self._url) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def _truth(self, statement: str, *values: Any) -> bool | None:
        return cast("bool | None", self._value(statement, *values))

    def _value(self, statement: str, *values: Any) -> Any:
        row = self._try(lambda connection: connection.execute(statement.encode(), values).fetchone())
        return row[0] if row else None

    def _try(self, look: Callable[[psycopg.Connection[tuple[Any, ...]]], T]) -> T | None:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=2)
            return look(self._connection)
        except psycopg.Error:
            self.close()
            return None
