"""What is stored under which encryption key, and how it comes under another one beside a fleet that works.

Everything is locked in the order of its ids, and rows that another transaction has locked are left to a later pass.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import encryption
from pecia_schemas.discards import DISCARD, HOLD
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.states import JobState
from pecia_workers.ledger.database import fetch

_SPAN = 1_000
"""Rows that one statement looks at: tables grow, and a statement must end."""

# All are encrypted at once, so under the same key.
_HAS_SECRETS = (
    "(jsonb_typeof(task->'fields') = 'object' OR task->>'instructions' IS NOT NULL"
    " OR task->>'password' IS NOT NULL OR task->>'url' IS NOT NULL OR label IS NOT NULL)"
)
_KEY_OF_SECRETS = (
    "coalesce(task->'fields'->>'enc', task->'instructions'->>'enc',"
    " task->'password'->>'enc', task->'url'->>'enc', label->>'enc')"
)
_PAYLOADS_OF_SPAN = (
    "payload_released_at IS NULL AND task ? 'source' AND payload > :after AND payload <= :last"
)
_NEW = "unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[])) AS new (id, content)"


Span = Mapping[str, str]
"""Some rows of a table: those behind the id `after`, up to the id `last`."""

Anew = Callable[[UUID, Any, Keyring], str]
"""Returns the content of the row with that id under the current key, as JSON. Raises `DecryptionError`."""


class ContentKind:
    """One kind of things that are encrypted."""

    def __init__(self, *, first: str, ids: str, count: str) -> None:
        """`first` is less than every id, `ids` returns those behind `:after`, `count` has a span's by their key."""
        self.first = first
        last = f"SELECT id FROM ({ids} ORDER BY 1 LIMIT :limit) AS span (id) ORDER BY id DESC LIMIT 1"  # noqa: S608
        self.step = text(last)
        self.count = text(f"{count} GROUP BY 1")


class Rows(ContentKind):
    """A kind that lies in the rows of a table."""

    def __init__(self, table: str, *, key: str = "id", count: str, lock: str, write: str, anew: Anew) -> None:
        """`count` and `lock` are put before the condition of a span, which they may go on from."""
        span = f"{key} > CAST(:after AS uuid) AND {key} <= CAST(:last AS uuid)"
        ids = f"SELECT {key} FROM {table} WHERE {key} > CAST(:after AS uuid)"  # noqa: S608
        super().__init__(first=str(UUID(int=0)), ids=ids, count=f"{count} AND {span}")
        self.lock = text(f"{lock} AND {span} ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED")
        self.write = text(write)
        self.anew = anew


def _job_anew(job_id: UUID, task: Mapping[str, Any], label: Any, keys: Keyring) -> str:
    """Return what of a job is encrypted; the label, as it is stored, changes its key with the task."""
    anew = {
        "task": encryption.seal_task(task, job_id, keys),
        "label": encryption.seal_label(encryption.unseal_label(label, job_id, keys), job_id, keys),
    }
    return json.dumps(anew)


def _task_anew(job_id: UUID, content: Mapping[str, Any], keys: Keyring) -> str:
    return _job_anew(job_id, encryption.unseal_task(content["task"], job_id, keys), content["label"], keys)


def _content_anew(about: UUID, content: Mapping[str, Any], keys: Keyring) -> str:
    return keys.seal(json.dumps(keys.unseal(content, about)), about)


def _contents(table: str, key: str, *, beside: str = "") -> Rows:
    return Rows(
        table,
        key=key,
        count=f"SELECT content->>'enc' AS key, count(*) AS number FROM {table} WHERE true",  # noqa: S608
        lock=f"SELECT {key} AS id, content FROM {table} WHERE content->>'enc' IS DISTINCT FROM :current",  # noqa: S608
        write=f"""
        WITH new AS (SELECT * FROM {_NEW}){beside}
        UPDATE {table} SET content = CAST(new.content AS jsonb) FROM new WHERE {table}.{key} = new.id
        """,  # noqa: S608
        anew=_content_anew,
    )


def _secrets_anew(endpoint: UUID, content: Mapping[str, Any], keys: Keyring) -> str:
    anew = {
        name: stored and json.loads(_content_anew(endpoint, stored, keys)) for name, stored in content.items()
    }
    return json.dumps(anew)


