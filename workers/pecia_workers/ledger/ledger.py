"""The ledger of one worker: claims and commits in groups, and keeps finished work while Postgres is unavailable."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

import structlog
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import discards, tracing
from pecia_schemas.bundles import Split
from pecia_schemas.connecting import Verdict, exceeds_limit, name_of, outage_suppressed, verdict_on
from pecia_schemas.encryption import DecryptionError, Keyring, seal_source, unseal_source
from pecia_schemas.media import PayloadRef
from pecia_schemas.moves import OPEN, moving, settle
from pecia_schemas.payloads import PayloadMissingError
from pecia_schemas.results import Page, Segment
from pecia_schemas.running import LOST
from pecia_schemas.states import JobState, Lane, Stage
from pecia_workers.ledger.commit import commit_parts
from pecia_workers.ledger.database import fetch, fetch_changed, retry_unavailable
from pecia_workers.protocol.parts import Announce, ClaimedPart, Earlier, Finished, Outcome, waiting

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# A part that runs here already was claimed before, and the answer got lost. A queued part whose time has not come has
# been published too often: the relay does it again. A worker that was taken for dead claims nothing until it has
# registered anew.
_ALIVE = f"NOT EXISTS (SELECT FROM workers WHERE name = :actor AND {LOST})"

# A part that began before its worker registered is taken back; a part claimed after the clock was set back is not.
_NOW = "greatest(now(), (SELECT started_at FROM workers WHERE name = :actor))"


def _claiming(chosen: str) -> TextClause:
    return moving(
        chosen,
        sets=f"attempt = attempt + 1, worker = :actor, started_at = {_NOW}, failure = NULL",
        begins=True,
        ends=False,
        answer="""
        SELECT moved.id, moved.job_id, moved.stage, moved.ordinal, moved.attempt, moved.strikes,
               moved.deaths, moved.lane, moved.flow, moved.start_s, moved.end_s,
               CAST(greatest(0, extract(epoch FROM now() - moved.run_at)) AS float) AS queued_s,
               jobs.kind, jobs.task AS stored_task, jobs.client, jobs.tenant, jobs.metadata, jobs.traceparent,
               job_keys.wrapped
        FROM moved JOIN jobs ON jobs.id = moved.job_id LEFT JOIN job_keys ON job_keys.job_id = moved.job_id
        """,
    )


_CLAIM = _claiming(
    f"""
    chosen AS (
        SELECT parts.id, parts.state AS former, 'running' AS state, CAST(NULL AS text) AS reason
        FROM parts JOIN unnest(CAST(:ids AS uuid[]), CAST(:deaths AS int[])) AS requested (id, deaths) USING (id)
        WHERE (parts.state = 'queued' AND parts.run_at <= now() AND parts.deaths <= requested.deaths
               OR parts.state = 'running' AND parts.worker = :actor)
          AND {_ALIVE}
        ORDER BY parts.id
        FOR NO KEY UPDATE OF parts
    )
    """  # noqa: S608  a constant of this module
)

_CLAIM_WAITING = _claiming(
    f"""
    chosen AS (
        SELECT id, state AS former, 'running' AS state, CAST(NULL AS text) AS reason FROM parts
        WHERE state = 'queued' AND lane = :lane AND run_at <= now() AND deaths = 0
          AND stage = ANY(CAST(:stages AS text[])) AND id <> ALL(CAST(:without AS uuid[])) AND {_ALIVE}
        ORDER BY run_at, id LIMIT :slots FOR NO KEY UPDATE SKIP LOCKED
    )
    """  # noqa: S608  a constant of this module
)


_REQUEUE = moving(
    """
    chosen AS (
        SELECT id, state AS former, 'queued' AS state, id = ANY(CAST(:died_on AS uuid[])) AS died,
               CASE WHEN id = ANY(CAST(:died_on AS uuid[])) THEN 'engine_lost' ELSE CAST(:reason AS text) END AS reason
        FROM parts
        WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'running' AND worker = :actor
        ORDER BY id FOR NO KEY UPDATE
    )
    """,
    sets="deaths = deaths + CAST(died AS int),"
    " published_at = CASE WHEN NOT (died OR CAST(:unpublish AS boolean)) THEN published_at END",
    ends=False,
)

# A statement of its own: if it locked a newer version of the row than it sees, it would update the version it sees, and
# so wait for the process that waits for it.
_LOCK_OWNER = text(
    "SELECT id FROM jobs WHERE id = (SELECT job_id FROM parts WHERE parts.id = :id) FOR NO KEY UPDATE"
)

_REVOKE = moving(
    f"""
    chosen AS (
        SELECT id, state AS former, 'cancelled' AS state, 'revoked' AS reason FROM parts
        WHERE id = :id AND state IN {OPEN} FOR NO KEY UPDATE
    )
    """,  # noqa: S608  a constant
    answer="SELECT job_id FROM moved",
)

_WITHDRAWN = text(
    """
    SELECT requested.id FROM unnest(CAST(:ids AS uuid[])) AS requested (id) LEFT JOIN parts USING (id)
    WHERE parts.id IS NULL OR parts.state = 'cancelled'
    """
)

_RUNNING = text(
    "SELECT id FROM parts WHERE state = 'running' AND worker = :worker AND started_at < now() - :age"
)

_FIND = text(
    """
    SELECT result_cache.key, results.part_id, results.job_id, results.content, results.created_at, job_keys.wrapped
    FROM result_cache JOIN results USING (part_id) LEFT JOIN job_keys USING (job_id)
    WHERE result_cache.key = ANY(CAST(:keys AS bytea[]))
    """
)

# A claim that had to wait for the document to be taken in has read the task as it was before.
_DOCUMENT = text(
    """
    SELECT jobs.task->'source' FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE parts.id = :id AND parts.attempt = :attempt AND parts.state = 'running' AND parts.worker = :worker
    """
)

_LOCK_JOB = text("SELECT task->'source' FROM jobs WHERE id = :job_id FOR NO KEY UPDATE")

# The fence: only the attempt that runs now may give its job a document.
_LOCK_PART = text(
    """
    SELECT id FROM parts WHERE id = :id AND attempt = :attempt AND state = 'running' AND worker = :worker
    FOR NO KEY UPDATE
    """
)

_TAKE_IN = text(
    """
    UPDATE jobs SET payload = :payload, task = jsonb_set(task, '{source}', CAST(:source AS jsonb))
    WHERE id = :job_id
    """
)

_READ = text(
    """
    SELECT results.part_id, results.content, job_keys.wrapped
    FROM results JOIN parts ON parts.id = results.part_id LEFT JOIN job_keys ON job_keys.job_id = results.job_id
    WHERE parts.job_id = :job_id AND parts.stage = :stage AND parts.state = 'done' AND parts.ordinal > :after
    ORDER BY parts.ordinal LIMIT :limit
    """
)
_CORRECTED = text("SELECT id, content FROM revisions WHERE part_id = :part_id ORDER BY number DESC LIMIT 1")


COMMIT_LIMIT_S = 60.0
"""How long the commit of a single part is repeated when it times out; then the part fails."""


class PartLostError(Exception):
    """The part was cancelled or taken over meanwhile."""


log = structlog.get_logger(__name__)


class Ledger:
    """Claims, commits and requeues the parts of one worker. To be used on the loop that made the database engine.

    Results are encrypted under their job's data key, if it has one; `keys` unwrap it.
    """

    def __init__(
        self, database: AsyncEngine, worker: str, *, announce: Announce, keys: Keyring | None = None
    ) -> None:
        self._database = database
        self._worker = worker
        self._announce = announce
        self._keys = keys or Keyring()
        self._claims = Grouped(self._claim_all)
        self._commits = Grouped(self._commit_all)
        self._withdrawals = Grouped(self._find_withdrawn)
        self._searches = Grouped(self._find_all)

    async def idle(self, *, limit_s: float) -> None:
        """Return once no statement of a group is in flight, or after `limit_s`: before connections close."""
        with suppress(TimeoutError):  # Postgres is away
            async with asyncio.timeout(limit_s):
                for groups in (self._claims, self._commits, self._withdrawals, self._searches):
                    await groups.idle()

    async def claim(self, part: UUID, deaths: int = 0) -> ClaimedPart | None:
        """Claim the part and return it, or None if it must not run.

        `deaths`: workers that died on it, according to its message. A later death makes the message stale: a newer
        message exists.
        """
        return await self._claims((part, deaths))

    async def claim_waiting(
        self, stages: Collection[Stage], slots: int, *, without: Collection[UUID] = ()
    ) -> list[ClaimedPart]:
        """Claim up to `slots` parts, by lane and then by age, and return them.

        Needs no message: for use while Redis is unavailable. Skips parts on which a worker died, and those in
        `without`.
        """
        claimed: list[ClaimedPart] = []
        values = {"stages": list(stages), "without": list(without)}
        for lane in Lane:
            claimed += await self._claim(_CLAIM_WAITING, lane=lane, slots=slots - len(claimed), **values)
            if len(claimed) == slots:
                break
        return claimed

    async def _claim_all(self, requests: Sequence[tuple[UUID, int]]) -> list[ClaimedPart | None]:
        ids, deaths = map(list, zip(*requests, strict=True))
        claimed = {
            part.id: part
            for part in await retry_unavailable(partial(self._claim, _CLAIM, ids=ids, deaths=deaths))
        }
        return [claimed.get(part) for part in ids]

    async def _claim(self, statement: TextClause, **values: Any) -> list[ClaimedPart]:
        rows = await fetch_changed(self._database, statement, actor=self._worker, **values)
        return [
            ClaimedPart(
                **row._asdict() | {"stage": Stage(row.stage), "lane": Lane(row.lane), "keys": self._keys}
            )
            for row in rows
        ]

    async def commit(self, finished: Finished) -> Outcome | None:
        """Store the outcome of a part and return it, or None if the part was no longer this worker's.

        If Postgres refuses the outcome, stores and returns a failure instead.
        """
        try:
            taken = await self._commits(finished)
        except Exception as error:
            if not _concerns_the_statement(error):
                raise
            log.error("commit_refused", error=name_of(error), part=str(finished.part.id))  # noqa: TRY400  it quotes data
            finished = finished.refused(name_of(error))
            taken = await self._commits(finished)
        return finished.outcome if taken else None

    async def _commit_all(self, group: Sequence[Finished]) -> list[bool]:
        began = time.time_ns()
        taken, jobs = await retry_unavailable(
            partial(commit_parts, self._database, self._worker, group),
            limit_s=0 if len(group) > 1 else COMMIT_LIMIT_S,
        )
        traces = {finished.part.job_id: finished.part.traceparent for finished in group}
        for job_id, state in jobs.items():
            if state.is_terminal and (traceparent := traces[job_id]):
                about = {"pecia.job.id": str(job_id), "pecia.job.state": state}
                tracing.past("finish", about, began=began, ended=time.time_ns(), below=traceparent)
        await self._announce(jobs)
        return [finished.part.fence in taken for finished in group]

    async def document_of(self, part: ClaimedPart) -> PayloadRef | None:
        """Return the document that some worker fetched for the part's job, or None if none has yet.

        Raises `PartLostError` if the part is no longer this worker's.
        """
        for (source,) in await retry_unavailable(
            partial(fetch, self._database, _DOCUMENT, **self._fence(part))
        ):
            return source and _reference(source, part)
        raise PartLostError

    async def take_in(
        self, part: ClaimedPart, reference: PayloadRef, holds: Callable[[PayloadRef], Awaitable[bool]]
    ) -> PayloadRef:
        """Record the document that was fetched for the part's job; `holds` asks the store whether it has the document.

        Returns the job's document: the first that any worker recorded. A second one is marked for removal. Raises
        `PartLostError` if the part is no longer this worker's, `PayloadMissingError` if the document was removed from
        the store; then the job has not changed.
        """
        payloads = {"payloads": [reference.sha256]}

        async def take_in() -> PayloadRef | None:
            async with self._database.begin() as connection:
                released = (await connection.execute(discards.HOLD, payloads)).first()
                if released and not await holds(reference):
                    raise PayloadMissingError(reference.sha256)
                former = (await connection.execute(_LOCK_JOB, {"job_id": part.job_id})).scalar()
                ours = (await connection.execute(_LOCK_PART, self._fence(part))).scalar() is not None
                if ours and former is None:
                    source = seal_source(reference.model_dump(mode="json"), part.job_id, part.ring)
                    given = {"payload": reference.sha256, "source": json.dumps(source)}
                    await connection.execute(_TAKE_IN, {"job_id": part.job_id, **given})
                    return reference
                kept = _reference(former, part) if ours and former else None
                if kept != reference:
                    await connection.execute(discards.DISCARD, payloads)
                return kept

        kept = await retry_unavailable(take_in)
        if kept is None:
            raise PartLostError
        return kept

    def _fence(self, part: ClaimedPart) -> dict[str, Any]:
        return {"id": part.id, "attempt": part.attempt, "worker": self._worker}

    async def earlier(self, cache_key: bytes) -> Earlier | None:
        """Return the result stored under this cache key, or None if there is none or Postgres is unavailable."""
        with waiting():
            return await self._searches(cache_key)

    async def _find_all(self, cache_keys: Sequence[bytes]) -> Sequence[Earlier | None]:
        found: dict[bytes, Earlier] = {}
        with outage_suppressed():  # reading once more is sooner done than waiting
            for row in await fetch(self._database, _FIND, keys=list(cache_keys)):
                with suppress(DecryptionError):  # as good as not there
                    content = self._keys.of_job(row.job_id, row.wrapped).unseal(row.content, row.part_id)
                    found[bytes(row.key)] = Earlier(part=row.part_id, content=content, read_at=row.created_at)
        return [found.get(key) for key in cache_keys]

    async def requeue(
        self,
        parts: Collection[UUID],
        *,
        died_on: Collection[UUID] = (),
        reason: str = "given_back",
        unpublish: bool = False,
    ) -> set[UUID]:
        """Queue again those of the parts that this worker still runs; return their ids.

        Counts no strike, except that parts which the worker's engine `died_on` count a worker's death. The relay
        publishes these again, or all parts if `unpublish`.
        """
        values = {"ids": list(parts), "died_on": list(died_on), "reason": reason, "unpublish": unpublish}
        values["actor"] = self._worker
        return {
            row.id
            for row in await retry_unavailable(partial(fetch_changed, self._database, _REQUEUE, **values))
        }

    async def running(self, *, age: timedelta) -> set[UUID]:
        """Return the parts that run on this worker by Postgres's record and were claimed longer ago than that."""
        return {row.id for row in await fetch(self._database, _RUNNING, worker=self._worker, age=age)}

    async def revoke(self, part: UUID) -> None:
        """End a part that an operator revoked, and announce the state of its job."""

        def end(connection: Connection) -> dict[UUID, JobState]:
            connection.execute(_LOCK_OWNER, {"id": part})
            job_ids = connection.execute(_REVOKE, {"id": part, "actor": self._worker}).scalars().all()
            ended = settle(connection, job_ids, actor=self._worker) if job_ids else {}
            return dict.fromkeys(job_ids, JobState.RUNNING) | ended

        async def revoke() -> dict[UUID, JobState]:
            async with self._database.begin() as connection:
                return await connection.run_sync(end)

        await self._announce(await retry_unavailable(revoke))

    async def withdrawn(self, part: UUID) -> bool:
        """Return whether the part was cancelled or its job erased."""
        return await self._withdrawals(part)

    async def _find_withdrawn(self, parts: Sequence[UUID]) -> list[bool]:
        rows = await retry_unavailable(partial(fetch, self._database, _WITHDRAWN, ids=list(parts)))
        found = {row.id for row in rows}
        return [part in found for part in parts]

    async def captions(self, job_id: UUID) -> list[Segment]:
        """Return the segments of a job that have a caption, in the order of time. Raises `DecryptionError`."""
        return [Segment.model_validate(content) for content in await self._read(job_id, Stage.CAPTION)]

    async def pages(self, job_id: UUID, after: int, limit: int) -> list[Page]:
        """Return up to `limit` of a job's pages after page `after`, in order. Raises `DecryptionError`."""
        contents = await self._read(job_id, Stage.READ, after=after - 1, limit=limit)
        return [Page.model_validate(content) for content in contents]

    async def corrected(self, part: ClaimedPart) -> Split | None:
        """Return a bundle's documents as people corrected them; None without a correction. Raises `DecryptionError`."""
        rows = await retry_unavailable(partial(fetch, self._database, _CORRECTED, part_id=part.id))
        return Split.model_validate(part.ring.unseal(rows[0].content, rows[0].id)) if rows else None

    async def _read(
        self, job_id: UUID, stage: Stage, *, after: int = -1, limit: int | None = None
    ) -> list[Mapping[str, Any]]:
        values = {"job_id": job_id, "stage": stage, "after": after, "limit": limit}
        rows = await retry_unavailable(partial(fetch, self._database, _READ, **values))
        keys = self._keys.of_job(job_id, rows[0].wrapped) if rows else self._keys
        return [keys.unseal(row.content, row.part_id) for row in rows]


