"""The client's SQL about jobs and batches, written once for both kinds of client.

A method decorated as a transaction is the work of one transaction. On a `Database` it runs and returns; on an
`AsyncDatabase` it returns an awaitable. The work receives a `Connection` before its arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from pecia.errors import BatchNotFoundError, InvalidSettingError, JobErasedError, JobNotFoundError
from pecia.handles import COLUMNS, WRAPPED, JobView, label_in
from pecia.records import AuditAction, Batch, Counts, FoundPage, LaneLoad, Listing, PartOutcome
from pecia.sources import Original
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import Ordinals
from pecia_schemas.results import NEEDS_REVIEW, Verdict
from pecia_schemas.running import UNSERVED, Lack
from pecia_schemas.states import JobState, Lane, PartState, Stage, as_prefix, is_complete_id, new_id

if TYPE_CHECKING:
    from sqlalchemy import TextClause

P = ParamSpec("P")
T = TypeVar("T")

_NAMED: Final = re.compile(r"(?<![:\w]):(\w+)(?!:)")


@lru_cache(maxsize=256)
def for_driver(statement: str) -> str:
    """Return SQL with `:name` parameters in psycopg's form."""
    return _NAMED.sub(r"%(\1)s", statement.replace("%", "%%"))


class Rows(list[Any]):
    """The rows of a statement, as named tuples."""

    def first(self) -> Any:
        """Return the first row, or None."""
        return self[0] if self else None

    def mappings(self) -> Rows:
        """Return the rows as mappings."""
        return Rows([row._asdict() for row in self])

    def scalars(self) -> list[Any]:
        """Return the first column."""
        return [row[0] for row in self]

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self[0][0] if self else None


