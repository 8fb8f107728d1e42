"""Key rotation: which fleet key wraps what, and rewrapping under the current key while the fleet works.

Rows are locked by id; data keys are locked without their jobs, so that rotation delays no commit.
"""

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_workers.ledger.database import fetch

_SPAN = 5_000
"""Rows that one statement looks at: tables grow, and a statement must end."""

Span = Mapping[str, UUID]
"""Some rows of a table: those behind the id `after`, up to the id `last`."""

_NEW = "unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content)"


class WrappedKind:
    """A kind of envelope that is encrypted directly under a fleet key."""

    def __init__(
        self,
        table: str,
        key: str,
        *,
        column: str,
        due: str,
        write: str,
        wrap: Callable[[Any, UUID, Keyring], str],
    ) -> None:
        """`due`: SQL that is true for rows with such an envelope; `wrap` returns it, as JSON, under the current key."""
        rows = f"FROM {table} WHERE {key} > CAST(:after AS uuid)"
        span = f"{rows} AND {key} <= CAST(:last AS uuid) AND {due}"
        former = f"{column}->>'enc' IS DISTINCT FROM :current"
        ids = f"SELECT {key} {rows} ORDER BY 1 LIMIT :limit"
        self.step = text(f"SELECT id FROM ({ids}) AS span (id) ORDER BY id DESC LIMIT 1")  # noqa: S608
        self.count = text(f"SELECT {column}->>'enc' AS key, count(*) AS number {span} GROUP BY 1")
        lock = f"SELECT {key} AS id, {column} AS content {span} AND {former}"
        self.lock = text(f"{lock} ORDER BY {key} FOR NO KEY UPDATE")
        self.write = text(write)
        self.wrap = wrap


def _column(table: str, key: str, column: str, bound: str) -> WrappedKind:
    return WrappedKind(
        table,
        key,
        column=column,
        due=f"{column} IS NOT NULL",
        write=f"UPDATE {table} SET {column} = CAST(content AS jsonb) FROM {_NEW} WHERE {key} = new.id",  # noqa: S608
        wrap=lambda wrapped, row, keys: keys.rewrapped(wrapped, bound.format(row)),
    )


DATA_KEYS = _column("job_keys", "job_id", "wrapped", "{} key")
# Of a client without keys. One whose document and results are gone needs none.
JOBS_WITHOUT = WrappedKind(
    "jobs",
    "id",
    column="CAST(NULL AS jsonb)",
    due="(erased_at IS NULL OR payload_released_at IS NULL)"
    " AND NOT EXISTS (SELECT FROM job_keys WHERE job_id = jobs.id)",
    write=f"INSERT INTO job_keys (job_id, wrapped) SELECT id, CAST(content AS jsonb) FROM {_NEW}"  # noqa: S608
    " ON CONFLICT DO NOTHING",
    wrap=lambda _, job_id, keys: json.dumps(keys.for_earlier_job(job_id)),
)
SECRETS = tuple(_column("endpoints", "endpoints.id", name, "{}") for name in ("secret", "former_secret"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much one fleet key wraps; without a key: what is not encrypted."""

    key: str | None
    jobs: int = 0
    """Data keys of jobs; without a key: jobs with content and no data key."""
    secrets: int = 0
    """Of endpoints."""


@dataclass(slots=True, kw_only=True)
class Rewrapped:
    """What a rotation rewrapped, and what it left."""

    jobs: int = 0
    secrets: int = 0
    refused: int = 0
    """Envelopes that are damaged, or under a key that is not here."""


async def spans(database: AsyncEngine, kind: WrappedKind, *, size: int = _SPAN) -> AsyncIterator[Span]:
    """Yield all rows of a kind in spans of bounded size, by id."""
    after = UUID(int=0)
    while rows := await fetch(database, kind.step, after=after, limit=size):
        yield {"after": after, "last": rows[0].id}
        after = rows[0].id


async def holdings(database: AsyncEngine) -> list[Holdings]:
    """Return what each key in use wraps; unencrypted content last."""
    held: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for name, kind in _KINDS:
        async for span in spans(database, kind):
            for row in await fetch(database, kind.count, **span):
                held[row.key][name] += row.number
    return [Holdings(key=key, **held[key]) for key in sorted(held, key=lambda key: (key is None, key))]


_KINDS = (("jobs", DATA_KEYS), ("jobs", JOBS_WITHOUT), *(("secrets", kind) for kind in SECRETS))


async def rewrap(database: AsyncEngine, keys: Keyring, progress: Callable[[int], None]) -> Rewrapped:
    """Rewrap everything under the current key; `progress` is called after each span with the number of envelopes.

    Jobs without a data key get one that wraps all of `keys`, since their content may be encrypted under any of them.
    """
    done = Counter[str]()
    for name, kind in _KINDS:
        async for span in spans(database, kind):
            contents: dict[UUID, str] = {}
            async with database.begin() as connection:
                rows = (await connection.execute(kind.lock, {**span, "current": keys.current})).all()
                for row in rows:
                    with suppress(DecryptionError):
                        contents[row.id] = kind.wrap(row.content, row.id, keys)
                new = {"ids": list(contents), "contents": list(contents.values())}
                if contents:
                    await connection.execute(kind.write, new)
            done += {name: len(contents), "refused": len(rows) - len(contents)}
            progress(len(rows))
    return Rewrapped(**done)
