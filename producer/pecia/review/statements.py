"""SQL of reviews: queries of the pages to review, and writes of decisions."""

from collections.abc import Collection
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from pecia import store
from pecia.errors import (
    InvalidOptionError,
    InvalidSettingError,
    JobErasedError,
    JobNotFoundError,
    StaleReviewError,
)
from pecia.handles import WRAPPED, label_in
from pecia.records import AuditAction, Listing
from pecia.review.correcting import Decision, revised
from pecia.review.splits import corrected
from pecia_schemas.bundles import Split, SplitChange
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.moves import NOTIFY_REVISED, PROMISE_REVISED, promise_ready
from pecia_schemas.results import NEEDS_REVIEW, Page, Verdict
from pecia_schemas.states import Stage, new_id

R = TypeVar("R", Page, Split)

_READ = """
    FROM parts JOIN jobs ON jobs.id = parts.job_id
    LEFT JOIN LATERAL (
        SELECT number, checked FROM revisions WHERE part_id = parts.id ORDER BY number DESC LIMIT 1
    ) AS revised ON true
    WHERE parts.stage IN ('read', 'split') AND parts.state = 'done' AND jobs.erased_at IS NULL AND {wanted}
"""
_COLUMNS = f"""
    parts.job_id, parts.stage, parts.ordinal + 1 AS number, parts.verdict, parts.doubts, jobs.metadata,
    jobs.task->>'document_type' AS document_type, coalesce(revised.number, 0) AS revision,
    coalesce(revised.checked, false) AS checked, jobs.label, {WRAPPED} AS wrapped
"""
_DOUBTFUL = f"""
    SELECT {_COLUMNS} {_READ} AND {NEEDS_REVIEW}
    ORDER BY {store.IN_CONFLICT} DESC, array_position(CAST(:worst_first AS text[]), verdict), doubts DESC NULLS LAST,
             job_id DESC, ordinal
    LIMIT :limit
"""
_ALL = f"""
    SELECT {_COLUMNS} {_READ} ORDER BY job_id DESC, stage DESC, ordinal LIMIT :limit
"""
# Random order by a hash of the page and the seed, so that a seed always draws the same pages.
_SAMPLE = f"""
    SELECT {_COLUMNS} {_READ} AND stage = 'read' AND (NOT CAST(:reviewed AS bool) OR revised.checked)
    ORDER BY sha256(convert_to(CAST(:seed AS text) || parts.id, 'UTF8')) LIMIT :limit
"""

_LOCK = """
    SELECT erased_at FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
"""
_NOW = """
    SELECT parts.id, parts.job_id, results.content AS original, revised.id AS revision, revised.content,
           (SELECT coalesce(max(number), 0) + 1 FROM revisions WHERE job_id = :job_id) AS next, clock_timestamp() AS at,
           (SELECT wrapped FROM job_keys WHERE job_id = :job_id) AS wrapped
    FROM parts JOIN results ON results.part_id = parts.id
    LEFT JOIN LATERAL (
        SELECT id, content FROM revisions WHERE part_id = parts.id ORDER BY number DESC LIMIT 1
    ) AS revised ON true
    WHERE parts.job_id = :job_id AND parts.stage = :stage AND parts.state = 'done'
      AND parts.ordinal = coalesce(CAST(:ordinal AS int), parts.ordinal)
"""
_WRITE = f"""
    WITH written AS (
        INSERT INTO revisions (id, job_id, part_id, number, checked, content)
        VALUES (:id, :job_id, :part_id, :number, :checked, CAST(:content AS jsonb))
    ), told AS (
        {NOTIFY_REVISED}
    )
    UPDATE parts SET verdict = :verdict, doubts = :doubts WHERE id = :part_id
"""  # noqa: S608  constants of ours


