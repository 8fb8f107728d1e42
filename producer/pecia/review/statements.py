"""Every SQL statement of a review: the pages to look at, and the decisions."""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from pecia import store
from pecia.errors import InvalidSettingError, JobErasedError, JobError, JobNotFoundError
from pecia.handles import WRAPPED, label_in
from pecia.records import AuditAction, Listing
from pecia.review.correcting import Decision, revised
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.moves import NOTIFY_REVISED, PROMISE_REVISED
from pecia_schemas.results import NEEDS_REVIEW, Page, Verdict
from pecia_schemas.states import new_id

_WORST_FIRST: Final = tuple(reversed(Verdict))

_READ = """
    FROM parts JOIN jobs ON jobs.id = parts.job_id
    LEFT JOIN LATERAL (
        SELECT number, checked FROM revisions WHERE part_id = parts.id ORDER BY number DESC LIMIT 1
    ) AS revised ON true
    WHERE parts.stage = 'read' AND parts.state = 'done' AND jobs.erased_at IS NULL AND {wanted}
"""
_COLUMNS = f"""
    parts.job_id, parts.ordinal + 1 AS number, parts.verdict, parts.doubts, jobs.metadata,
    jobs.task->>'document_type' AS document_type, coalesce(revised.number, 0) AS revision,
    coalesce(revised.checked, false) AS checked, jobs.label, {WRAPPED} AS wrapped
"""
_DOUBTFUL = f"""
    SELECT {_COLUMNS} {_READ} AND {NEEDS_REVIEW}
    ORDER BY array_position(CAST(:worst_first AS text[]), verdict), doubts DESC NULLS LAST, job_id DESC, ordinal
    LIMIT :limit
"""
_ALL = f"""
    SELECT {_COLUMNS} {_READ} ORDER BY job_id DESC, ordinal LIMIT :limit
"""
# At random, and the same whenever it is drawn: by a hash of the page and the seed.
_SAMPLE = f"""
    SELECT {_COLUMNS} {_READ} AND (NOT CAST(:reviewed AS bool) OR revised.checked)
    ORDER BY sha256(convert_to(CAST(:seed AS text) || parts.id, 'UTF8')) LIMIT :limit
"""

_LOCK = """
    SELECT erased_at FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
"""
_NOW = """
    SELECT parts.id, results.content AS original, revised.id AS revision, revised.content,
           (SELECT coalesce(max(number), 0) + 1 FROM revisions WHERE job_id = :job_id) AS next, clock_timestamp() AS at,
           (SELECT wrapped FROM job_keys WHERE job_id = :job_id) AS wrapped
    FROM parts JOIN results ON results.part_id = parts.id
    LEFT JOIN LATERAL (
        SELECT id, content FROM revisions WHERE part_id = parts.id ORDER BY number DESC LIMIT 1
    ) AS revised ON true
    WHERE parts.job_id = :job_id AND parts.stage = 'read' AND parts.ordinal = :ordinal
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


class StaleReviewError(JobError):
    """The page has another revision than the reviewed one."""


class ReviewPage(BaseModel):
    """A page that was read, as a list has it."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    job_id: UUID
    number: int
    """Counted from 1, as in the document."""
    verdict: Verdict | None
    doubts: int | None
    """None: it was read by a version that did not count them."""
    document_type: str | None
    metadata: dict[str, str]
    revision: int
    """Its last; 0: it is as it was read."""
    checked: bool
    """Whether a person has compared the whole page with its picture."""
    label: str | None
    """What its document is called."""


class Reviews(store.Statements[store.D_co]):
    """What a client sees of pages to be reviewed, and writes of them."""

    @store.transaction
    def doubtful(
        self, connection: store.Connection, listing: Listing, job_ids: Collection[UUID], limit: int
    ) -> list[ReviewPage]:
        """Return pages that a person should look at, the most doubtful first; of named jobs all pages."""
        if job_ids:
            return _pages(connection, self._keys, _ALL, listing, job_ids, limit=limit)
        return _pages(
            connection, self._keys, _DOUBTFUL, listing, (), limit=limit, worst_first=list(_WORST_FIRST)
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
        """Return pages drawn at random, the same for the same seed; `reviewed`: of those that were checked whole."""
        return _pages(
            connection, self._keys, _SAMPLE, listing, job_ids, limit=size, seed=str(seed), reviewed=reviewed
        )

    @store.transaction
    def look(self, connection: store.Connection, job_id: UUID, number: int) -> tuple[Page, Page]:
        """Return a page as it was read and as it is now, and note who has seen it. Raises as `revise`."""
        _, _, original, now = self._read(connection, job_id, number)
        store.note_read(connection, job_id, client=self._client, what=AuditAction.PAGES)
        return original, now

    def _read(
        self, connection: store.Connection, job_id: UUID, number: int
    ) -> tuple[Any, Keyring, Page, Page]:
        row = connection.execute(_NOW, {"job_id": job_id, "ordinal": number - 1}).first()
        if row is None:
            raise JobNotFoundError(job_id)
        try:
            keys = self._keys.of_job(job_id, row.wrapped)
            original = now = Page.model_validate(keys.unseal(row.original, row.id))
            if row.revision is not None:
                now = Page.model_validate(keys.unseal(row.content, row.revision))
        except DecryptionError as error:
            raise InvalidSettingError(f"A result cannot be read. {error}") from None
        return row, keys, original, now

    @store.unrepeatable
    def revise(
        self, connection: store.Connection, job_id: UUID, number: int, seen: int, decision: Decision
    ) -> Page:
        """Write a revision of a page, announce it, and return the page.

        Raises `StaleReviewError` if the page is not the one that was `seen`, by its revision, `JobErasedError`,
        `JobNotFoundError` or `InvalidOptionError`.
        """
        job = connection.execute(_LOCK, {"job_id": job_id}).first()
        if job is not None and job.erased_at is not None:
            raise JobErasedError(job_id, job.erased_at)
        row, keys, _, page = self._read(connection, job_id, number)
        if seen != (page.revision.number if page.revision else 0):
            raise StaleReviewError(job_id, "The page has been reviewed elsewhere since: look at it again.")
        page = revised(page, decision, number=row.next, by=self._client, at=row.at)
        own = new_id()
        written = {
            "id": own,
            "job_id": job_id,
            "part_id": row.id,
            "number": row.next,
            "checked": bool(page.revision and page.revision.checked),
            "content": keys.seal(page.stored_json(), own),
            "actor": f"client:{self._client}",
            "verdict": page.verdict,
            "doubts": len(page.doubts),
        }
        connection.execute(_WRITE, written)
        store.note_read(connection, job_id, client=self._client, what=AuditAction.REVISED)
        connection.execute(PROMISE_REVISED, {"part_ids": [row.id]})
        return page


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
        query.format(wanted=store.sql(wanted)), store.given(wanted, **values)
    ).mappings()
    return [
        ReviewPage.model_validate(
            row | {"label": label_in(row["label"], row["job_id"], row.pop("wrapped"), keys)}
        )
        for row in rows
    ]
