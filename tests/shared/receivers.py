"""Receivers of callbacks that do as they are told, an outbox that a test can look into, and a worker between them."""

import asyncio
import base64
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine

from pecia.client import Client
from pecia_schemas.moves import PROMISE_CALLBACKS
from pecia_schemas.settings import ClientSettings, WorkerSettings
from pecia_schemas.states import new_id
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.outbox import fan_out
from pecia_workers.outgoing.webhooks import RETRIES, WebhookWorker
from pecia_workers.protocol.parts import Backoff
from tests.shared.http_doubles import LoopbackServer, QuietHandler, at_work, serving
from tests.shared.limits import WAIT_S

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
AT_ONCE = replace(RETRIES, first_s=0.02, factor=1)
DOCUMENT_TEXT = "Hemoglobin 13.2"

_PROMISE = str(PROMISE_CALLBACKS.compile(create_engine("postgresql+psycopg://"))).encode()


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """What a receiver does with a request."""

    status: int = 204
    delay_s: float = 0
    after: threading.Event | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    text: str = ""


class Receiver(LoopbackServer):
    """Gives the planned answers in turn, then the usual one for ever."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(Handler, port)
        self.planned: list[Answer] = []
        self.usual = Answer()
        self.requests: list[Request] = []
        self.taken: list[str] = []
        self.most = 0
        self.under_way = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.root}/hook"

    def take(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            return self.planned.pop(0) if self.planned else self.usual

    def answered(self, delivery: str, answer: Answer) -> None:
        with self.lock:
            self.under_way -= 1
            if answer.status == 204 and not answer.reset:
                self.taken.append(delivery)


class Handler(QuietHandler, BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = self.server.take(Request(self.path, dict(self.headers), body))
        time.sleep(answer.delay_s)
        if answer.after:
            answer.after.wait(WAIT_S)
        self.server.answered(str(self.headers["webhook-id"]), answer)
        if answer.reset:
            self.reset()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.text.encode())


def receiving(port: int = 0) -> AbstractContextManager[Receiver]:
    return serving(Receiver(port))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@dataclass
class Outbox:
    database_url: str

    def promise(self, url: str) -> UUID:
        """Finish a job whose webhook is `url`, as the ledger does; return its delivery."""
        (promised,) = self.promise_all([url])
        return promised

    def promise_all(self, urls: Sequence[str]) -> list[UUID]:
        """Finish a job for each webhook; return their deliveries."""
        jobs = self.finish_all(urls)
        promised = {row["job_id"]: row["id"] for row in self.rows("WHERE job_id = ANY(%s)", jobs)}
        return [promised[job_id] for job_id in jobs]

    def finish(self, url: str | None = None) -> UUID:
        (job_id,) = self.finish_all([url])
        return job_id

    def finish_all(self, urls: Sequence[str | None]) -> list[UUID]:
        """Finish a job for each webhook, None: without one, as the ledger does; return their ids."""
        jobs = self.commit_all(urls)
        fan_out_all(self.database_url)
        return jobs

    def commit_all(self, urls: Sequence[str | None], *, tenant: str | None = None) -> list[UUID]:
        """The same, but no webhook worker has made deliveries of the notices."""
        with psycopg.connect(self.database_url) as connection:
            jobs = [_insert_job(connection, url, tenant) for url in urls]
            _show_deliveries(connection, jobs)
        return jobs

    def working(
        self, backoff: Backoff | None = AT_ONCE, /, **changes: Any
    ) -> AbstractContextManager[WebhookWorker]:
        """A webhook worker at work, on a loop in a thread; `changes` of its settings."""
        settings = {
            "database_url": self.database_url,
            "webhook_secret": SECRET,
            "webhook_allow": ["127.0.0.0/8"],
            "webhook_ports": [],
            "webhook_timeout": timedelta(seconds=30),
            **changes,
        }
        return at_work(WebhookWorker(WorkerSettings.model_validate(settings), backoff=backoff))

    def make_well(self, receiver: Receiver) -> None:
        """Let a receiver have taken what it was sent last: it may have several callbacks at a time."""
        root = receiver.url.removesuffix("/hook")
        self.execute("INSERT INTO receivers (receiver, well_at) VALUES (%s, now())", root)

    def tell_of(self, job_id: UUID, *, endings: int = 1) -> None:
        """Let a job that is over end once more, or do the same end anew, and promise what is to be told of it."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute("UPDATE jobs SET endings = endings + %s WHERE id = %s", (endings, job_id))
            _show_deliveries(connection, [job_id])
        fan_out_all(self.database_url)

    def rows(self, where: LiteralString = "", *values: object) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM deliveries " + where, *values)  # noqa: S608  literals

    def query(self, query: LiteralString, *values: object) -> list[dict[str, Any]]:
        return self._watching.cursor(row_factory=dict_row).execute(query, values or None).fetchall()

    def execute(self, statement: LiteralString, *values: object) -> None:
        self._watching.execute(statement, values or None)

    @cached_property
    def _watching(self) -> psycopg.Connection:
        """One for all looks: tests look fifty times a second."""
        return psycopg.connect(self.database_url, autocommit=True)

    def close(self) -> None:
        if "_watching" in vars(self):
            self._watching.close()

    def row(self, delivery: UUID) -> dict[str, Any]:
        return self.rows("WHERE id = %s", delivery)[0]

    def state(self, delivery: UUID) -> str:
        return str(self.row(delivery)["state"])