class Connection:
    """The connection of a transaction."""

    def execute(self, statement: str | TextClause, parameters: Mapping[str, Any]) -> Rows:
        """Run SQL with parameters in the form `:name`."""
        written = statement if isinstance(statement, str) else statement.text
        return self.execute_as_is(for_driver(written), parameters)

    def execute_as_is(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Run SQL with parameters in the form `%(name)s`."""
        raise NotImplementedError


class Blocking(Protocol):
    """A database whose transactions block the caller's thread."""

    def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return its result."""
        ...


class Awaitable(Protocol):
    """A database whose transactions are awaited."""

    async def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return its result."""
        ...


D_co = TypeVar("D_co", bound=Blocking | Awaitable, covariant=True)


class Statements(Generic[D_co]):
    """Base of a client's statements, for either kind of database; with a `tenant`, about that tenant's jobs only."""

    def __init__(
        self, database: D_co, keys: Keyring | None = None, client: str = "", tenant: str | None = None
    ) -> None:
        self._database, self._client, self._tenant = database, client, tenant
        self._keys = Keyring() if keys is None else keys
        self._actor = f"client:{client}"


class Transaction(Generic[P, T]):
    """Descriptor: a method written with a transaction's connection and called without it."""

    def __init__(self, work: Callable[Concatenate[Any, Any, P], T], *, repeatable: bool) -> None:
        self.__doc__ = work.__doc__
        self._work = work
        self._repeatable = repeatable

    @overload
    def __get__(self, owner: Statements[Blocking], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Statements[Awaitable], kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Statements[Any], kind: type) -> Callable[P, Any]:
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner._database.transaction(  # noqa: SLF001  a method of its owner
                lambda connection: self._work(owner, connection, *args, **kwargs), repeatable=self._repeatable
            )

        return run


def transaction(work: Callable[Concatenate[Any, Any, P], T]) -> Transaction[P, T]:
    """Make a method whose transaction may run again after a lost connection, whether committed or not."""
    return Transaction(work, repeatable=True)


def unrepeatable(work: Callable[Concatenate[Any, Any, P], T]) -> Transaction[P, T]:
    """Make a method whose transaction must not run twice."""
    return Transaction(work, repeatable=False)


_CLOCK_SKEW = timedelta(days=1)  # ids carry the clock of the client that made them
_FIRST_IDS = datetime.fromtimestamp(0, UTC) + _CLOCK_SKEW  # the earliest time with ids


IN_CONFLICT: Final = "(stage = 'split' AND coalesce(doubts, 0) > 0)"
"""SQL condition: the part is the split of a bundle with a patient conflict."""

_WITH_VERDICTS = """EXISTS (
    SELECT FROM parts AS page WHERE page.job_id = jobs.id AND page.stage = 'read'
      AND page.verdict = ANY(CAST(:with_verdicts AS text[])))"""


def conditions(listing: Listing, tenant: str | None) -> dict[str, dict[str, Any]]:
    """Return SQL conditions on jobs, each with its parameters."""
    candidates: tuple[tuple[object, str, dict[str, Any]], ...] = (
        (tenant, "jobs.tenant = :tenant", {"tenant": tenant}),
        (listing.batch, "jobs.batch = :batch", {"batch": listing.batch}),
        (listing.prefix or None, "jobs.id BETWEEN :lowest AND :highest", range_of(listing.prefix)),
        (listing.part, "jobs.id = (SELECT job_id FROM parts WHERE id = :part)", {"part": listing.part}),
        (
            listing.states or None,
            "jobs.state = ANY(CAST(:states AS text[]))",
            {"states": list(listing.states)},
        ),
        (listing.verdicts or None, _WITH_VERDICTS, {"with_verdicts": list(listing.verdicts)}),
        (listing.kind, "jobs.kind = :kind", {"kind": listing.kind}),
        (listing.kind is None or None, "jobs.kind NOT LIKE 'openai.%'", {}),
        (
            listing.metadata or None,
            "jobs.metadata @> CAST(:metadata AS jsonb)",
            {"metadata": json.dumps(dict(listing.metadata or {}))},
        ),
        (listing.since, "jobs.created_at >= :since", {"since": listing.since}),
    )
    found = {condition: parameters for value, condition, parameters in candidates if value is not None}
    if listing.since is not None and listing.since > _FIRST_IDS:
        found["jobs.id >= :oldest"] = {"oldest": least_id(listing.since - _CLOCK_SKEW)}
    return found


def range_of(prefix: str) -> dict[str, UUID]:
    """Return the least and the greatest id with this beginning, for a range scan of the primary key."""
    digits = prefix.replace("-", "")
    return {"lowest": UUID(digits.ljust(32, "0")), "highest": UUID(digits.ljust(32, "f"))}


def where(wanted: Mapping[str, Mapping[str, Any]]) -> str:
    """Return SQL that is true where all conditions hold."""
    return " AND ".join(wanted) or "true"


def parameters(wanted: Mapping[str, Mapping[str, Any]], **others: Any) -> dict[str, Any]:
    """Return the parameters of all conditions, and the others."""
    return {name: value for values in wanted.values() for name, value in values.items()} | others


def least_id(since: datetime) -> UUID:
    """Return the least UUIDv7 of that time, which bounds a scan of the primary key."""
    return UUID(int=int(since.timestamp() * 1000) << 80)


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

# `revision`: the pages after that revision, 0 before all revisions, None now.
_ENDED = """
    SELECT coalesce(revised.id, parts.id) AS sealed_for, parts.stage, parts.ordinal, parts.failure,
           coalesce(revised.content, results.content) AS content,
           (SELECT wrapped FROM job_keys WHERE job_id = :job_id) AS wrapped
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
_OUTCOMES = _ENDED.format(further="AND NOT parts.ordinal <@ CAST(:skip AS int4multirange)")

_ORIGINAL = f"SELECT id, task, payload_released_at, {WRAPPED} AS wrapped FROM jobs WHERE id = :job_id"  # noqa: S608  constants

_LOWEST = """
    SELECT min(ordinal) FROM parts WHERE job_id = :job_id AND state = ANY(CAST(:open AS text[]))
"""

_EVENTS = """
    SELECT sequence, job_id, part_id, state, at, actor, attempt, reason FROM job_events
    WHERE job_id = :job_id AND sequence > :after ORDER BY sequence
"""

# Runs after the result is read, in the same transaction: if the job is not erased now, the result was complete.
_NOTE = """
    INSERT INTO reads (job_id, client, what)
    SELECT id, :client, :what FROM jobs WHERE id = :job_id AND erased_at IS NULL
    RETURNING id
    """

_ERASED_AT = "SELECT erased_at FROM jobs WHERE id = :job_id"

_OWN = "(CAST(:tenant AS text) IS NULL OR tenant = :tenant)"

_OPEN_BATCH = """
    INSERT INTO batches (id, name, tenant) VALUES (:id, :name, :tenant)
    ON CONFLICT (coalesce(tenant, ''), name) DO UPDATE SET opened_at = now()
    RETURNING id, name, created_at
    """
_REOPEN_BATCH = (
    f"UPDATE batches SET opened_at = now() WHERE id = :id AND {_OWN} RETURNING id, name, created_at"  # noqa: S608
)
_BATCH_BY_NAME = f"""
    SELECT id, name, created_at FROM batches WHERE name = :name AND {_OWN} ORDER BY tenant NULLS FIRST LIMIT 1
    """  # noqa: S608  constants
_BATCH_BY_ID = f"""
    SELECT id, name, created_at FROM batches WHERE id BETWEEN :lowest AND :highest AND {_OWN} LIMIT 2
    """  # noqa: S608  as above

_BATCHES = f"""
    SELECT id, name, created_at FROM batches
    WHERE {_OWN} AND (CAST(:before AS uuid) IS NULL OR id < :before) ORDER BY id DESC LIMIT :size
    """  # noqa: S608  as above
_IN_DOUBT = f"""
    SELECT count(*) FROM (
        SELECT FROM parts JOIN jobs ON jobs.id = job_id
        WHERE batch = :batch AND stage = 'read' AND {NEEDS_REVIEW} AND erased_at IS NULL LIMIT :most
    ) AS pages
    """  # noqa: S608  as above

_COUNT = """
    SELECT state, count(*) AS jobs, coalesce(sum(total), 0) AS parts, sum(done) AS done, sum(failed) AS failed,
           sum(cancelled) AS cancelled, count(*) FILTER (WHERE total IS NULL) AS uncut
    FROM jobs WHERE {wanted} GROUP BY state
    """
_FAILURES = """
    SELECT parts.failure->>'code' AS code, count(*) AS number FROM parts
    WHERE parts.state = 'failed' AND parts.job_id = ANY(ARRAY(
        SELECT jobs.id FROM jobs WHERE (jobs.failed > 0 OR jobs.state = 'failed') AND {wanted}
    )) GROUP BY 1 ORDER BY 2 DESC, 1
    """


class Store(Statements[D_co]):
    """The rows of jobs, for a client to read and write. Encrypted columns are decrypted.

    Before a statement about one job, the caller has found the job by another, which checks the tenant.
    """

    @transaction
    def load(self, connection: Connection, lane: Lane, limit: int) -> LaneLoad:
        """Return the waiting parts of a lane, counted up to the limit, and the parts ended recently."""
        values = {"lane": lane, "limit": limit}
        return LaneLoad(**connection.execute(_LOAD, values).mappings().first())

    @transaction
    def leave_to_relay(self, connection: Connection, part_ids: Collection[UUID]) -> None:
        """Mark parts that may be missing in Redis, for the relay. Parts locked by another transaction are skipped."""
        connection.execute(_LEAVE_TO_RELAY, {"ids": list(part_ids)})

    @transaction
    def views(self, connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return the views of the jobs that exist."""
        rows = connection.execute(_VIEWS, {"job_ids": list(job_ids), "tenant": self._tenant}).mappings()
        return {row["id"]: JobView.of(row, self._keys) for row in rows}

    @transaction
    def views_of_tenants(
        self, connection: Connection, values: Collection[tuple[str, UUID]]
    ) -> dict[tuple[str, UUID], JobView]:
        """Return the views of the existing jobs that belong to the paired tenants."""
        rows = connection.execute(
            _VIEWS, {"job_ids": [job_id for _, job_id in values], "tenant": None}
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
        newest = f"SELECT {COLUMNS} FROM jobs WHERE {where(wanted)} ORDER BY id DESC LIMIT :size"  # noqa: S608  constants
        return [
            JobView.of(row, self._keys)
            for row in connection.execute(newest, parameters(wanted, size=size)).mappings()
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
        """Return up to `size` pages with one of these verdicts, the newest job first, then by number.

        Bundles with patient conflicts, which have the verdict `review`, come before all pages.
        """
        wanted = conditions(listing, self._tenant) | {
            "verdict = ANY(CAST(:verdicts AS text[]))": {"verdicts": list(verdicts)},
            "jobs.erased_at IS NULL": {},
        }
        if all(verdict.needs_review for verdict in verdicts):
            wanted[NEEDS_REVIEW] = {}  # lets Postgres use the partial index
        found: list[FoundPage] = []
        for is_conflict in (True, False):
            if after is not None and after.is_conflict > is_conflict:
                after = None
            elif after is not None and after.is_conflict < is_conflict:
                continue
            kind = "stage = 'split' AND doubts > 0" if is_conflict else "stage = 'read'"
            found += self._found(connection, wanted | {kind: {}}, after, size - len(found), is_conflict)
        return found

    def _found(
        self,
        connection: Connection,
        wanted: dict[str, dict[str, Any]],
        after: FoundPage | None,
        size: int,
        is_conflict: bool,
    ) -> list[FoundPage]:
        if after is not None:
            further = {"job_id": after.job_id, "number": after.number}
            wanted["job_id <= :job_id AND (job_id < :job_id OR ordinal >= :number)"] = further
        found = f"""
            SELECT job_id, ordinal, verdict, parts.finished_at, jobs.label, {WRAPPED}
            FROM parts JOIN jobs ON jobs.id = job_id
            WHERE {where(wanted)} ORDER BY job_id DESC, ordinal LIMIT :size
        """  # noqa: S608  constants
        return [
            FoundPage(
                job_id=job_id,
                number=ordinal + 1,
                verdict=Verdict(verdict),
                read_at=at,
                label=label_in(label, job_id, wrapped, self._keys),
                is_conflict=is_conflict,
            )
            for job_id, ordinal, verdict, at, label, wrapped in connection.execute(
                found, parameters(wanted, size=size)
            )
        ]

    @transaction
    def lacking(self, connection: Connection, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts need and no running worker can do."""
        rows = connection.execute(UNSERVED, {"job_ids": list(job_ids)}).mappings()
        return [Lack(**row) for row in rows]

    @transaction
    def outcomes(
        self,
        connection: Connection,
        job_id: UUID,
        *,
        skip: Ordinals | None = None,
        limit: int | None = None,
        read_as: AuditAction | None = None,
        revision: int | None = None,
    ) -> list[PartOutcome]:
        """Return the parts that have ended, in order, without the ordinals in `skip`.

        `revision` returns pages as they were at that revision, 0 as they were read, None as they are now. `read_as`
        records the read in the audit trail if it returns content. Raises `JobErasedError` if the job was erased,
        `InvalidSettingError` if a result cannot be decrypted with the configured keys.
        """
        # One parameter, even for many skipped ordinals: a long document is read in thousands of queries.
        skipped = f"{{{','.join(f'[{first},{last}]' for first, last in skip.ranges)}}}" if skip else None
        values = {"job_id": job_id, "open": _OPEN, "skip": skipped, "limit": limit, "revision": revision}
        rows = connection.execute(_OUTCOMES if skip else _ALL_OUTCOMES, values).mappings()
        if read_as is AuditAction.RESULT or (read_as and any(row["content"] for row in rows)):
            note_read(connection, job_id, client=self._client, what=read_as)
        try:
            keys = self._keys.of_job(job_id, rows[0]["wrapped"]) if rows else self._keys
            contents = [keys.unseal(row["content"], row["sealed_for"]) for row in rows]
        except DecryptionError as error:
            raise InvalidSettingError(f"The result cannot be read. {error}") from None
        found: list[PartOutcome] = []
        for row, content in zip(rows, contents, strict=True):
            failure = Failure.model_validate(row["failure"]) if row["failure"] else None
            stage = Stage(row["stage"])
            found.append(PartOutcome(stage=stage, ordinal=row["ordinal"], content=content, failure=failure))
        return found

    @transaction
    def original(self, connection: Connection, job_id: UUID) -> Original:
        """Return the place of the job's document.

        Raises `DocumentGoneError` if it was erased, `InvalidSettingError` without the key of its password.
        """
        row = connection.execute(_ORIGINAL, {"job_id": job_id}).mappings().first()
        if row is None:
            raise JobNotFoundError(job_id)
        return Original.of(row, self._keys)

    @transaction
    def first_unfinished(self, connection: Connection, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change, or None if none may. 0 until the document is cut."""
        lowest: int | None = connection.execute(_LOWEST, {"job_id": job_id, "open": _OPEN}).scalar()
        return lowest

    @transaction
    def events(
        self, connection: Connection, job_id: UUID, *, after: int, skip: Collection[int]
    ) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those in `skip`."""
        rows = connection.execute(_EVENTS, {"job_id": job_id, "after": after}).mappings()
        return [JobEvent.model_validate(row) for row in rows if row["sequence"] not in skip]

    @transaction
    def open_batch(self, connection: Connection, name: str | None) -> Batch:
        """Return a new batch, or the existing batch of this name; for an id, its batch.

        Raises `BatchNotFoundError` for an unknown id.
        """
        statement, values = _OPEN_BATCH, {"id": new_id(), "name": name, "tenant": self._tenant}
        if name and is_complete_id(name):
            statement, values["id"] = _REOPEN_BATCH, UUID(name)
        row = connection.execute(statement, values).mappings().first()
        if row is None:
            raise BatchNotFoundError(str(name))
        return Batch(**row)

    @transaction
    def batch(self, connection: Connection, reference: str) -> Batch:
        """Return the batch with this name or id, or the only one whose id begins so. Raises `BatchNotFoundError`."""
        found = connection.execute(_BATCH_BY_NAME, {"name": reference, "tenant": self._tenant}).mappings()
        if not found and (prefix := as_prefix(reference)):
            values = range_of(prefix) | {"tenant": self._tenant}
            found = connection.execute(_BATCH_BY_ID, values).mappings()
        if len(found) != 1:
            raise BatchNotFoundError(reference)
        return Batch(**found[0])

    @transaction
    def batches(self, connection: Connection, *, before: UUID | None, size: int) -> list[Batch]:
        """Return batches, newest first."""
        values = {"tenant": self._tenant, "before": before, "size": size}
        return [Batch(**row) for row in connection.execute(_BATCHES, values).mappings()]

    @transaction
    def in_doubt(self, connection: Connection, batch: UUID, most: int) -> int:
        """Return the number of pages of a batch that need a review, up to `most`."""
        return int(connection.execute(_IN_DOUBT, {"batch": batch, "most": most}).scalar())

    @transaction
    def counts(self, connection: Connection, listing: Listing) -> Counts:
        """Return the counts of the jobs by state."""
        wanted = conditions(listing, self._tenant)
        rows = connection.execute(_COUNT.format(wanted=where(wanted)), parameters(wanted)).mappings()
        counts = sum((Counts(states={row.pop("state"): row.pop("jobs")}, **row) for row in rows), Counts())
        if counts.failed or JobState.FAILED in counts.states:
            codes = connection.execute(_FAILURES.format(wanted=where(wanted)), parameters(wanted))
            failures = {FailureCode[code.upper()]: number for code, number in codes}
            counts = counts.model_copy(update={"failures": failures})
        return counts


def note_read(connection: Connection, job_id: UUID, *, client: str, what: AuditAction) -> None:
    """Record in the audit trail, in the reading transaction, who has read a result. Raises `JobErasedError`."""
    if connection.execute(_NOTE, {"job_id": job_id, "client": client, "what": what}).scalar() is None:
        erased_at = connection.execute(_ERASED_AT, {"job_id": job_id}).scalar()
        if erased_at is not None:
            raise JobErasedError(job_id, erased_at)
