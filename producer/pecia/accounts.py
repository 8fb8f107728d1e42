"""SQL of the client for operators: usage, the audit trail, dead parts, and the gateway's keys.

The results contain names, ids and times, and no document text. Postgres stores only a hash of a key.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from pydantic import Field

from pecia.errors import InvalidOptionError
from pecia.records import AuditEntry, DeadPart, Record, Usage, UsageFigures
from pecia.store import Connection, D_co, Statements, least_id, transaction, unrepeatable
from pecia_schemas import storable
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import Lane, new_id

_METADATA = "metadata:"
_GROUPS = {
    "document_type": "jobs.task->>'document_type'",
    "kind": "jobs.kind",
    "lane": "parts.lane",
    "engine": "parts.engine",
    "tenant": "jobs.tenant",
}

_SUMS = """
    SELECT grouping(name) = 1 AS total, name, count(DISTINCT job_id) AS jobs, count(*) AS parts,
           count(*) FILTER (WHERE state = 'done' AND stage = 'read') AS pages,
           count(*) FILTER (WHERE state = 'done' AND stage = 'caption') AS segments,
           coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(image_tokens), 0) AS image,
           coalesce(sum(cached_tokens), 0) AS cached, coalesce(sum(output_tokens), 0) AS output,
           coalesce(sum(wasted_tokens), 0) AS wasted,
           count(saved_tokens) AS reused, coalesce(sum(saved_tokens), 0) AS saved,
           coalesce(sum(decode_s), 0) AS decode_s, coalesce(sum(engine_s), 0) AS engine_s,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY queued_s) AS queued_s,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY first_token_s) AS first_token_s
    FROM (
        SELECT parts.*, {name} AS name FROM parts JOIN jobs ON jobs.id = parts.job_id
        WHERE parts.engine IS NOT NULL AND {which}
    ) AS worked
    GROUP BY GROUPING SETS ((name), ())
    ORDER BY name NULLS LAST
"""
_ENDED_SINCE = """parts.finished_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
          AND (CAST(:tenant AS text) IS NULL OR jobs.tenant = :tenant)"""
_OF_JOB = "parts.job_id = :job_id"


class Accounts(Statements[D_co]):
    """Usage of all parts, or of one tenant's parts."""

    @transaction
    def since(self, connection: Connection, moment: datetime | None, by: str | None) -> Usage:
        """Return the sums over the parts that have ended since. Raises `InvalidOptionError` for an unknown `by`."""
        key = (by or "").removeprefix(_METADATA)
        values = {"since": moment, "tenant": self._tenant, "key": key}
        rows = connection.execute(_sums(by, _ENDED_SINCE), values).mappings()
        return Usage(
            since=moment,
            by=by,
            total=next(UsageFigures.of(row) for row in rows if row["total"]),
            groups=tuple(UsageFigures.of(row) for row in rows if by and not row["total"]),
        )

    @transaction
    def of_job(self, connection: Connection, job_id: UUID) -> UsageFigures:
        """Return the sums over one job's parts, including parts that will be retried."""
        rows = connection.execute(_sums(None, _OF_JOB), {"job_id": job_id}).mappings()
        return next(UsageFigures.of(row) for row in rows if row["total"])


def _sums(by: str | None, which: str) -> str:
    if by is None:
        return _SUMS.format(name="CAST(NULL AS text)", which=which)
    if by in _GROUPS:
        return _SUMS.format(name=_GROUPS[by], which=which)
    key = by.removeprefix(_METADATA)
    if key in ("", by):
        raise InvalidOptionError(f"Usage can be grouped by {', '.join(_GROUPS)} or {_METADATA}KEY.")
    return _SUMS.format(name="jobs.metadata->>CAST(:key AS text)", which=which)


_PAGE: Final = 500