def _insert_job(connection: psycopg.Connection, url: str | None, tenant: str | None) -> UUID:
    job_id, part, state = new_id(), new_id(), "succeeded"
    webhook = url and Jsonb({"url": url, "events": [f"job.{state}"]})
    connection.execute(
        """INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client,
                             webhook, total, done, finished_at, metadata, tenant)
           VALUES (%s, 'document.read', 'normal', %s, %s, '', '', %s, 'test', %s, 1, 1, now(), %s, %s)""",
        (job_id, state, Jsonb({"x": 1}), str(job_id), webhook, Jsonb({"ward": "3"}), tenant),
    )
    connection.execute(
        """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, state)
           VALUES (%s, %s, 'read', 0, 'normal', 1, 'done')""",
        (part, job_id),
    )
    connection.execute(
        "INSERT INTO results (part_id, job_id, ordinal, attempt, content) VALUES (%s, %s, 0, 1, %s)",
        (part, job_id, Jsonb({"text": DOCUMENT_TEXT})),
    )
    return job_id


def _show_deliveries(connection: psycopg.Connection, jobs: list[UUID]) -> None:
    connection.execute(
        """INSERT INTO job_events (job_id, state, actor)
           SELECT id, 'succeeded', 'test' FROM unnest(%s::uuid[]) AS id""",
        (jobs,),
    )
    connection.execute(_PROMISE, {"job_ids": jobs})


def fan_out_all(database_url: str) -> None:
    """Make deliveries of all notices, as a webhook worker does."""

    async def fan_out_until_none_waits() -> None:
        database = open_database(database_url)
        try:
            while await fan_out(database):
                pass
        finally:
            await database.dispose()

    asyncio.run(fan_out_until_none_waits())


def client_of(outbox: Outbox, **changes: Any) -> Client:
    """A client that needs Postgres alone."""
    settings = ClientSettings.model_construct(client_name="ward-7", **changes)
    return Client(outbox.database_url, "redis://nowhere", "nowhere", settings=settings)


@pytest.fixture
def outbox(database_url: str) -> Iterator[Outbox]:
    with closing(Outbox(database_url)) as outbox:
        yield outbox


@pytest.fixture
def client(outbox: Outbox) -> Iterator[Client]:
    with client_of(outbox) as client:
        yield client