def _reference(stored: Mapping[str, Any], part: ClaimedPart) -> PayloadRef:
    return PayloadRef.model_validate(unseal_source(stored, part.job_id, part.ring))


async def unheld(database: AsyncEngine, payloads: Collection[str]) -> set[str]:
    """Return the payloads that no job refers to."""
    return {payload for (payload,) in await fetch(database, discards.UNHELD, payloads=list(payloads))}


def _concerns_the_statement(error: Exception) -> bool:
    """Return whether the error concerns this statement alone: others, or a smaller one, may succeed."""
    return verdict_on(error) is Verdict.REFUSED or exceeds_limit(error)


class Grouped(Generic[Item, Answer]):
    """Groups concurrent callers' items: calls `run` with up to `most` at a time and returns each caller its result.

    One statement serves all callers that came while the last one ran; an item never waits for a group to fill. A group
    that Postgres refuses or that times out is halved until the refused item is found. A cancelled caller's item
    stays in its group.
    """

    def __init__(
        self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], *, most: int = 256
    ) -> None:
        self._run = run
        self._most = self._limit = most
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Answer:
        """Return the result of `run` for this item. Raises its error for this item, or for the group."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None or self._worker.done():
            # What it logs is about all, not about the one who came first.
            self._worker = asyncio.create_task(self._drain(), context=Context())
        return await future

    async def idle(self) -> None:
        """Wait until no group is in flight, not even one whose callers were cancelled."""
        if self._worker:
            await asyncio.wait([self._worker])

    async def _drain(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
            await self._settle(group)

    async def _settle(self, group: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._run([item for item, _ in group])
        except Exception as error:  # noqa: BLE001  each caller gets it
            if len(group) > 1 and _concerns_the_statement(error):
                half = len(group) // 2
                if exceeds_limit(error):
                    self._limit = half
                await self._settle(group[:half])
                await self._settle(group[half:])
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            self._limit = min(self._most, self._limit + 1)
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
