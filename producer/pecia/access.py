"""Keys of the gateway: what each may do, for one tenant. Postgres keeps a hash of each."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from pecia.errors import InvalidOptionError
from pecia.statements import Connection, D_co, Statements, transaction, unrepeatable
from pecia_schemas import storable
from pecia_schemas.states import Lane, new_id

_PREFIX: Final = "pecia"
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{storable.TENANT - 1}}}")

_ADD = """
    INSERT INTO access_keys (id, digest, tenant, name, scopes, lanes, pages_per_day, pages_in_flight, expires_at)
    VALUES (:id, :digest, :tenant, :name, :scopes, :lanes, :pages_per_day, :pages_in_flight, :expires_at)
    RETURNING created_at
    """
_LIST = "SELECT * FROM access_keys WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant ORDER BY tenant, name, id"
_ONE = "SELECT * FROM access_keys WHERE id = :id"
_REVOKE = "UPDATE access_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = :id RETURNING id"

# A document that is not cut yet counts as one page. Ids begin with the time at which they were drawn.
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
    """What a key may do."""

    SUBMIT = "submit"
    """Submit work, cancel it and run it again."""
    READ = "read"
    """See jobs, their results and events."""
    REVIEW = "review"
    """Find the pages that a person should look at."""
    ADMIN = "admin"
    """Erase jobs; register webhooks and see what they were told."""


class AccessKey(BaseModel):
    """A key as it is known, without its secret."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    id: UUID
    tenant: str
    """Whose jobs it sees, and no others."""
    name: str
    scopes: tuple[Scope, ...]
    lanes: tuple[Lane, ...]
    """Into which it may submit."""
    pages_per_day: int | None
    """None: no limit. Keys of a tenant that have the same name share their limits."""
    pages_in_flight: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    digest: bytes = Field(default=b"", exclude=True, repr=False)

    @property
    def client(self) -> str:
        """By which name its jobs were submitted, and the audit trail knows who read."""
        return f"{self.tenant}/{self.name}"

    @property
    def is_valid(self) -> bool:
        """Whether it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > datetime.now(UTC))

    def opens(self, secret: bytes) -> bool:
        """Whether that is its secret; takes as long for every one that is not."""
        return hmac.compare_digest(hashlib.sha256(secret).digest(), self.digest) and self.is_valid


class Load(BaseModel):
    """What of a key's limits is taken."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    pages_of_day: int
    """Submitted in the last 24 hours."""
    pages_in_flight: int


def parsed(key: str) -> tuple[UUID, bytes] | None:
    """Return the id and the secret of a key; None for what has not its form."""
    prefix, _, rest = key.partition("_")
    identifier, _, secret = rest.partition("_")
    try:
        return (UUID(identifier), secret.encode()) if prefix == _PREFIX and secret else None
    except ValueError:
        return None


class AccessKeys(Statements[D_co]):
    """All keys, as an operator makes them and the gateway asks for them."""

    @unrepeatable
    def add(
        self,
        connection: Connection,
        *,
        tenant: str,
        name: str,
        scopes: Collection[Scope],
        lanes: Collection[Lane],
        pages_per_day: int | None,
        pages_in_flight: int | None,
        expires_at: datetime | None,
    ) -> tuple[AccessKey, str]:
        """Make a key; return it, and the text that its bearer shows, which is told once.

        Raises `InvalidOptionError` for a name that cannot be one.
        """
        for text_, what in ((tenant, "tenant"), (name, "key")):
            if not _NAME.fullmatch(text_):
                raise InvalidOptionError(
                    f"The name of a {what} has 1 to {storable.TENANT} of a-z, 0-9, '.', '_' and '-', "
                    "a letter or digit first."
                )
        secret = secrets.token_urlsafe(32)
        row: dict[str, Any] = {
            "id": new_id(),
            "digest": hashlib.sha256(secret.encode()).digest(),
            "tenant": tenant,
            "name": name,
            "scopes": list(scopes),
            "lanes": list(lanes),
            "pages_per_day": pages_per_day,
            "pages_in_flight": pages_in_flight,
            "expires_at": expires_at,
        }
        created_at = connection.execute(_ADD, row).scalar()
        key = AccessKey(**row, created_at=created_at, revoked_at=None)
        return key, f"{_PREFIX}_{key.id.hex}_{secret}"

    @transaction
    def all(self, connection: Connection, tenant: str | None) -> list[AccessKey]:
        """Return all keys, those of one tenant if it is named."""
        return [_of(row) for row in connection.execute(_LIST, {"tenant": tenant}).mappings()]

    @transaction
    def one(self, connection: Connection, key: UUID) -> AccessKey | None:
        """Return the key of that id, also one that is revoked."""
        row = connection.execute(_ONE, {"id": key}).mappings().first()
        return None if row is None else _of(row)

    @transaction
    def revoke(self, connection: Connection, key: UUID) -> None:
        """End a key. Raises `InvalidOptionError` if there is no such key."""
        if connection.execute(_REVOKE, {"id": key}).first() is None:
            raise InvalidOptionError(f"There is no key {key}; `pecia access list` shows those there are.")

    @transaction
    def load(self, connection: Connection, key: AccessKey) -> Load:
        """Return how much of its limits a key has taken."""
        day = int(
            (datetime.now(UTC).timestamp() - 2 * 86_400) * 1000
        )  # clients' clocks may differ by one more
        asked = {"tenant": key.tenant, "client": key.client, "oldest": UUID(int=day << 80)}
        return Load(**connection.execute(_LOAD, asked).mappings().first())


def _of(row: Mapping[Any, Any]) -> AccessKey:
    return AccessKey.model_validate(dict(row))
