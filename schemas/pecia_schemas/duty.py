"""Which workers are running, and which waiting parts none of them can run: read by fleet and clients alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pecia_schemas.states import Stage

ON_DUTY = (
    "workers.stopped_at IS NULL AND workers.seen_at > now() - interval '30 seconds'"
    " AND (workers.lost_at IS NULL OR workers.lost_at < workers.seen_at)"
)
"""SQL about a row of `workers`: it has not stopped, six heartbeats have not been missed, it is not taken for dead."""


UNSIGNED = f"""(
    SELECT coalesce(bool_and(capabilities->>'signs' = 'false'), false)
    FROM workers WHERE role = 'webhooks' AND {ON_DUTY}
)"""  # noqa: S608  a constant of this module
"""SQL: webhook workers are on duty, and none of them has the secret that signs the callbacks of jobs' own webhooks."""


class Need(StrEnum):
    """What a part asks of the worker that runs it."""

    STAGE = "stage"
    ADAPTER = "adapter"
    FIELDS = "fields"
    LANGUAGE = "language"


# A worker whose capabilities are unknown, because an older version registered it, is taken to be able to do anything.
UNSERVED = f"""
    WITH asked AS (
        SELECT CASE WHEN CAST(:job_ids AS uuid[]) IS NOT NULL THEN parts.job_id END AS job_id, parts.stage,
               jobs.task->>'adapter' AS adapter, jobs.task->>'language' AS language,
               CASE jsonb_typeof(jobs.task->'fields') WHEN 'object' THEN 'true' END AS fields, count(*) AS parts
        FROM parts JOIN jobs ON jobs.id = parts.job_id
        WHERE parts.state = 'queued' AND parts.run_at <= now()
          AND (CAST(:job_ids AS uuid[]) IS NULL OR parts.job_id = ANY(CAST(:job_ids AS uuid[])))
        GROUP BY 1, 2, 3, 4, 5
    ), needs AS (
        SELECT asked.job_id, asked.stage, asked.parts, need.rank, need.name, need.value
        FROM asked, LATERAL (VALUES
            (1, 'stage', asked.stage), (2, 'adapter', asked.adapter),
            (3, 'fields', asked.fields), (4, 'language', asked.language)
        ) AS need (rank, name, value)
        WHERE need.value IS NOT NULL AND (need.name = 'stage' OR asked.stage <> 'ingest')
    ), unserved AS (
        SELECT * FROM needs WHERE NOT EXISTS (
            SELECT FROM workers
            WHERE {ON_DUTY} AND needs.stage = ANY(workers.stages) AND CASE
                WHEN needs.name = 'stage' OR workers.capabilities IS NULL THEN true
                WHEN needs.name = 'adapter' THEN workers.capabilities->'adapters' ? needs.value
                WHEN needs.name = 'fields' THEN CAST(workers.capabilities->>'fields' AS boolean)
                ELSE jsonb_typeof(workers.capabilities->'languages') = 'null'
                     OR workers.capabilities->'languages' ? needs.value END
        )
    ), first AS (
        SELECT *, min(rank) OVER (PARTITION BY job_id, stage) AS least FROM unserved
    )
    SELECT job_id, stage, name AS need, value, CAST(sum(parts) AS bigint) AS parts
    FROM first WHERE name = 'stage' OR least > 1
    GROUP BY job_id, stage, rank, name, value
    ORDER BY job_id, stage, rank, value
"""  # noqa: S608  constants of this module
"""Takes `job_ids`, or None for all; returns what their queued parts need and no running worker can do.

Where no worker serves the stage, that alone is returned.
"""

_WORK = {
    Stage.INGEST: ("cuts documents", "start `pecia worker ingest`"),
    Stage.READ: ("reads pages", "start `pecia worker engine`"),
    Stage.CAPTION: ("captions videos", "start one with PECIA_ENGINE=vllm or openai"),
    Stage.SUMMARIZE: ("writes summaries", "start one with PECIA_ENGINE=vllm or openai"),
}

_LANGUAGES = {
    "ko": "give one of the CPU's pecia[korean] and tesseract-ocr-kor, or start one with PECIA_ENGINE=vllm or openai"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A row of `UNSERVED`: something that parts wait for and no running worker can do."""

    job_id: UUID | None
    """Whose parts; None: any job's."""
    stage: str
    need: str
    value: str
    """Which stage, adapter or language."""
    parts: int

    @property
    def sentence(self) -> str:
        """What no worker does, and how to get one that does."""
        if self.need == Need.ADAPTER:
            return f"no running worker has the adapter {self.value}; start one with it in PECIA_ADAPTERS"
        if self.need == Need.FIELDS:
            return "no running worker fills fields; start one with PECIA_ENGINE=vllm or openai"
        if self.need == Need.LANGUAGE:
            advice = _LANGUAGES.get(self.value, "start one with another PECIA_ENGINE")
            return f"no running worker reads the language {self.value}; {advice}"
        does, advice = _WORK[Stage(self.stage)]
        return f"no running worker {does}; {advice}"