PAYLOADS = ContentKind(
    first="",
    ids="SELECT DISTINCT payload FROM jobs WHERE payload_released_at IS NULL AND payload > :after",
    count=f"""
    SELECT task->'source'->>'key' AS key, count(DISTINCT payload) AS number FROM jobs WHERE {_PAYLOADS_OF_SPAN}
    """,  # noqa: S608  constants of this module
)
TASKS = Rows(
    "jobs",
    count=f"SELECT {_KEY_OF_SECRETS} AS key, count(*) AS number FROM jobs WHERE {_HAS_SECRETS}",  # noqa: S608
    lock=f"""
    SELECT id, jsonb_build_object('task', task, 'label', label) AS content FROM jobs
    WHERE {_HAS_SECRETS} AND {_KEY_OF_SECRETS} IS DISTINCT FROM :current
    """,  # noqa: S608
    write=f"""
    UPDATE jobs SET task = new.content->'task', label = nullif(new.content->'label', 'null')
    FROM (SELECT id, CAST(content AS jsonb) AS content FROM {_NEW}) AS new
    WHERE jobs.id = new.id
    """,  # noqa: S608
    anew=_task_anew,
)
RESULTS = _contents(
    "results",
    "part_id",
    # What the cache finds them by was made under the key they had: it is of no use any more.
    beside=", forgotten AS (DELETE FROM result_cache USING new WHERE result_cache.part_id = new.id)",
)
REVISIONS = _contents("revisions", "id")
SECRETS = Rows(
    "endpoints",
    count="""
    SELECT stored->>'enc' AS key, count(*) AS number
    FROM endpoints, unnest(ARRAY[secret, former_secret]) AS stored WHERE stored IS NOT NULL
    """,
    lock="""
    SELECT id, jsonb_build_object('secret', secret, 'former_secret', former_secret) AS content FROM endpoints
    WHERE (secret->>'enc' IS DISTINCT FROM :current
           OR former_secret IS NOT NULL AND former_secret->>'enc' IS DISTINCT FROM :current)
    """,
    write=f"""
    UPDATE endpoints
    SET secret = new.content->'secret', former_secret = nullif(new.content->'former_secret', 'null')
    FROM (SELECT id, CAST(content AS jsonb) AS content FROM {_NEW}) AS new
    WHERE endpoints.id = new.id
    """,  # noqa: S608
    anew=_secrets_anew,
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
    SELECT id, kind, lane, state, task, label FROM jobs WHERE payload = :payload AND payload_released_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
    """
)
_MOVE_JOBS = text(
    """
    WITH new AS (
        SELECT id, CAST(content AS jsonb) AS content, digest
        FROM unnest(CAST(:ids AS uuid[]), CAST(:contents AS text[]), CAST(:digests AS text[]))
             AS jobs (id, content, digest)
    )
    UPDATE jobs SET payload = :payload, task = content->'task', label = nullif(content->'label', 'null'),
                    task_digest = digest
    FROM new WHERE jobs.id = new.id
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much is stored under one key; None: as it is."""

    key: str | None
    payloads: int = 0
    tasks: int = 0
    """Jobs that have a label, or whose task has `fields`, instructions, a password or a URL."""
    results: int = 0
    """With their revisions."""
    secrets: int = 0
    """Of endpoints."""


async def spans(database: AsyncEngine, kind: ContentKind, *, size: int = _SPAN) -> AsyncIterator[Span]:
    """Yield all that there is of a kind, so many at a time, in the order of their ids."""
    after = kind.first
    while found := await fetch(database, kind.step, after=after, limit=size):
        last = str(found[0].id)
        yield {"after": after, "last": last}
        after = last


async def holdings(database: AsyncEngine) -> list[Holdings]:
    """Return what is stored under each key that something is stored under, plain things last."""
    held: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    names = {
        PAYLOADS: "payloads",
        TASKS: "tasks",
        RESULTS: "results",
        REVISIONS: "results",
        SECRETS: "secrets",
    }
    for kind, name in names.items():
        async for span in spans(database, kind):
            for row in await fetch(database, kind.count, **span):
                held[row.key][name] += row.number
    return [Holdings(key=key, **held[key]) for key in sorted(held, key=lambda key: (key is None, key))]


async def payloads_due(database: AsyncEngine, span: Span, keys: Keyring) -> list[tuple[PayloadRef, bool]]:
    """Return the documents of a span that are under another key than the current one.

    With each, whether a job that is not over needs it: then it stays as it is for now.
    """
    rows = await fetch(database, _PAYLOADS_DUE, **span, current=keys.current)
    return [(PayloadRef.model_validate(row.source), row.in_use) for row in rows]


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
        moved: dict[str, list[Any]] = {"ids": [], "contents": [], "digests": []}
        for row in rows:
            task = encryption.unseal_task(row.task, row.id, keys) | {"source": stored.model_dump(mode="json")}
            moved["ids"].append(row.id)
            moved["contents"].append(_job_anew(row.id, task, row.label, keys))
            moved["digests"].append(encryption.task_digest(row.kind, task, row.lane, keys, keys.current))
        await connection.execute(_MOVE_JOBS, {"payload": stored.sha256, **moved})
        await connection.execute(DISCARD, {"payloads": [former.sha256]})
    return True


async def reseal(database: AsyncEngine, kind: Rows, span: Span, keys: Keyring) -> tuple[int, int]:
    """Encrypt the rows of a span under the current key; return how many, and how many the keys do not decrypt."""
    contents: dict[UUID, str] = {}
    async with database.begin() as connection:
        rows = (await connection.execute(kind.lock, {**span, "current": keys.current})).all()
        for row in rows:
            with suppress(DecryptionError):
                contents[row.id] = kind.anew(row.id, row.content, keys)
        if contents:
            await connection.execute(kind.write, {"ids": list(contents), "contents": list(contents.values())})
    return len(contents), len(rows) - len(contents)
