"""What is stored under which encryption key, and how it comes under another one beside a fleet that works.

Everything is locked in the order of its ids, and what somebody else holds is left to a later pass.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import PayloadRef
from pecia_schemas.discards import DISCARD, HOLD
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.states import JobState
from pecia_schemas.stored_tasks import seal_label, seal_task, task_digest, unseal_label, unseal_task

_SPAN = 1_000
"""Rows that one statement looks at: tables grow, and a statement must end."""

_HOLDS_PAYLOAD = "payload_released_at IS NULL AND task ? 'source'"
# All are encrypted at once, so under the same key.
_HAS_SECRETS = (
    "(jsonb_typeof(task->'fields') = 'object' OR task->>'instructions' IS NOT NULL"
    " OR task->>'password' IS NOT NULL OR task->>'url' IS NOT NULL OR label IS NOT NULL)"
)
_KEY_OF_SECRETS = (
    "coalesce(task->'fields'->>'enc', task->'instructions'->>'enc',"
    " task->'password'->>'enc', task->'url'->>'enc', label->>'enc')"
)
_PAYLOADS_OF_SPAN = f"{_HOLDS_PAYLOAD} AND payload > :after AND payload <= :last"
_JOBS_OF_SPAN = "id > CAST(:after AS uuid) AND id <= CAST(:last AS uuid)"
_REVISIONS_OF_SPAN = _ENDPOINTS_OF_SPAN = "id > CAST(:after AS uuid) AND id <= CAST(:last AS uuid)"
_RESULTS_OF_SPAN = "part_id > CAST(:after AS uuid) AND part_id <= CAST(:last AS uuid)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of things that are encrypted."""

    first: str
    """Less than every id."""
    step: TextClause
    count: TextClause


def _kind(first: str, ids: str, count: str) -> Kind:
    step = f"SELECT id FROM ({ids} ORDER BY 1 LIMIT :limit) AS span (id) ORDER BY id DESC LIMIT 1"  # noqa: S608
    return Kind(first=first, step=text(step), count=text(f"{count} GROUP BY 1"))


_NO_UUID = str(UUID(int=0))

PAYLOADS = _kind(
    "",
    "SELECT DISTINCT payload FROM jobs WHERE payload_released_at IS NULL AND payload > :after",
    f"SELECT task->'source'->>'key' AS key, count(DISTINCT payload) AS number FROM jobs WHERE {_PAYLOADS_OF_SPAN}",  # noqa: S608
)
TASKS = _kind(
    _NO_UUID,
    "SELECT id FROM jobs WHERE id > CAST(:after AS uuid)",
    f"SELECT {_KEY_OF_SECRETS} AS key, count(*) AS number FROM jobs WHERE {_JOBS_OF_SPAN} AND {_HAS_SECRETS}",  # noqa: S608
)
RESULTS = _kind(
    _NO_UUID,
    "SELECT part_id FROM results WHERE part_id > CAST(:after AS uuid)",
    f"SELECT content->>'enc' AS key, count(*) AS number FROM results WHERE {_RESULTS_OF_SPAN}",  # noqa: S608
)
REVISIONS = _kind(
    _NO_UUID,
    "SELECT id FROM revisions WHERE id > CAST(:after AS uuid)",
    f"SELECT content->>'enc' AS key, count(*) AS number FROM revisions WHERE {_REVISIONS_OF_SPAN}",  # noqa: S608
)
SECRETS = _kind(
    _NO_UUID,
    "SELECT id FROM endpoints WHERE id > CAST(:after AS uuid)",
    f"""
    SELECT stored->>'enc' AS key, count(*) AS number
    FROM endpoints, unnest(ARRAY[secret, former_secret]) AS stored WHERE {_ENDPOINTS_OF_SPAN} AND stored IS NOT NULL
    """,  # noqa: S608
)

# A worker may have read the name of a document whose job goes on: its former copy must not be removed.
_PAYLOADS_DUE = text(
    f"""
    SELECT DISTINCT ON (payload) task->'source' AS source, EXISTS (
               SELECT FROM jobs AS other
               WHERE other.payload = jobs.payload AND other.payload_released_at IS NULL
                 AND other.state IN ('queued', 'running')
           ) AS in_use
    FROM jobs
    WHERE {_PAYLOADS_OF_SPAN} AND task->'source'->>'key' IS DISTINCT FROM :current
    ORDER BY payload
    """  # noqa: S608  constants of this module
)
_LOCK_JOBS_OF = text(
    """
    SELECT id, kind, lane, state, task FROM jobs WHERE payload = :payload AND payload_released_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
    """
)
_MOVE_JOBS = text(
    """
    UPDATE jobs SET payload = :payload, task = CAST(new.task AS jsonb), task_digest = new.digest
    FROM unnest(CAST(:ids AS uuid[]), CAST(:tasks AS text[]), CAST(:digests AS text[])) AS new (id, task, digest)
    WHERE jobs.id = new.id
    """
)

