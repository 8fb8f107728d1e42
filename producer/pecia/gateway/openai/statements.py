"""SQL of request files and batches. Both are jobs without parts, of two kinds, and hold the file as other jobs do.

So the rules of documents apply to a file: encryption, retention, audit and erasure. The rules of jobs apply to a
batch: end, expiry and cancellation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from pecia.errors import PeciaError
from pecia.handles import COLUMNS, JobView
from pecia.store import Connection, D_co, Statements, transaction
from pecia_schemas.encryption import Keyring
from pecia_schemas.moves import BEGIN_JOBS, end_jobs, promise_callbacks
from pecia_schemas.states import JobState
from pecia_schemas.tasks import RequestBatch

_HELD: Final = f"""
    SELECT {COLUMNS}, task, client, tenant, expires_at FROM jobs
    WHERE kind = 'openai.{{kind}}' AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND {{which}}
    ORDER BY id DESC LIMIT :size
"""  # noqa: S608  constants
_FILES, _BATCHES = (
    _HELD.format(kind=kind, which="erased_at IS NULL AND id < coalesce(CAST(:before AS uuid), :last)")
    for kind in ("file", "batch")
)
_FILE = _HELD.format(kind="file", which="erased_at IS NULL AND id = :id")
_BATCH = _HELD.format(kind="batch", which="batch = :id")
_OPEN = _HELD.format(
    kind="batch",
    which="""(state IN ('queued', 'running') OR (
        state = 'cancelled' AND finished_at > now() - interval '1 day'
        AND EXISTS (SELECT FROM jobs AS line WHERE line.batch = jobs.batch AND line.state IN ('queued', 'running'))
    ))""",
)
_EXPIRED_FILES = _HELD.format(
    kind="file",
    which="erased_at IS NULL AND finished_at + (task->>'kept_s')::int * interval '1 second' < now()",
)
_LAST: Final = UUID(int=2**128 - 1)
_MOST_OPEN: Final = 1_000
_MOST_EXPIRED: Final = 100

_ADVANCE = """
    UPDATE jobs SET task = task || CAST(:progress AS jsonb)
    WHERE id = :id AND state IN ('queued', 'running') AND (task->>'following')::int = :former
    RETURNING id
"""
_LOCK_OPEN = "SELECT kind FROM jobs WHERE id = :id AND state IN ('queued', 'running') FOR NO KEY UPDATE"
_UNFINISHED = """
    SELECT id FROM jobs WHERE batch = :batch AND state IN ('queued', 'running') AND kind NOT LIKE 'openai.%'
"""
_KNOWN = "SELECT idempotency_key FROM jobs WHERE idempotency_key = ANY(CAST(:keys AS text[]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A file of requests, or a batch, which has its own hold of the file."""

    view: JobView
    task: Mapping[str, Any]
    client: str
    tenant: str
    expires_at: datetime | None

    @classmethod
    def of(cls, row: Mapping[str, Any], keys: Keyring) -> Self:
        """Return the file or batch of a row."""
        others = {name: row[name] for name in ("task", "client", "tenant", "expires_at")}
        return cls(view=JobView.of(row, keys), **others)

    @property
    def id(self) -> UUID:
        """Id of the job that holds the file."""
        return self.view.id

    @property
    def following(self) -> int:
        """Number of the next line to submit."""
        return int(self.task["following"])

    @property
    def file_expires_at(self) -> datetime | None:
        """When the file expires; for a batch, when its output files do."""
        ended, kept_s = self.view.finished_at, self.task.get("kept_s")
        return None if ended is None or kept_s is None else ended + timedelta(seconds=kept_s)

    @property
    def is_submitted(self) -> bool:
        """Whether all lines have been submitted or refused."""
        return self.following >= int(self.task["lines"])


class BatchOverError(PeciaError):
    """The batch has ended, so none of its lines may become a job."""


def check_open(connection: Connection, held_id: UUID) -> None:
    """Keep a batch open until the transaction ends. Raises `BatchOverError` if it has ended."""
    if connection.execute(_LOCK_OPEN, {"id": held_id}).first() is None:
        raise BatchOverError("The batch has ended.")


class Requests(Statements[D_co]):
    """Files and batches of a tenant; without a tenant, all of them."""

    def _held(self, connection: Connection, statement: str, **values: Any) -> list[Held]:
        rows = connection.execute(statement, {"tenant": self._tenant, "last": _LAST, **values}).mappings()
        return [Held.of(row, self._keys) for row in rows]

    @transaction
    def files(self, connection: Connection, *, before: UUID | None, size: int) -> list[Held]:
        """Return files, newest first."""
        return self._held(connection, _FILES, before=before, size=size)

    @transaction
    def batches(self, connection: Connection, *, before: UUID | None, size: int) -> list[Held]:
        """Return batches, newest first."""
        return self._held(connection, _BATCHES, before=before, size=size)

    @transaction
    def file(self, connection: Connection, file_id: UUID) -> Held | None:
        """Return the file with this id, or None."""
        return next(iter(self._held(connection, _FILE, id=file_id, size=1)), None)

    @transaction
    def batch(self, connection: Connection, batch: UUID) -> Held | None:
        """Return a request batch by the id of its batch of jobs, or None."""
        return next(iter(self._held(connection, _BATCH, id=batch, size=1)), None)

    @transaction
    def open_batches(self, connection: Connection) -> list[Held]:
        """Return the batches that have not ended, and cancelled ones with jobs that have not."""
        return self._held(connection, _OPEN, size=_MOST_OPEN)

    @transaction
    def expired(self, connection: Connection) -> list[Held]:
        """Return the files that have expired."""
        return self._held(connection, _EXPIRED_FILES, size=_MOST_EXPIRED)

    @transaction
    def advance(self, connection: Connection, held: Held, *, lines: int, refused: int) -> bool:
        """Record that more lines were submitted, and how many of these were refused.

        Return whether the batch is still open and had made no other progress.
        """
        progress = {"following": held.following + lines, "refused": held.task["refused"] + refused}
        values = {"id": held.id, "former": held.following, "progress": json.dumps(progress)}
        if connection.execute(_ADVANCE, values).first() is None:
            return False
        connection.execute(BEGIN_JOBS, {"job_ids": [held.id], "actor": self._actor})
        return True

    @transaction
    def end(self, connection: Connection, job_id: UUID, state: JobState) -> None:
        """End a file or a batch that has not ended, and notify receivers of a batch."""
        kind = connection.execute(_LOCK_OPEN, {"id": job_id}).scalar()
        if kind is not None:
            end_jobs(connection, [job_id], state=state, actor=self._actor, reason=None)
        if kind == RequestBatch.kind:
            promise_callbacks(connection, [job_id])

    @transaction
    def unfinished(self, connection: Connection, batch: UUID) -> list[UUID]:
        """Return the jobs of a batch that have not ended."""
        return list(connection.execute(_UNFINISHED, {"batch": batch}).scalars())

    @transaction
    def known(self, connection: Connection, keys: Collection[str]) -> set[str]:
        """Return the idempotency keys of the tenant that name a job."""
        prefix = f"{self._tenant}:"
        rows = connection.execute(_KNOWN, {"keys": [f"{prefix}{key}" for key in keys]}).scalars()
        return {key.removeprefix(prefix) for key in rows}