# Two tables, each read by its own index; `before` is the end of the last page.
_ENTRIES = """
    SELECT at, source, id, job_id, actor, action, reason, coalesce(counts, '{}') AS counts FROM (
        SELECT at, 0 AS source, id, job_id, 'client:' || client AS actor, what AS action, NULL AS reason, NULL AS counts
        FROM reads
        UNION ALL
        SELECT at, 1, id, job_id, actor, 'erased', reason, counts FROM erasures
    ) AS trail
    WHERE at >= coalesce(CAST(:since AS timestamptz), '-infinity')
      AND (CAST(:job_id AS uuid) IS NULL OR job_id = :job_id)
      AND (CAST(:actor AS text) IS NULL OR actor = :actor)
      AND (CAST(:before AS timestamptz) IS NULL
           OR (at, source, id) < (:before, CAST(:source AS int), CAST(:id AS bigint)))
    ORDER BY at DESC, source DESC, id DESC
    LIMIT :limit
    """

_FROM_START: Final[Mapping[str, Any]] = {"before": None, "source": None, "id": None}


TrailPage = tuple[list[AuditEntry], Mapping[str, Any]]
"""Some entries, and the position after them."""


class Trail(Statements[D_co]):
    """The audit trail: records of reads and erasures."""

    @transaction
    def page(
        self,
        connection: Connection,
        place: Mapping[str, Any] = _FROM_START,
        *,
        job_id: UUID | None,
        client: str | None,
        since: datetime | None,
    ) -> TrailPage:
        """Return some matching entries after the position, newest first, and the next position."""
        who = client and f"client:{client}"
        values = {"job_id": job_id, "actor": who, "since": since, "limit": _PAGE, **place}
        rows = connection.execute(_ENTRIES, values).mappings()
        if rows:
            place = {"before": rows[-1]["at"], "source": rows[-1]["source"], "id": rows[-1]["id"]}
        return [AuditEntry(**row) for row in rows], place


_CODES = tuple(code for code in FailureCode if code.retryable or code is FailureCode.POISONED)
"""Failures that another attempt may cure: the part has no attempts left, or its workers died on it."""

# Parts of cancelled or expired jobs, and of jobs without their document, are left out.
_DEAD = """
    SELECT parts.id, parts.job_id, jobs.state AS job_state, jobs.kind, parts.stage,
           parts.ordinal + 1 AS number, parts.lane, parts.failure, parts.attempt AS attempts, parts.strikes,
           parts.deaths, parts.worker, parts.finished_at AS failed_at
    FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE parts.state = 'failed' AND parts.failure->>'code' = ANY(CAST(:codes AS text[]))
      AND jobs.state NOT IN ('cancelled', 'expired') AND coalesce(jobs.erased_at, jobs.payload_released_at) IS NULL
"""

_LIST_DEAD = f"""
    {_DEAD} AND parts.finished_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
      AND (CAST(:job_id AS uuid) IS NULL OR parts.job_id = :job_id)
    ORDER BY parts.finished_at DESC, parts.id LIMIT :limit
    """

_CHOSEN = f"{_DEAD} AND parts.id = ANY(CAST(:part_ids AS uuid[])) ORDER BY parts.id"

_HISTORY = """
    SELECT job_events.* FROM job_events JOIN parts ON parts.id = :part_id AND parts.job_id = job_events.job_id
    WHERE job_events.part_id = :part_id ORDER BY sequence
    """