_LOCK_TASKS = text(
    f"""
    SELECT id, jsonb_build_object('task', task, 'label', label) AS content FROM jobs
    WHERE {_JOBS_OF_SPAN} AND {_HAS_SECRETS} AND {_KEY_OF_SECRETS} IS DISTINCT FROM :current
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """  # noqa: S608  constants of this module
)
_WRITE_TASKS = text(
    """
    UPDATE jobs SET task = new.content->'task', label = nullif(new.content->'label', 'null')
    FROM (
        SELECT id, CAST(content AS jsonb) AS content
        FROM unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content)
    ) AS new
    WHERE jobs.id = new.id
    """
)

_LOCK_RESULTS = text(
    f"""
    SELECT part_id AS id, content FROM results
    WHERE {_RESULTS_OF_SPAN} AND content->>'enc' IS DISTINCT FROM :current
    ORDER BY part_id FOR NO KEY UPDATE SKIP LOCKED
    """  # noqa: S608  constants of this module
)
# What the cache finds them by was made under the key they had: it is of no use any more.
_WRITE_RESULTS = text(
    """
    WITH new AS (
        SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content)
    ), forgotten AS (
        DELETE FROM result_cache USING new WHERE result_cache.part_id = new.id
    )
    UPDATE results SET content = CAST(new.content AS jsonb) FROM new WHERE results.part_id = new.id
    """
)

_LOCK_REVISIONS = text(
    f"""
    SELECT id, content FROM revisions
    WHERE {_REVISIONS_OF_SPAN} AND content->>'enc' IS DISTINCT FROM :current
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """  # noqa: S608  constants of this module
)
_WRITE_REVISIONS = text(
    """
    UPDATE revisions SET content = CAST(new.content AS jsonb)
    FROM unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content) WHERE revisions.id = new.id
    """
)

