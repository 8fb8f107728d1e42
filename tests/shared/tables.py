"""The tables as a test writes and reads them, and everything that a database holds, as a backup of it would."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pecia_schemas.events import JobNotice, NoticeType
from pecia_schemas.states import new_id

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


def texts_of_tables(database_url: str) -> dict[str, str]:
    """Return all rows of each table, as text."""
    with psycopg.connect(database_url) as connection:
        tables = [name for (name,) in connection.execute(_TABLES)]
        query = sql.SQL("SELECT CAST(t AS text) FROM {} AS t")
        return {
            name: "\n".join(row for (row,) in connection.execute(query.format(sql.Identifier(name))))
            for name in tables
        }


@dataclass
class Tables:
    """The tables as the test sees them."""

    database_url: str

    def query(self, statement: LiteralString, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def add_job(
        self,
        *,
        parts: int = 1,
        stage: str = "read",
        expires_in: timedelta | None = None,
        webhook: bool = False,
    ) -> UUID:
        job_id = new_id()
        notices = {
            "url": "https://hook.example/",
            "events": ["job.expired", "job.failed", "job.partial", "job.succeeded"],
        }
        self.query(
            """INSERT INTO jobs (id, kind, lane, task, task_digest, payload, idempotency_key, client, total, webhook,
                                 expires_at)
               VALUES (%s, 'document.read', 'normal', '{}', '', '', %s, 'test', %s, %s, now() + %s::interval)""",
            job_id,
            str(job_id),
            None if stage == "ingest" else parts,
            Jsonb(notices) if webhook else None,
            expires_in,
        )
        self.query(
            """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost)
               SELECT id, %s, %s, nth - 1, 'normal', 7 FROM unnest(%s::uuid[]) WITH ORDINALITY AS new (id, nth)""",
            job_id,
            stage,
            [new_id() for _ in range(parts)],
        )
        return job_id

    def parts(self, job_id: UUID) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM parts WHERE job_id = %s ORDER BY ordinal", job_id)

    def part(self, part_id: UUID) -> dict[str, Any]:
        return self.query("SELECT * FROM parts WHERE id = %s", part_id)[0]

    def job(self, job_id: UUID) -> dict[str, Any]:
        return self.query("SELECT * FROM jobs WHERE id = %s", job_id)[0]

    def events(self, job_id: UUID) -> list[tuple[str, str | None, bool]]:
        """State, reason, and whether it was the job itself that moved."""
        rows = self.query(
            "SELECT * FROM job_events WHERE job_id = %s AND actor = 'upkeep' ORDER BY sequence", job_id
        )
        return [(row["state"], row["reason"], row["part_id"] is None) for row in rows]

    def run_on(self, worker: str, job_id: UUID) -> None:
        """Let a worker have claimed the job's parts, a moment ago."""
        self.query(
            """UPDATE parts SET state = 'running', worker = %s, attempt = 1, published_at = now(), started_at = now()
               WHERE job_id = %s""",
            worker,
            job_id,
        )
        self.query("UPDATE jobs SET state = 'running' WHERE id = %s", job_id)

    def add_worker(
        self, name: str, *, silent: timedelta = timedelta(), stopped: bool = False, lost: bool = False
    ) -> None:
        self.query(
            """INSERT INTO workers (name, role, stages, host, pid, started_at, seen_at, stopped_at, lost_at)
               VALUES (%s, 'engine', '{read}', 'here', 1, now() - interval '1 hour', now() - %s::interval,
                       CASE WHEN %s THEN now() END, CASE WHEN %s THEN now() END)""",
            name,
            silent,
            stopped,
            lost,
        )

    def publish_long_ago(self) -> None:
        self.query(
            "UPDATE parts SET published_at = now() - interval '1 minute' WHERE published_at IS NOT NULL"
        )

    def notices(self) -> list[NoticeType]:
        return [
            JobNotice.model_validate(row["body"]).type for row in self.query("SELECT body FROM deliveries")
        ]
