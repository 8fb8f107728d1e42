"""Every SQL statement of the client: what it writes when it submits, and what it reads while it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Integer,
    all_,
    and_,
    func,
    literal,
    or_,
    select,
    text,
    true,
)

from pecia import accepting
from pecia.audit import note_read
from pecia.backlog import Load
from pecia.errors import InvalidSettingError, JobNotFoundError, SubmitError
from pecia.originals import Original
from pecia.records import AuditAction, FoundPage, Listing, PartOutcome
from pecia.rows import EVENTS, JOBS, PARTS, RESULTS, VIEW
from pecia.statements import D_co, Statements, transaction
from pecia.submission import NewJob
from pecia.view import Accepted, JobView
from pecia_schemas.duty import UNSERVED, Lack
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import Failure
from pecia_schemas.results import NEEDS_REVIEW, Verdict
from pecia_schemas.states import Lane, PartState, Stage

_OPEN = [state for state in PartState if not state.is_terminal]
_CLOCK_SKEW = timedelta(days=1)  # ids carry the clock of the client that made them
_FIRST_IDS = datetime.fromtimestamp(0, UTC) + _CLOCK_SKEW  # and no time before

_LOAD = text(
    """
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM parts WHERE state = 'queued' AND lane = :lane AND run_at <= now() LIMIT :limit
        ) AS waiting
    ) AS waiting, (
        SELECT count(*) FROM parts
        WHERE engine IS NOT NULL AND finished_at > now() - interval '1 minute' AND lane = :lane
    ) AS ended
    """
)


_LEAVE_TO_RELAY = text(
    """
    WITH free AS (
        SELECT id FROM parts WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'queued'
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE parts SET published_at = NULL FROM free WHERE parts.id = free.id
    """
)


class Store(Statements[D_co]):
    """The rows of jobs, as a client sees and writes them; what is encrypted is decrypted on its way.

    With a `tenant` it finds that one's jobs alone. What is asked of one job is asked after it was found.
    """

    def __init__(self, database: D_co, keys: Keyring, *, client: str, tenant: str | None = None) -> None:
        super().__init__(database)
        self._keys = keys
        self._client = client
        self._own = true() if tenant is None else JOBS.c.tenant == tenant

    @transaction
    def accept(
        self, connection: Connection, batch: Sequence[NewJob], *, is_stored: Callable[[str], bool]
    ) -> list[Accepted | SubmitError]:
        """Write the jobs and return what became of each; those whose key is known already are read back instead.

        `is_stored` tells whether a payload is in the store, if it was removed lately. Raises
        `PayloadStoreUnavailableError` if a document was removed after this submit had stored it.
        """
        return accepting.accept(connection, batch, is_stored)

    @transaction
    def load(self, connection: Connection, lane: Lane, limit: int) -> Load:
        """Return what waits in a lane, counted up to the limit, and how fast it was worked off lately."""
        asked = {"lane": lane, "limit": limit}
        return Load(**connection.execute(_LOAD, asked).mappings().one())

    @transaction
    def leave_to_relay(self, connection: Connection, part_ids: Collection[UUID]) -> None:
        """Note that these parts may not be in Redis. Those that another transaction has locked are left to it."""
        connection.execute(_LEAVE_TO_RELAY, {"ids": list(part_ids)})

    @transaction
    def views(self, connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return what is known about each of the jobs that exist."""
        rows = connection.execute(select(*VIEW).where(JOBS.c.id.in_(job_ids), self._own)).mappings()
        return {row["id"]: JobView.of(dict(row)) for row in rows}

    @transaction
    def views_of_tenants(
        self, connection: Connection, asked: Collection[tuple[str, UUID]]
    ) -> dict[tuple[str, UUID], JobView]:
        """Return what is known about each of these jobs that exists and is of the tenant that it stands with."""
        wanted = JOBS.c.id.in_([job_id for _, job_id in asked])
        rows = connection.execute(select(*VIEW, JOBS.c.tenant).where(wanted)).mappings()
        return {(row["tenant"], row["id"]): JobView.of(dict(row)) for row in rows}

    @transaction
    def page(
        self, connection: Connection, listing: Listing, *, before: UUID | None, size: int
    ) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        newest = select(*VIEW).where(self._own, _wanted(listing)).order_by(JOBS.c.id.desc()).limit(size)
        if before is not None:
            newest = newest.where(JOBS.c.id < before)
        return [JobView.of(dict(row)) for row in connection.execute(newest).mappings()]

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
        found = (
            select(PARTS.c.job_id, PARTS.c.ordinal, PARTS.c.verdict, PARTS.c.finished_at)
            .join(JOBS, JOBS.c.id == PARTS.c.job_id)
            .where(PARTS.c.stage == Stage.READ, PARTS.c.verdict.in_(verdicts))
            .where(JOBS.c.erased_at.is_(None), self._own, _wanted(listing))
            .order_by(PARTS.c.job_id.desc(), PARTS.c.ordinal)
            .limit(size)
        )
        if all(verdict.needs_review for verdict in verdicts):
            found = found.where(text(NEEDS_REVIEW))  # by which Postgres knows that the index has them all
        if after is not None:
            further = or_(PARTS.c.job_id < after.job_id, PARTS.c.ordinal >= after.number)
            found = found.where(PARTS.c.job_id <= after.job_id, further)
        return [
            FoundPage(job_id=job_id, number=ordinal + 1, verdict=Verdict(verdict), read_at=at)
            for job_id, ordinal, verdict, at in connection.execute(found)
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
    ) -> list[PartOutcome]:
        """Return the parts that have ended, in order, without those whose ordinal is to be skipped.

        `read_as` notes who has read them, if there is anything to read. Raises `JobErasedError` if it was erased,
        `InvalidSettingError` if a result is encrypted and cannot be decrypted with the keys that there are.
        """
        ended = (
            select(PARTS.c.id, PARTS.c.stage, PARTS.c.ordinal, PARTS.c.failure, RESULTS.c.content)
            .join(RESULTS, RESULTS.c.part_id == PARTS.c.id, isouter=True)
            .where(
                PARTS.c.job_id == job_id,
                PARTS.c.stage != Stage.INGEST,
                PARTS.c.state.not_in(_OPEN),
            )
            .order_by(PARTS.c.ordinal)
            .limit(limit)
        )
        if skip:
            # One parameter, however many they are: a long document is looked at thousands of times.
            ended = ended.where(PARTS.c.ordinal != all_(literal(list(skip), ARRAY(Integer))))
        rows = connection.execute(ended).mappings().all()
        if read_as is AuditAction.RESULT or (read_as and any(row["content"] for row in rows)):
            note_read(connection, job_id, client=self._client, what=read_as)
        return [_outcome(dict(row), self._keys) for row in rows]

    @transaction
    def original(self, connection: Connection, job_id: UUID) -> Original:
        """Return where the job's document is.

        Raises `DocumentGoneError` if it is not kept any more, `InvalidSettingError` without the key of its password.
        """
        asked = select(JOBS.c.id, JOBS.c.task, JOBS.c.payload_released_at).where(JOBS.c.id == job_id)
        row = connection.execute(asked).mappings().first()
        if row is None:
            raise JobNotFoundError(job_id)
        return Original.of(dict(row), self._keys)

    @transaction
    def first_unfinished(self, connection: Connection, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change; None if there is none. 0 until the document is cut."""
        lowest = select(func.min(PARTS.c.ordinal)).where(PARTS.c.job_id == job_id, PARTS.c.state.in_(_OPEN))
        return connection.execute(lowest).scalar()

    @transaction
    def events(
        self, connection: Connection, job_id: UUID, *, after: int, skip: Collection[int]
    ) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those to be skipped."""
        told = (
            select(EVENTS)
            .where(EVENTS.c.job_id == job_id, EVENTS.c.sequence > after)
            .order_by(EVENTS.c.sequence)
        )
        rows = connection.execute(told).mappings()
        return [JobEvent.model_validate(dict(row)) for row in rows if row["sequence"] not in skip]


def _wanted(listing: Listing) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [true()]
    if listing.states:
        conditions.append(JOBS.c.state.in_(listing.states))
    if listing.kind is not None:
        conditions.append(JOBS.c.kind == listing.kind)
    if listing.metadata:
        conditions.append(JOBS.c.metadata.contains(dict(listing.metadata)))
    if listing.since is not None:
        conditions.append(JOBS.c.created_at >= listing.since)
        if listing.since > _FIRST_IDS:
            conditions.append(JOBS.c.id >= _oldest_id(listing.since - _CLOCK_SKEW))
    return and_(*conditions)


def _oldest_id(since: datetime) -> UUID:
    """Return the least UUIDv7 of that moment: it lets the primary key end the search."""
    return UUID(int=int(since.timestamp() * 1000) << 80)


def _outcome(row: Mapping[str, Any], keys: Keyring) -> PartOutcome:
    failure = Failure.model_validate(row["failure"]) if row["failure"] else None
    try:
        content = keys.unseal(row["content"], row["id"])
    except DecryptionError as error:
        raise InvalidSettingError(f"A result cannot be read. {error}") from None
    return PartOutcome(stage=Stage(row["stage"]), ordinal=row["ordinal"], content=content, failure=failure)
