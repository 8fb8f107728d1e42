"""Every SQL statement of the client: what it writes when it submits, and what it reads while it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from pecia import accepting
from pecia.accounts import note_read
from pecia.errors import InvalidSettingError, JobNotFoundError, SubmitError
from pecia.handles import COLUMNS, Accepted, JobView
from pecia.listing import BatchStatements, conditions, given, sql
from pecia.records import AuditAction, FoundPage, Listing, PartOutcome
from pecia.sources import Original
from pecia.statements import Connection, D_co, transaction
from pecia.submission import NewJob
from pecia.waiting import Load
from pecia_schemas.duty import UNSERVED, Lack
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import Failure
from pecia_schemas.results import NEEDS_REVIEW, Verdict
from pecia_schemas.states import Lane, PartState, Stage

_OPEN = [state for state in PartState if not state.is_terminal]

_LOAD = """
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM parts WHERE state = 'queued' AND lane = :lane AND run_at <= now() LIMIT :limit
        ) AS waiting
    ) AS waiting, (
        SELECT count(*) FROM parts
        WHERE engine IS NOT NULL AND finished_at > now() - interval '1 minute' AND lane = :lane
    ) AS ended
    """


_LEAVE_TO_RELAY = """
    WITH free AS (
        SELECT id FROM parts WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'queued'
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE parts SET published_at = NULL FROM free WHERE parts.id = free.id
    """

_VIEWS = f"""
    SELECT {COLUMNS}, tenant FROM jobs
    WHERE id = ANY(CAST(:job_ids AS uuid[])) AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
"""  # noqa: S608  a constant

# `revision`: as it was then, 0 before all of them; None: as it is now.
_ENDED = """
    SELECT coalesce(revised.id, parts.id) AS sealed_for, parts.stage, parts.ordinal, parts.failure,
           coalesce(revised.content, results.content) AS content
    FROM parts LEFT JOIN results ON results.part_id = parts.id
    LEFT JOIN LATERAL (
        SELECT id, content FROM revisions
        WHERE part_id = parts.id AND number <= coalesce(CAST(:revision AS bigint), 2147483647)
        ORDER BY number DESC LIMIT 1
    ) AS revised ON true
    WHERE parts.job_id = :job_id AND parts.stage <> 'ingest' AND parts.state <> ALL(CAST(:open AS text[])) {further}
    ORDER BY parts.ordinal LIMIT :limit
"""
_ALL_OUTCOMES = _ENDED.format(further="")
_OUTCOMES = _ENDED.format(further="AND parts.ordinal <> ALL(CAST(:skip AS int[]))")

_ORIGINAL = "SELECT id, task, payload_released_at FROM jobs WHERE id = :job_id"

_LOWEST = """
    SELECT min(ordinal) FROM parts WHERE job_id = :job_id AND state = ANY(CAST(:open AS text[]))
"""

_EVENTS = """
    SELECT sequence, job_id, part_id, state, at, actor, attempt, reason FROM job_events
    WHERE job_id = :job_id AND sequence > :after ORDER BY sequence
"""


class Store(BatchStatements[D_co]):
    """The rows of jobs, as a client sees and writes them; what is encrypted is decrypted on its way.

    With a `tenant` it finds that one's jobs alone. What is asked of one job is asked after it was found.
    """

    def __init__(self, database: D_co, keys: Keyring, *, client: str, tenant: str | None = None) -> None:
        super().__init__(database, tenant=tenant)
        self._keys = keys
        self._client = client

    @transaction
    def accept(
        self, connection: Connection, batch: Sequence[NewJob], *, is_stored: Callable[[str], bool]
    ) -> list[Accepted | SubmitError]:
        """Write the jobs and return what became of each; those whose key is known already are read back instead.

        `is_stored` tells whether a payload is in the store, if it was removed lately. Raises
        `PayloadStoreUnavailableError` if a document was removed after this submit had stored it.
        """
        return accepting.accept(connection, batch, self._keys, is_stored)

    @transaction
    def load(self, connection: Connection, lane: Lane, limit: int) -> Load:
        """Return what waits in a lane, counted up to the limit, and how fast it was worked off lately."""
        asked = {"lane": lane, "limit": limit}
        return Load(**connection.execute(_LOAD, asked).mappings().first())

    @transaction
    def leave_to_relay(self, connection: Connection, part_ids: Collection[UUID]) -> None:
        """Note that these parts may not be in Redis. Those that another transaction has locked are left to it."""
        connection.execute(_LEAVE_TO_RELAY, {"ids": list(part_ids)})

    @transaction
    def views(self, connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return what is known about each of the jobs that exist."""
        rows = connection.execute(_VIEWS, {"job_ids": list(job_ids), "tenant": self._tenant}).mappings()
        return {row["id"]: JobView.of(row, self._keys) for row in rows}

    @transaction
    def views_of_tenants(
        self, connection: Connection, asked: Collection[tuple[str, UUID]]
    ) -> dict[tuple[str, UUID], JobView]:
        """Return what is known about each of these jobs that exists and is of the tenant that it stands with."""
        rows = connection.execute(
            _VIEWS, {"job_ids": [job_id for _, job_id in asked], "tenant": None}
        ).mappings()
        return {(row["tenant"], row["id"]): JobView.of(row, self._keys) for row in rows}

    @transaction
    def page(
        self, connection: Connection, listing: Listing, *, before: UUID | None, size: int
    ) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        wanted = conditions(listing, self._tenant)
        if before is not None:
            wanted["jobs.id < :before"] = {"before": before}
        newest = f"SELECT {COLUMNS} FROM jobs WHERE {sql(wanted)} ORDER BY id DESC LIMIT :size"  # noqa: S608  constants
        return [
            JobView.of(row, self._keys)
            for row in connection.execute(newest, given(wanted, size=size)).mappings()
        ]

    @transaction
    def found_pages(
        self,
        connection: Connection,
        verdicts: Collection[Verdict],
        listing: Listing,
        *,
        after: FoundPage | None,
        size: int,
    ) -> list[FoundPage]:
        """Return up to `size` pages that were read with one of these verdicts, the newest job first, by number."""
        wanted = conditions(listing, self._tenant) | {
            "stage = 'read' AND verdict = ANY(CAST(:verdicts AS text[]))": {"verdicts": list(verdicts)},
            "jobs.erased_at IS NULL": {},
        }
        if all(verdict.needs_review for verdict in verdicts):
            wanted[NEEDS_REVIEW] = {}  # by which Postgres knows that the index has them all
        if after is not None:
            further = {"job_id": after.job_id, "number": after.number}
            wanted["job_id <= :job_id AND (job_id < :job_id OR ordinal >= :number)"] = further
        found = f"""
            SELECT job_id, ordinal, verdict, parts.finished_at FROM parts JOIN jobs ON jobs.id = job_id
            WHERE {sql(wanted)} ORDER BY job_id DESC, ordinal LIMIT :size
        """  # noqa: S608  constants
        return [
            FoundPage(job_id=job_id, number=ordinal + 1, verdict=Verdict(verdict), read_at=at)
            for job_id, ordinal, verdict, at in connection.execute(found, given(wanted, size=size))
        ]

    @transaction
    def lacking(self, connection: Connection, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts need and no worker on duty can do."""
        rows = connection.execute(UNSERVED, {"job_ids": list(job_ids)}).mappings()
        return [Lack(**row) for row in rows]

    @transaction
    def outcomes(
        self,
        connection: Connection,
        job_id: UUID,
        *,
        skip: Collection[int] = (),
        limit: int | None = None,
        read_as: AuditAction | None = None,
        revision: int | None = None,
    ) -> list[PartOutcome]:
        """Return the parts that have ended, in order, without those whose ordinal is to be skipped.

        Pages are as they were at that revision, at 0 as they were read; None: as they are now. `read_as` notes who
        has read them, if there is anything to read. Raises `JobErasedError` if it was erased, `InvalidSettingError` if
        a result is encrypted and cannot be decrypted with the keys that there are.
        """
        # Skipped ones are one parameter, however many they are: a long document is looked at thousands of times.
        asked = {"job_id": job_id, "open": _OPEN, "skip": list(skip), "limit": limit, "revision": revision}
        rows = connection.execute(_OUTCOMES if skip else _ALL_OUTCOMES, asked).mappings().all()
        if read_as is AuditAction.RESULT or (read_as and any(row["content"] for row in rows)):
            note_read(connection, job_id, client=self._client, what=read_as)
        return [_outcome(row, self._keys) for row in rows]

    @transaction
    def original(self, connection: Connection, job_id: UUID) -> Original:
        """Return where the job's document is.

        Raises `DocumentGoneError` if it is not kept any more, `InvalidSettingError` without the key of its password.
        """
        row = connection.execute(_ORIGINAL, {"job_id": job_id}).mappings().first()
        if row is None:
            raise JobNotFoundError(job_id)
        return Original.of(row, self._keys)

    @transaction
    def first_unfinished(self, connection: Connection, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change; None if there is none. 0 until the document is cut."""
        lowest: int | None = connection.execute(_LOWEST, {"job_id": job_id, "open": _OPEN}).scalar()
        return lowest

    @transaction
    def events(
        self, connection: Connection, job_id: UUID, *, after: int, skip: Collection[int]
    ) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those to be skipped."""
        rows = connection.execute(_EVENTS, {"job_id": job_id, "after": after}).mappings()
        return [JobEvent.model_validate(row) for row in rows if row["sequence"] not in skip]


def _outcome(row: Mapping[str, Any], keys: Keyring) -> PartOutcome:
    failure = Failure.model_validate(row["failure"]) if row["failure"] else None
    try:
        content = keys.unseal(row["content"], row["sealed_for"])
    except DecryptionError as error:
        raise InvalidSettingError(f"A result cannot be read. {error}") from None
    return PartOutcome(stage=Stage(row["stage"]), ordinal=row["ordinal"], content=content, failure=failure)
