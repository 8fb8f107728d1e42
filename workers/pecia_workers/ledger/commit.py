"""Commit of finished parts.

Result, part, events, job counters and callbacks of a group are written in one transaction.

A group is one JSON parameter: encoding arrays would cost psycopg more than the statement costs Postgres.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.bundles import Split
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.moves import (
    BEGIN_JOBS,
    CUT_JOB,
    IS_HELD,
    NOTIFIES_PARTS,
    PROMISE_PARTS,
    moving,
    promise_ready,
    settle,
)
from pecia_schemas.results import Page, Timings, TokenUsage, Verdict
from pecia_schemas.states import JobState, PartState, new_id
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Fence, Finished, Postponed, Spent

# In the order of the keys: two workers that keep the same ones wait for each other only one way round.
_KEEP = text(
    """
    INSERT INTO result_cache (key, part_id)
    SELECT key, part_id FROM unnest(CAST(:keys AS bytea[]), CAST(:parts AS uuid[])) AS new (key, part_id)
    ORDER BY key
    ON CONFLICT (key) DO NOTHING
    """
)


def keep_results(connection: Connection, parts: Mapping[UUID, bytes]) -> None:
    """Store the results of these parts under their cache keys, unless a key has a result.

    Must be the transaction's last statement: it may wait for another worker's commit, and must then block nobody.
    """
    if parts:
        connection.execute(_KEEP, {"keys": list(parts.values()), "parts": list(parts)})


_ADDED = {f"{name}_tokens": "int" for name in (*TokenUsage.model_fields, "saved")} | {
    f"{name}_s": "float" for name in Timings.model_fields if name != "first_token"
}
_REPLACED = {"engine": "text", "first_token_s": "float"}

COLUMNS = ", ".join(f"{name} {kind}" for name, kind in (_ADDED | _REPLACED).items())
"""Columns of `parts` with their types, in the form that `jsonb_to_recordset` takes."""
_ADD_TO_PART = ", ".join(
    [f"{name} = coalesce(parts.{name} + chosen.{name}, chosen.{name}, parts.{name})" for name in _ADDED]
    + [f"{name} = coalesce(chosen.{name}, parts.{name})" for name in _REPLACED]
)
"""For `moving`: figures of attempts add up, except the engine and the first token, which are the last attempt's."""


_LOCK_JOBS = text(
    f"""
    SELECT id, state, ({NOTIFIES_PARTS}) AS notifies_parts FROM jobs
    WHERE id = ANY(CAST(:job_ids AS uuid[])) ORDER BY id FOR NO KEY UPDATE
    """  # noqa: S608  a constant
)

# The fence: only the attempt that runs now may move its part. A group may hold an earlier one beside it, whose caller
# lost its lease while its commit waited.
_MOVE = moving(
    f"""
    chosen AS (
        SELECT requested.*, parts.state AS former
        FROM parts JOIN jsonb_to_recordset(CAST(:rows AS jsonb)) AS requested (
            id uuid, attempt int, state text, content jsonb, verdict text, doubts int, failure jsonb, reason text,
            delay float, {COLUMNS}) USING (id, attempt)
        WHERE parts.state = 'running' AND parts.worker = :actor
        ORDER BY parts.id FOR NO KEY UPDATE OF parts
    )
    """,  # noqa: S608  constants of the ledger
    sets=f"""
            verdict = chosen.verdict, doubts = chosen.doubts, failure = chosen.failure,
            run_at = now() + make_interval(secs => delay),
            published_at = CASE WHEN chosen.state <> 'queued' THEN published_at END,
            strikes = strikes + CAST(chosen.state = 'queued' AND chosen.failure IS NOT NULL AS int),
            {_ADD_TO_PART}""",
    kept="chosen.content",
    beside="""
    stored AS (
        INSERT INTO results (part_id, job_id, ordinal, attempt, content)
        SELECT id, job_id, ordinal, attempt, content FROM moved WHERE content IS NOT NULL
    )
    """,
    answer="SELECT id, attempt FROM moved",
)

# What ran too long three times in a job will do so again: its other parts end, wherever they wait or run.
_GIVE_UP = moving(
    f"""
    slow AS (
        SELECT job_id FROM parts
        WHERE job_id = ANY(CAST(:job_ids AS uuid[])) AND state = 'failed' AND failure->>'code' = :code
        GROUP BY job_id HAVING count(*) >= :most
    ), chosen AS (
        SELECT id, state AS former, 'failed' AS state, CAST(:code AS text) AS reason FROM parts
        WHERE job_id IN (SELECT job_id FROM slow) AND state IN ('queued', 'running') AND NOT {IS_HELD}
        ORDER BY id FOR NO KEY UPDATE
    )
    """,  # noqa: S608  a constant
    sets="failure = CAST(:failure AS jsonb) || jsonb_build_object('attempt', attempt)",
    answer="SELECT DISTINCT job_id FROM moved",
)
_GIVEN_UP: dict[str, Any] = {
    "code": FailureCode.DECODE_TIMEOUT,
    "most": 3,
    "failure": Failure.of(
        FailureCode.DECODE_TIMEOUT, "Three parts of this document did not decode in time."
    ).model_dump_json(),
}