class ReviewPage(BaseModel):
    """A page that was read, or a bundle's split, in a list of pages to review."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    job_id: UUID
    stage: Stage
    """`split` for the documents of a bundle."""
    number: int
    """Number of the page, from 1."""
    verdict: Verdict | None
    doubts: int | None
    """For a bundle, the number of documents in conflict. None if an earlier version read it, which did not count."""
    document_type: str | None
    metadata: dict[str, str]
    revision: int
    """Number of the last revision; 0 if never revised."""
    checked: bool
    """Whether a person has compared the complete page with its picture."""
    label: str | None
    """Label of the document."""


class Reviews(store.Statements[store.D_co]):
    """Reads and writes of a client for reviews."""

    @store.transaction
    def doubtful(
        self, connection: store.Connection, listing: Listing, job_ids: Collection[UUID], limit: int
    ) -> list[ReviewPage]:
        """Return the pages to review: bundles in conflict, then the most doubtful; of named jobs, all pages."""
        if job_ids:
            return _pages(connection, self._keys, _ALL, listing, job_ids, limit=limit)
        return _pages(
            connection, self._keys, _DOUBTFUL, listing, (), limit=limit, worst_first=list(reversed(Verdict))
        )

    @store.transaction
    def sample(
        self,
        connection: store.Connection,
        listing: Listing,
        job_ids: Collection[UUID],
        size: int,
        seed: int,
        *,
        reviewed: bool,
    ) -> list[ReviewPage]:
        """Return random pages, the same for the same seed; with `reviewed`, only completely checked ones."""
        return _pages(
            connection, self._keys, _SAMPLE, listing, job_ids, limit=size, seed=str(seed), reviewed=reviewed
        )

    @store.transaction
    def look(self, connection: store.Connection, job_id: UUID, number: int) -> tuple[Page, Page]:
        """Return a page as read and in its current state, and record the access. Raises the errors of `revise`."""
        row, keys, now = self._read(connection, job_id, Page, number)
        original = Page.model_validate(keys.unseal(row.original, row.id)) if row.revision else now
        store.note_read(connection, job_id, client=self._client, what=AuditAction.PAGES)
        return original, now

    @store.transaction
    def look_at_split(self, connection: store.Connection, job_id: UUID) -> Split:
        """Return the current split of a bundle, and record the access. Raises the errors of `correct`."""
        _, _, split = self._read(connection, job_id, Split)
        store.note_read(connection, job_id, client=self._client, what=AuditAction.PAGES)
        return split

    def _read(
        self, connection: store.Connection, job_id: UUID, kind: type[R], number: int | None = None
    ) -> tuple[Any, Keyring, R]:
        """Return the current page or split, with its row and keys."""
        stage = Stage.READ if kind is Page else Stage.SPLIT
        values = {"job_id": job_id, "stage": stage, "ordinal": None if number is None else number - 1}
        row = connection.execute(_NOW, values).first()
        if row is None and number is None:
            raise InvalidOptionError(f"Job {job_id} has no split: it is not a bundle, or has not ended.")
        if row is None:
            raise JobNotFoundError(job_id)
        try:
            keys = self._keys.of_job(job_id, row.wrapped)
            is_revised = row.revision is not None
            content = keys.unseal(
                row.content if is_revised else row.original, row.revision if is_revised else row.id
            )
            return row, keys, kind.model_validate(content)
        except DecryptionError as error:
            raise InvalidSettingError(f"The result cannot be read. {error}") from None

    @store.unrepeatable
    def revise(
        self, connection: store.Connection, job_id: UUID, number: int, seen: int, decision: Decision
    ) -> Page:
        """Write a revision of a page, announce it, and return the page.

        `seen` is the revision that the person reviewed. Raises `StaleReviewError` if the page has another,
        `JobErasedError`, `JobNotFoundError` or `InvalidOptionError`.
        """
        self._lock(connection, job_id)
        row, keys, page = self._read(connection, job_id, Page, number)
        _check_seen(job_id, page, seen)
        page = revised(page, decision, number=row.next, by=self._client, at=row.at)
        checked = bool(page.revision and page.revision.checked)
        values = {"verdict": page.verdict, "doubts": len(page.doubts), "checked": checked}
        self._write(connection, row, keys, page, values)
        return page

    @store.unrepeatable
    def correct(
        self, connection: store.Connection, job_id: UUID, change: SplitChange, seen: int | None
    ) -> Split:
        """Write a revision of a bundle's split, announce it and the documents that become ready, and return the split.

        `seen` is the revision that the person reviewed; None accepts any. Raises the errors of `revise`, and
        `IdentityConflictError`.
        """
        self._lock(connection, job_id)
        row, keys, before = self._read(connection, job_id, Split)
        if seen is not None:
            _check_seen(job_id, before, seen)
        split = corrected(before, change, number=row.next, by=self._client, at=row.at)
        verdict = Verdict.REVIEW if split.needs_review else Verdict.OK
        values = {"verdict": verdict, "doubts": split.conflicts, "checked": False}
        self._write(connection, row, keys, split, values)
        promise_ready(connection, row.id, split, before)
        return split

    @staticmethod
    def _lock(connection: store.Connection, job_id: UUID) -> None:
        job = connection.execute(_LOCK, {"job_id": job_id}).first()
        if job is not None and job.erased_at is not None:
            raise JobErasedError(job_id, job.erased_at)

    def _write(
        self, connection: store.Connection, row: Any, keys: Keyring, now: Page | Split, values: dict[str, Any]
    ) -> None:
        own, job_id = new_id(), row.job_id
        about = {"id": own, "job_id": job_id, "part_id": row.id, "number": row.next, "actor": self._actor}
        connection.execute(_WRITE, {**about, **values, "content": keys.seal(now.stored_json(), own)})
        store.note_read(connection, job_id, client=self._client, what=AuditAction.REVISED)
        connection.execute(PROMISE_REVISED, {"part_ids": [row.id]})


def _check_seen(job_id: UUID, now: Page | Split, seen: int) -> None:
    """Raise `StaleReviewError` if the current revision is not the one that the person reviewed."""
    if seen != (now.revision.number if now.revision else 0):
        raise StaleReviewError(job_id)


def _pages(
    connection: store.Connection,
    keys: Keyring,
    query: str,
    listing: Listing,
    job_ids: Collection[UUID],
    **values: Any,
) -> list[ReviewPage]:
    wanted = store.conditions(listing, None)
    if job_ids:
        wanted["jobs.id = ANY(CAST(:job_ids AS uuid[]))"] = {"job_ids": list(job_ids)}
    rows = connection.execute(
        query.format(wanted=store.where(wanted)), store.parameters(wanted, **values)
    ).mappings()
    return [
        ReviewPage.model_validate(
            row | {"label": label_in(row["label"], row["job_id"], row.pop("wrapped"), keys)}
        )
        for row in rows
    ]
