"""A fleet on real servers that does what `pecia.testing.FakeFleet` does when it is told the same.

Its one worker claims and commits through the fleet's ledger; what comes of a part, the fake's scripts say.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Self
from uuid import UUID

from psycopg import Connection, sql
from psycopg.rows import dict_row
from pydantic import SecretStr
from redis import Redis

from pecia import AsyncClient, Client, ClientSettings, Failure, Lane, Summary
from pecia.handles import JobHandle
from pecia.testing import Callback
from pecia.testing.jobs import Rule, Script, outcome_of, script_of
from pecia_schemas.bundles import Split
from pecia_schemas.events import JobNotice
from pecia_schemas.media import PayloadRef
from pecia_schemas.messages import job_channel
from pecia_schemas.states import JobState, Stage
from pecia_schemas.tasks import Task, task_from_json, task_type
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.outbox import fan_out
from pecia_workers.ledger.recovery import expire_jobs
from pecia_workers.outgoing.webhooks import sign
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Finished, NewPart, Outcome
from tests.shared.house import hear_nothing
from tests.shared.limits import WAIT_S
from tests.shared.synced import synced

_SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
_MOMENTS = {
    "jobs": ("created_at", "not_before", "expires_at", "started_at", "finished_at", "erased_at"),
    "parts": ("run_at", "started_at", "finished_at"),
    "job_events": ("at",),
    "reads": ("at",),
    "erasures": ("at",),
    "access_keys": ("created_at", "expires_at"),
}
_WAITING = """
    SELECT parts.id FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE parts.state = 'queued' AND parts.run_at <= now() AND (%(job)s::uuid IS NULL OR job_id = %(job)s)
    ORDER BY array_position(ARRAY['urgent', 'normal', 'bulk'], parts.lane), job_id, parts.stage <> 'ingest', ordinal
    LIMIT 1
"""
_RUNS = "SELECT count(*) FROM job_events WHERE job_id = %s AND part_id IS NULL AND state = 'queued'"
_REGISTER = """
    INSERT INTO workers (name, role, stages, host, pid, seen_at)
    VALUES ('scribe', 'engine', ARRAY['ingest', 'read', 'caption', 'summarize'], 'here', 1, now() + interval '1 day')