_NEXT_REVISION = text("SELECT coalesce(max(number), 0) + 1 FROM revisions WHERE job_id = :job_id")
_REVISE = text(
    """
    INSERT INTO revisions (id, job_id, part_id, number, checked, content)
    VALUES (:id, :job_id, :part_id, :number, false, CAST(:content AS jsonb))
    """
)


async def commit_parts(
    database: AsyncEngine, worker: str, group: Sequence[Finished]
) -> tuple[set[Fence], dict[UUID, JobState]]:
    """Commit a group, all of it or nothing.

    Returns the attempts whose outcome was stored (the others were overtaken, or another worker's by now), and the
    changed jobs with their new states.
    """
    job_ids = list({finished.part.job_id for finished in group})

    def commit(connection: Connection) -> tuple[set[Fence], dict[UUID, JobState]]:
        jobs = connection.execute(_LOCK_JOBS, {"job_ids": job_ids}).all()
        values = {"actor": worker, "rows": _rows(group)}
        moved = {(part, attempt) for part, attempt in connection.execute(_MOVE, values)}
        taken = [finished for finished in group if finished.part.fence in moved]
        if not taken:
            return set(), {}
        for finished in taken:
            if isinstance(cut := finished.outcome, Cut):
                staged = [(cut.stage, part) for part in cut.parts]
                staged += [cut.held] if cut.held else []
                parts = [{"id": str(new_id()), "stage": stage, **asdict(part)} for stage, part in staged]
                job = {"job_id": finished.part.job_id, "parts": json.dumps(parts)}
                connection.execute(CUT_JOB, job)
        touched = {finished.part.job_id: JobState.RUNNING for finished in taken}
        late = [job.id for job in jobs if job.state == JobState.QUEUED and job.id in touched]
        if late:
            connection.execute(BEGIN_JOBS, {"job_ids": late, "actor": worker})
        results = [(one.part, one.outcome) for one in taken if isinstance(one.outcome, Done)]
        notified = {job.id for job in jobs if job.notifies_parts}
        if promised := [part.id for part, _ in results if part.job_id in notified]:
            connection.execute(PROMISE_PARTS, {"part_ids": promised})
        for part, done in results:
            if isinstance(done.content, Split):
                _keep_split(connection, part, done.content)
        if slow := {finished.part.job_id for finished in taken if finished.is_too_slow}:
            connection.execute(_GIVE_UP, _GIVEN_UP | {"job_ids": list(slow), "actor": worker})
        releases = any(finished.part.may_release for finished in taken)
        ended = settle(connection, job_ids, actor=worker, releases=releases)
        keep_results(
            connection, {part.id: done.cache_key for part, done in results if done.cache_key is not None}
        )
        return moved, touched | ended

    async with database.begin() as connection:
        return await connection.run_sync(commit)


def _keep_split(connection: Connection, part: ClaimedPart, split: Split) -> None:
    """Add notices of a bundle's documents to the outbox; they are the next revision of a bundle that was corrected."""
    if split.revision:
        number, own = connection.execute(_NEXT_REVISION, {"job_id": part.job_id}).scalar_one(), new_id()
        last = split.revision.model_copy(update={"number": number})
        content = part.ring.seal(split.model_copy(update={"revision": last}).stored_json(), own)
        about = {"id": own, "job_id": part.job_id, "part_id": part.id}
        connection.execute(_REVISE, {**about, "number": number, "content": content})
    promise_ready(connection, part.id, split)


def _rows(group: Sequence[Finished]) -> str:
    """Return the group as a JSON array; results are JSON already and inserted unchanged."""
    rows = []
    for finished in group:
        part, outcome, content = finished.part, finished.outcome, "null"
        row = {"id": str(part.id), "attempt": part.attempt, "state": PartState.DONE, "delay": 0.0}
        match outcome:
            case Done(content=result):
                if isinstance(result, Split):
                    row["verdict"] = Verdict.REVIEW if result.needs_review else Verdict.OK
                    row["doubts"] = result.conflicts
                else:
                    row |= {"verdict": result.verdict, **Spent.on(result).values}
                if isinstance(result, Page):
                    row["doubts"] = len(result.doubts)
                if not (isinstance(result, Split) and result.revision):
                    content = part.ring.seal(result.stored_json(), part.id)
            case Failed(failure=failure, retry_in=retry_in, spent=spent):
                row |= {
                    "state": PartState.FAILED if retry_in is None else PartState.QUEUED,
                    "failure": failure.model_dump(mode="json"),
                    "reason": outcome.reason,
                    "delay": retry_in.total_seconds() if retry_in else 0.0,
                    **(spent.all_wasted.values if spent else {}),
                }
            case Postponed(retry_in=retry_in):
                delay = retry_in.total_seconds()
                row |= {"state": PartState.QUEUED, "reason": "postponed", "delay": delay}
        rows.append(f'{json.dumps(row)[:-1]}, "content": {content}}}')
    return f"[{','.join(rows)}]"