_LOCK_SECRETS = text(
    f"""
    SELECT id, jsonb_build_object('secret', secret, 'former_secret', former_secret) AS content FROM endpoints
    WHERE {_ENDPOINTS_OF_SPAN} AND (secret->>'enc' IS DISTINCT FROM :current
          OR former_secret IS NOT NULL AND former_secret->>'enc' IS DISTINCT FROM :current)
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """  # noqa: S608  constants of this module
)
_WRITE_SECRETS = text(
    """
    UPDATE endpoints
    SET secret = new.content->'secret', former_secret = nullif(new.content->'former_secret', 'null')
    FROM (
        SELECT id, CAST(content AS jsonb) AS content
        FROM unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content)
    ) AS new
    WHERE endpoints.id = new.id
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Some rows of a table: those behind `after`, up to `last`."""

    after: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much is stored under one key; None: as it is."""

    key: str | None
    payloads: int
    tasks: int
    """Jobs that have a label, or whose task has `fields`, instructions, a password or a URL."""
    results: int
    """With their revisions."""
    secrets: int
    """Of endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadDue:
    """A document that is stored under another key than the current one."""

    reference: PayloadRef
    in_use: bool
    """Whether a job that is not over needs it: then it stays as it is for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """What came of the rows of a span."""

    rewritten: int
    refused: int
    """Those that the keys do not decrypt."""


async def spans(database: AsyncEngine, kind: Kind, *, size: int = _SPAN) -> AsyncIterator[Span]:
    """Yield all that there is of a kind, so many at a time, in the order of their ids."""
    after = kind.first
    while True:
        async with database.connect() as connection:
            last = (await connection.execute(kind.step, {"after": after, "limit": size})).scalar()
        if last is None:
            return
        yield Span(after=after, last=str(last))
        after = str(last)


async def holdings(database: AsyncEngine) -> list[Holdings]:
    """Return what is stored under each key that something is stored under, plain things last."""
    kinds = (PAYLOADS, TASKS, RESULTS, REVISIONS, SECRETS)
    payloads, tasks, results, revisions, secrets = [await _counted(database, kind) for kind in kinds]
    results += revisions
    return [
        Holdings(
            key=key,
            payloads=payloads[key],
            tasks=tasks[key],
            results=results[key],
            secrets=secrets[key],
        )
        for key in sorted({*payloads, *tasks, *results, *secrets}, key=lambda key: (key is None, key))
    ]


async def _counted(database: AsyncEngine, kind: Kind) -> Counter[str | None]:
    counted: Counter[str | None] = Counter()
    async for span in spans(database, kind):
        async with database.connect() as connection:
            counted.update(
                {row.key: row.number for row in await connection.execute(kind.count, asdict(span))}
            )
    return counted


async def payloads_due(database: AsyncEngine, span: Span, keys: Keyring) -> list[PayloadDue]:
    """Return the documents of a span that are under another key than the current one."""
    async with database.connect() as connection:
        rows = await connection.execute(_PAYLOADS_DUE, asdict(span) | {"current": keys.current})
        return [
            PayloadDue(reference=PayloadRef.model_validate(row.source), in_use=row.in_use) for row in rows
        ]


async def move_payload(
    database: AsyncEngine, former: PayloadRef, stored: PayloadRef, keys: Keyring, *, store: PayloadStore
) -> bool:
    """Let all jobs of a document have it as it was stored anew, and what was stored before be removed.

    False if one of them is not over, if none holds it any more, or if what was stored anew was removed meanwhile: then
    no job has changed. Raises `DecryptionError`.
    """
    async with database.begin() as connection:
        await connection.execute(HOLD, {"payloads": [stored.sha256]})
        rows = (await connection.execute(_LOCK_JOBS_OF, {"payload": former.sha256})).all()
        over = all(JobState(row.state).is_terminal for row in rows)
        if not (rows and over and await asyncio.to_thread(store.holds, stored)):
            await connection.execute(DISCARD, {"payloads": [stored.sha256]})
            return False
        await connection.execute(_MOVE_JOBS, _moved(rows, stored, keys))
        await connection.execute(DISCARD, {"payloads": [former.sha256]})
    return True


def _moved(rows: Sequence[Row[Any]], stored: PayloadRef, keys: Keyring) -> dict[str, Any]:
    source = {"source": stored.model_dump(mode="json")}
    tasks = [unseal_task(row.task, row.id, keys) | source for row in rows]
    return {
        "payload": stored.sha256,
        "ids": [row.id for row in rows],
        "tasks": [json.dumps(seal_task(task, row.id, keys)) for row, task in zip(rows, tasks, strict=True)],
        "digests": [
            task_digest(row.kind, task, row.lane, keys, keys.current)
            for row, task in zip(rows, tasks, strict=True)
        ],
    }


async def reseal_tasks(database: AsyncEngine, span: Span, keys: Keyring) -> Resealed:
    """Encrypt labels, and `fields`, instructions, passwords and URLs of tasks, of a span under the current key."""

    def resealed(job_id: UUID, content: Mapping[str, Any]) -> str:
        task = seal_task(unseal_task(content["task"], job_id, keys), job_id, keys)
        label = seal_label(unseal_label(content["label"], job_id, keys), job_id, keys)
        return json.dumps({"task": task, "label": label})

    asked = asdict(span) | {"current": keys.current}
    return await _rewrite(database, _LOCK_TASKS, _WRITE_TASKS, asked, resealed)


async def reseal_results(database: AsyncEngine, span: Span, keys: Keyring) -> Resealed:
    """Encrypt the results of a span under the current key."""
    asked = asdict(span) | {"current": keys.current}
    return await _rewrite(database, _LOCK_RESULTS, _WRITE_RESULTS, asked, partial(_content_anew, keys))


async def reseal_revisions(database: AsyncEngine, span: Span, keys: Keyring) -> Resealed:
    """Encrypt the revisions of a span under the current key."""
    asked = asdict(span) | {"current": keys.current}
    return await _rewrite(database, _LOCK_REVISIONS, _WRITE_REVISIONS, asked, partial(_content_anew, keys))


def _content_anew(keys: Keyring, about: UUID, content: Mapping[str, Any]) -> str:
    return keys.seal(json.dumps(keys.unseal(content, about)), about)


async def reseal_secrets(database: AsyncEngine, span: Span, keys: Keyring) -> Resealed:
    """Encrypt the secrets of the endpoints of a span under the current key."""

    def resealed(endpoint: UUID, content: Mapping[str, Any]) -> str:
        sealed = {
            name: stored and json.loads(keys.seal(json.dumps(keys.unseal(stored, endpoint)), endpoint))
            for name, stored in content.items()
        }
        return json.dumps(sealed)

    asked = asdict(span) | {"current": keys.current}
    return await _rewrite(database, _LOCK_SECRETS, _WRITE_SECRETS, asked, resealed)


async def _rewrite(
    database: AsyncEngine,
    lock: TextClause,
    write: TextClause,
    asked: Mapping[str, Any],
    resealed: Callable[[UUID, Mapping[str, Any]], str],
) -> Resealed:
    contents: dict[UUID, str] = {}
    async with database.begin() as connection:
        rows = (await connection.execute(lock, asked)).all()
        for row in rows:
            with suppress(DecryptionError):
                contents[row.id] = resealed(row.id, row.content)
        if contents:
            await connection.execute(write, {"ids": list(contents), "contents": list(contents.values())})
    return Resealed(rewritten=len(contents), refused=len(rows) - len(contents))