"""


@dataclass
class _Running:
    part: ClaimedPart
    runs: int
    """Runs of its job when it began, one of which has one script."""


@dataclass
class RealFleet:
    """Postgres, Redis and a payload store, and a worker that waits for orders."""

    database_url: str
    redis_url: str
    payload_url: str
    webhook_secret: str = _SECRET
    kind: type[Client | AsyncClient] = Client
    """Of its clients; the asynchronous ones are called as if they were not."""
    gateway_url: str = ""
    """Through which they reach it; empty: they do by its stores."""
    api_key: str = ""
    _told: list[Rule] = field(default_factory=list)
    _running: dict[UUID, _Running] = field(default_factory=dict)
    _scripts: dict[tuple[UUID, int], Script] = field(default_factory=dict)
    _clients: list[tuple[Any, Client | AsyncClient]] = field(default_factory=list)
    _open_clients: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._postgres = Connection[dict[str, Any]].connect(
            self.database_url, autocommit=True, row_factory=dict_row
        )
        self._postgres.execute(_REGISTER)
        self._redis = Redis.from_url(self.redis_url)
        self._database = open_database(self.database_url)
        self._ledger = Ledger(self._database, "scribe", announce=self._announce)
        return self

    def __exit__(self, *_: object) -> None:
        self.empty()
        self._run(self._database.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._postgres.close()
        self._redis.close()

    def empty(self) -> None:
        """Forget all jobs, answers and clients; the worker stays, and was seen just now."""
        self._open_clients.close()
        for forgotten in (self._clients, self._running, self._scripts, self._told):
            forgotten.clear()
        for table in ("jobs", "batches", "reads", "erasures", "discarded_payloads"):
            self._postgres.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        self._postgres.execute("UPDATE workers SET seen_at = now()")
        self._redis.flushall()

    @property
    def settings(self) -> ClientSettings:
        """Of its clients, but for their names."""
        return ClientSettings(poll_interval=timedelta(milliseconds=50)).with_stores(
            database_url=self.database_url, redis_url=self.redis_url, payload_url=self.payload_url
        )

    def client(self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None) -> Any:
        changes: dict[str, Any] = {"client_name": name, "max_backlog": dict(max_backlog or {})}
        if self.gateway_url:
            changes |= {"gateway_url": self.gateway_url, "api_key": SecretStr(self.api_key)}
            changes |= {"database_url": SecretStr("")}
        bare = self.kind(settings=self.settings.model_copy(update=changes))
        client = self._open_clients.enter_context(synced(bare) if isinstance(bare, AsyncClient) else bare)
        self._clients.append((client, bare))
        return client

    def answers(
        self, task: type[Task[Any]], answer: Any = None, *, times: int | None = None, **said: Any
    ) -> None:
        about = {name: said.pop(name) for name in ("summary", "fields") if name in said}
        (given,) = [answer] if answer is not None else said.values()
        self._told.append(Rule(task=task, answer=given, left=times, **about))

    def fails(self, task: type[Task[Any]], why: Any, *, times: int | None = None) -> None:
        self._told.append(Rule(task=task, answer=why, left=times))

    def start(self, job: JobHandle[Any] | UUID) -> bool:
        return self._begin(_id_of(job)) is not None

    def step(self, job: JobHandle[Any] | UUID | None = None) -> bool:
        job_id = None if job is None else _id_of(job)
        running = [one for one in self._running.values() if job_id in (None, one.part.job_id)]
        one = running[0] if running else self._begin(job_id)
        if one is None:
            return False
        del self._running[one.part.id]
        outcome = _outcome(one.part, self._script_of(one))  # as late as a fake fleet asks for it
        written = self._run(self._ledger.commit(Finished(part=one.part, outcome=outcome)))
        return written is not None or self.step(job)  # nothing is written of what was cancelled

    def finish(self, job: JobHandle[Any] | UUID | None = None) -> None:
        while self.step(job):
            pass

    def advance(self, by: timedelta) -> None:
        for table, columns in _MOMENTS.items():
            for name in columns:
                older = sql.SQL("UPDATE {0} SET {1} = {1} - %s")
                self._postgres.execute(older.format(sql.Identifier(table), sql.Identifier(name)), (by,))
        self._run(expire_jobs(self._database, limit=1000, notify=hear_nothing))

    @contextmanager
    def outage(self, service: str) -> Iterator[None]:
        if service == "workers":
            self._postgres.execute("UPDATE workers SET stopped_at = now()")
            yield
            self._postgres.execute("UPDATE workers SET stopped_at = NULL")
            return
        kept = [bare._settings for _, bare in self._clients]
        self._reconnect([self._without(service, settings) for settings in kept])
        yield
        self._reconnect(kept)

    def _reconnect(self, settings: list[ClientSettings]) -> None:
        for (client, bare), own in zip(self._clients, settings, strict=True):
            client.close()
            bare._settings = own

    def _without(self, service: str, settings: ClientSettings) -> ClientSettings:
        nowhere = Path(self.payload_url).with_name("nowhere")
        nowhere.write_bytes(b"a file is no directory")
        urls = {
            "database_url": self.database_url,
            "redis_url": self.redis_url,
            "payload_url": self.payload_url,
        }
        away = {
            "postgres": {"database_url": f"postgresql://nobody@/nothing?host={nowhere}"},
            "redis": {"redis_url": f"unix://{nowhere}"},
            "payloads": {"payload_url": str(nowhere)},
        }
        return settings.with_stores(**(urls | away[service]))

    @property
    def callbacks(self) -> list[Callback]:
        self.fan_out()
        rows = self._postgres.execute("SELECT id, url, body FROM deliveries ORDER BY created_at").fetchall()
        signed = [(row, sign(row["id"], row["body"], [self.webhook_secret])) for row in rows]
        return [
            Callback(
                url=row["url"],
                headers=one.headers,
                body=one.body,
                notice=JobNotice.model_validate(row["body"]),
            )
            for row, one in signed
        ]

    def fan_out(self) -> None:
        """Make deliveries of all notices, as a webhook worker does."""
        while self._run(fan_out(self._database)):
            pass

    def _begin(self, job_id: UUID | None) -> _Running | None:
        row = self._postgres.execute(_WAITING, {"job": job_id}).fetchone()
        part: ClaimedPart | None = self._run(self._ledger.claim(row["id"])) if row else None
        if part is None:
            return None
        runs = self._postgres.execute(_RUNS, (part.job_id,)).fetchone()
        assert runs
        running = _Running(part, runs["count"])
        self._running[part.id] = running
        return running

    def _script_of(self, running: _Running) -> Script:
        part = running.part
        key = (part.job_id, running.runs)
        if key not in self._scripts:
            task = task_from_json(part.kind, part.stored_task)
            assert isinstance(task.source, PayloadRef)
            content = (
                Path(self.payload_url) / "sha256" / task.source.sha256[:2] / task.source.sha256
            ).read_bytes()
            self._scripts[key] = script_of(self._told, _with_source(task, content))
        return self._scripts[key]

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _announce(self, jobs: Mapping[UUID, JobState]) -> None:
        for job_id, state in jobs.items():
            self._redis.publish(job_channel(job_id), state)


def _with_source(task: Task[Any], content: bytes) -> Task[Any]:
    object.__setattr__(task, "source", content)
    return task


def _outcome(part: ClaimedPart, script: Script) -> Outcome:
    if part.stage is Stage.INGEST and not isinstance(script, Failure):
        parts = [NewPart(ordinal=ordinal, cost=1) for ordinal in script]
        stage, last = task_type(part.kind).stage, script[parts[-1].ordinal]
        if isinstance(last, Summary | Split):
            held = Stage.SUMMARIZE if isinstance(last, Summary) else Stage.SPLIT
            return Cut(stage, parts[:-1], (held, parts[-1]))
        return Cut(stage, parts)
    content = outcome_of(script, part.ordinal)
    if isinstance(content, Failure):
        return Failed(content.model_copy(update={"attempt": part.attempt}))
    return Done(content)


def _id_of(job: JobHandle[Any] | UUID) -> UUID:
    return job if isinstance(job, UUID) else job.id