class DeadParts(Statements[D_co]):
    """The dead parts of all jobs."""

    @transaction
    def latest(
        self,
        connection: Connection,
        *,
        job_id: UUID | None,
        code: FailureCode | str | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[DeadPart]:
        """Return dead parts, the latest first. Raises `InvalidOptionError` for a code that is never retried."""
        if code is not None and code not in _CODES:
            raise InvalidOptionError(f"Dead parts failed with one of {', '.join(_CODES)}; {code} is final.")
        codes = list(_CODES if code is None else [code])
        values = {"codes": codes, "job_id": job_id, "since": since, "limit": limit}
        return [DeadPart(**row) for row in connection.execute(_LIST_DEAD, values).mappings()]

    @transaction
    def one(self, connection: Connection, part_id: UUID) -> DeadPart:
        """Return a dead part with its events. Raises `InvalidOptionError` if the part is not dead."""
        (part,) = _chosen(connection, [part_id])
        events = connection.execute(_HISTORY, {"part_id": part_id}).mappings()
        return part.model_copy(update={"events": tuple(JobEvent(**row) for row in events)})

    @transaction
    def by_job(self, connection: Connection, part_ids: Collection[UUID]) -> dict[UUID, list[UUID]]:
        """Return dead parts grouped by job. Raises `InvalidOptionError` if one of the parts is not dead."""
        found: dict[UUID, list[UUID]] = {}
        for part in _chosen(connection, part_ids):
            found.setdefault(part.job_id, []).append(part.id)
        return found


def _chosen(connection: Connection, part_ids: Collection[UUID]) -> list[DeadPart]:
    values = {"codes": list(_CODES), "part_ids": list(part_ids)}
    parts = [DeadPart(**row) for row in connection.execute(_CHOSEN, values).mappings()]
    for missing in set(part_ids) - {part.id for part in parts}:
        raise InvalidOptionError(f"Dead part {missing} does not exist; see `pecia dead list`.")
    return parts


_PREFIX: Final = "pecia"
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{storable.TENANT - 1}}}")

_ADD = """
    INSERT INTO access_keys (id, digest, tenant, name, scopes, lanes, pages_per_day, pages_in_flight, expires_at)
    VALUES (:id, :digest, :tenant, :name, :scopes, :lanes, :pages_per_day, :pages_in_flight, :expires_at)
    RETURNING created_at
    """
# Postgres decides which keys have expired, because a gateway's clock may be wrong.
_KEYS = "SELECT *, coalesce(expires_at <= now(), false) AS expired FROM access_keys"
_LIST = f"{_KEYS} WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant ORDER BY tenant, name, id"
_ONE = f"{_KEYS} WHERE id = :id"
_ROTATE = """
    INSERT INTO access_keys (id, digest, tenant, name, scopes, lanes, pages_per_day, pages_in_flight, expires_at)
    SELECT :id, :digest, tenant, name, scopes, lanes, pages_per_day, pages_in_flight,
           now() + (expires_at - created_at)
    FROM access_keys WHERE id = :former AND revoked_at IS NULL AND coalesce(expires_at > now(), true)
    RETURNING *
    """
_RETIRE = """
    UPDATE access_keys SET expires_at = least(expires_at, now() + CAST(:overlap AS interval)) WHERE id = :former
    """
_REVOKE = "UPDATE access_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = :id RETURNING id"

# A document that is not cut yet counts as one page. Ids begin with the time of their creation.
_LOAD = """
    SELECT (
        SELECT coalesce(sum(coalesce(total, 1)), 0) FROM jobs
        WHERE tenant = :tenant AND client = :client AND id >= :oldest AND created_at > now() - interval '1 day'
    ) AS pages_of_day, (
        SELECT coalesce(sum(coalesce(total, 1) - done - failed - cancelled), 0) FROM jobs
        WHERE tenant = :tenant AND client = :client AND state IN ('queued', 'running')
    ) AS pages_in_flight
    """


class Scope(StrEnum):
    """A permission of a key."""

    SUBMIT = "submit"
    """Submit, cancel and retry jobs."""
    READ = "read"
    """See jobs, their results and events."""
    REVIEW = "review"
    """Find the pages that need a review."""
    ADMIN = "admin"
    """Erase jobs; register webhooks and list their deliveries; see usage; make and revoke the tenant's keys."""


class AccessKey(Record):
    """A key of the gateway, without its secret."""

    id: UUID
    tenant: str
    """The only tenant whose jobs the key can see."""
    name: str
    scopes: tuple[Scope, ...]
    lanes: tuple[Lane, ...]
    """Lanes to which the key may submit."""
    pages_per_day: int | None
    """None for no limit. Keys of a tenant with the same name share their limits."""
    pages_in_flight: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    expired: bool = Field(default=False, exclude=True, repr=False)
    """Whether the key had expired at the lookup."""
    digest: bytes = Field(default=b"", exclude=True, repr=False)

    @property
    def client(self) -> str:
        """Name of the key as a client, in its jobs and in the audit trail."""
        return f"{self.tenant}/{self.name}"

    @property
    def is_valid(self) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.revoked_at is None and not self.expired

    def opens(self, secret: bytes) -> bool:
        """Return whether the secret is right and the key valid. The comparison takes constant time."""
        return hmac.compare_digest(hashlib.sha256(secret).digest(), self.digest) and self.is_valid


class AccessUsage(Record):
    """Used amounts of a key's limits."""

    pages_of_day: int
    """Pages submitted in the last 24 hours."""
    pages_in_flight: int


def parsed(key: str) -> tuple[UUID, bytes] | None:
    """Return the id and the secret of a key, or None for malformed text."""
    prefix, _, rest = key.partition("_")
    identifier, _, secret = rest.partition("_")
    try:
        return (UUID(identifier), secret.encode()) if prefix == _PREFIX and secret else None
    except ValueError:
        return None


def _drawn() -> tuple[dict[str, Any], str]:
    """Return the id and digest of a new key, and its text for the user."""
    identifier, secret = new_id(), secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).digest()
    return {"id": identifier, "digest": digest}, f"{_PREFIX}_{identifier.hex}_{secret}"


class AccessKeys(Statements[D_co]):
    """All keys: operators make them, the gateway looks them up."""

    @unrepeatable
    def add(self, connection: Connection, /, **rights: Any) -> tuple[AccessKey, str]:
        """Make a key with these fields of `AccessKey`. Return it with its text for the user, as nothing else does.

        Raises `InvalidOptionError` for an invalid name.
        """
        for text, what in ((rights["tenant"], "tenant"), (rights["name"], "key")):
            if not _NAME.fullmatch(text):
                raise InvalidOptionError(
                    f"The name of a {what} must have 1 to {storable.TENANT} of a-z, 0-9, '.', '_' and '-', "
                    "a letter or digit first."
                )
        drawn, secret = _drawn()
        row = {**drawn, **rights, "scopes": list(rights["scopes"]), "lanes": list(rights["lanes"])}
        created_at = connection.execute(_ADD, row).scalar()
        return AccessKey(**row, created_at=created_at, revoked_at=None), secret

    @unrepeatable
    def rotate(self, connection: Connection, former: UUID, overlap: timedelta) -> tuple[AccessKey, str]:
        """Make a key with the rights of another, which ends after the overlap. Return the same as `add`.

        If the former key had a lifetime, the new key gets the same. Raises `InvalidOptionError` if the former key has
        ended or does not exist.
        """
        drawn, secret = _drawn()
        row = connection.execute(_ROTATE, {**drawn, "former": former}).mappings().first()
        if row is None:
            raise InvalidOptionError(f"Key {former} is not valid; `pecia access list` shows the keys.")
        connection.execute(_RETIRE, {"former": former, "overlap": overlap})
        return AccessKey.model_validate(row), secret

    @transaction
    def all(self, connection: Connection, tenant: str | None) -> list[AccessKey]:
        """Return all keys, or those of one tenant."""
        return [
            AccessKey.model_validate(row) for row in connection.execute(_LIST, {"tenant": tenant}).mappings()
        ]

    @transaction
    def one(self, connection: Connection, key: UUID) -> AccessKey | None:
        """Return the key with this id, even if revoked, or None."""
        row = connection.execute(_ONE, {"id": key}).mappings().first()
        return None if row is None else AccessKey.model_validate(row)

    @transaction
    def revoke(self, connection: Connection, key: UUID) -> None:
        """Revoke a key. Raises `InvalidOptionError` if the key does not exist."""
        if connection.execute(_REVOKE, {"id": key}).first() is None:
            raise InvalidOptionError(f"Key {key} does not exist; `pecia access list` shows the keys.")

    @transaction
    def load(self, connection: Connection, key: AccessKey) -> AccessUsage:
        """Return the used amounts of a key's limits."""
        oldest = least_id(datetime.now(UTC) - timedelta(days=2))  # a client's clock may be a day off
        values = {"tenant": key.tenant, "client": key.client, "oldest": oldest}
        return AccessUsage(**connection.execute(_LOAD, values).mappings().first())
