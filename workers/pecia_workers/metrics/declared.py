"""Every metric of the fleet, by Prometheus' conventions: base units, `_total` for what only grows.

Labels hold stages, lanes, codes, engines, roles and the like: never an id of a job or a part, nothing that a submitter
wrote. A process shows what it does itself; `FLEET` is what upkeep looks up for all, `GPUS` what the driver tells.
"""

from __future__ import annotations

from typing import Any, Self

import prometheus_client
from prometheus_client import CollectorRegistry, Info
from prometheus_client.metrics import MetricWrapperBase

from pecia_schemas.states import DeliveryState

REGISTRY = CollectorRegistry()
"""What a process itself does."""
FLEET = CollectorRegistry()
"""What upkeep looks up in Postgres and Redis, for the fleet as a whole."""
GPUS = CollectorRegistry()
"""The GPUs that an engine worker may use."""


class _Quick(MetricWrapperBase):
    """Remembers what has which labels: looking that up anew took a tenth of a worker's time for a part."""

    def labels(self, *values: Any, **named: Any) -> Self:
        """Return the metric with these labels."""
        if named:
            return super().labels(*values, **named)
        found: dict[tuple[Any, ...], Self] = self.__dict__.setdefault("_found", {})
        if values not in found:
            found[values] = super().labels(*values)
        return found[values]


class Counter(_Quick, prometheus_client.Counter):
    """What only grows."""


class Gauge(_Quick, prometheus_client.Gauge):
    """What goes up and down."""


class Histogram(_Quick, prometheus_client.Histogram):
    """How values are spread."""


_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_WAITS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400)

WORKER = Info("pecia_worker", "Role and version of this process.", registry=REGISTRY)

CLAIMS = Counter("pecia_claims", "Calls to Redis that brought parts.", registry=REGISTRY)
CLAIMED_PARTS = Counter("pecia_claimed_parts", "Parts claimed.", ["stage", "lane"], registry=REGISTRY)
CLAIM_SIZE = Histogram("pecia_claim_parts", "Parts of one claim.", buckets=_COUNTS, registry=REGISTRY)
CLAIM_FILL = Histogram(
    "pecia_claim_token_fill_ratio",
    "Share of the free tokens that a claim used; more than 1 for a part that is larger than the budget.",
    buckets=_SHARES,
    registry=REGISTRY,
)
PARTS_HELD = Gauge(
    "pecia_parts_held", "Parts that this worker has taken and not let go of.", registry=REGISTRY
)
WORKERS_LOST = Counter(
    "pecia_workers_lost", "Workers that this process took for dead, with parts or without.", registry=REGISTRY
)
OVERDUE_PARTS = Counter(
    "pecia_overdue_parts", "Parts that this worker held for too long and gave up.", registry=REGISTRY
)

QUEUED = Histogram(
    "pecia_queue_seconds",
    "Seconds from when a part could have run to its claim.",
    ["stage", "lane"],
    buckets=_WAITS,
    registry=REGISTRY,
)
ATTEMPTS = Counter("pecia_attempts", "Attempts begun at a part.", ["stage", "lane"], registry=REGISTRY)
PARTS = Counter(
    "pecia_parts",
    "Attempts that ended: `done`, `retried`, `failed`, or `lost`: no longer this worker's at its commit.",
    ["stage", "outcome"],
    registry=REGISTRY,
)
PART_SECONDS = Histogram(
    "pecia_part_seconds",
    "Seconds from claim to commit of an attempt.",
    ["stage"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
WITNESSED = Counter(
    "pecia_witnessed_pages",
    "Pages held against a witness: `layer`, `ocr`, or `missed` where the CPU engine did not keep up or failed.",
    ["witness"],
    registry=REGISTRY,
)
FAILURES = Counter(
    "pecia_failures", "Attempts that failed, by failure code.", ["stage", "code"], registry=REGISTRY
)
PAGES = Counter(
    "pecia_pages_read",
    "Pages with a result, by who read them and how well.",
    ["engine", "verdict"],
    registry=REGISTRY,
)

BATCH_SIZE = Histogram(
    "pecia_batch_requests",
    "Requests in the engine just after some were admitted.",
    buckets=_COUNTS,
    registry=REGISTRY,
)
BATCH_KV_USED = Histogram(
    "pecia_batch_kv_cache_used_ratio",
    "Share of the engine's KV cache in use, as it says, when requests were admitted.",
    buckets=_SHARES,
    registry=REGISTRY,
)
ADMISSION_WAIT = Histogram(
    "pecia_admission_wait_seconds",
    "Seconds that a request waited for room in the engine.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
FIRST_TOKEN = Histogram(
    "pecia_first_token_seconds",
    "Seconds from the request to its first token.",
    ["engine"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "pecia_engine_request_seconds",
    "Seconds that the engine took for a request, without the wait for room.",
    ["engine"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
PROMPT_TOKENS = Counter("pecia_prompt_tokens", "Tokens the engine read.", ["engine"], registry=REGISTRY)
CACHED_TOKENS = Counter(
    "pecia_cached_tokens",
    "Of these, tokens that its prefix cache held already.",
    ["engine"],
    registry=REGISTRY,
)
OUTPUT_TOKENS = Counter("pecia_output_tokens", "Tokens the engine wrote.", ["engine"], registry=REGISTRY)
WASTED_TOKENS = Counter(
    "pecia_wasted_tokens",
    "Tokens of readings that were thrown away and of attempts that failed.",
    ["engine"],
    registry=REGISTRY,
)

ENGINE_RUNNING = Gauge(
    "pecia_engine_running_requests", "Requests it works on.", ["engine"], registry=REGISTRY
)
ENGINE_WAITING = Gauge(
    "pecia_engine_waiting_requests", "Requests that wait inside the engine.", ["engine"], registry=REGISTRY
)
ENGINE_PREPARING = Gauge(
    "pecia_engine_preparing_requests",
    "Requests that are made ready before they may enter.",
    ["engine"],
    registry=REGISTRY,
)
KV_USED = Gauge(
    "pecia_engine_kv_cache_used_ratio", "Share of the KV cache in use.", ["engine"], registry=REGISTRY
)
BUDGET_SHARE = Gauge(
    "pecia_engine_budget_share_ratio",
    "Share of the engine's budget for which it has memory; less than 1 after it ran out of it.",
    ["engine"],
    registry=REGISTRY,
)
PREEMPTIONS = Counter(
    "pecia_engine_preemptions",
    "Requests put back because the KV cache was full.",
    ["engine"],
    registry=REGISTRY,
)
DRAFTED = Counter(
    "pecia_engine_draft_tokens",
    "Tokens that speculative decoding proposed.",
    ["engine"],
    registry=REGISTRY,
)
ACCEPTED = Counter(
    "pecia_engine_accepted_draft_tokens",
    "Of these, tokens that the model would have written itself: what the speculation saved.",
    ["engine"],
    registry=REGISTRY,
)
MISPRICED = Counter(
    "pecia_engine_mispriced_requests",
    "Requests whose prompt was not as long as their price said.",
    ["engine"],
    registry=REGISTRY,
)

UPKEEP_ACTIONS = Counter(
    "pecia_upkeep_actions",
    "What the steps of upkeep put right or ended; `relay`: parts published.",
    ["step"],
    registry=REGISTRY,
)
UPKEEP_FAILURES = Counter(
    "pecia_upkeep_failures", "Steps of upkeep that failed, by the reason.", ["reason"], registry=REGISTRY
)
WEBHOOKS = Counter(
    "pecia_webhook_attempts",
    "Tries to deliver a callback: `delivered`, `pending` (tried again) or `dead`, with those that grew too old or "
    "whose receiver is gone.",
    ["outcome"],
    registry=REGISTRY,
)
for _state in DeliveryState:
    WEBHOOKS.labels(_state)  # shown from the start: an increase from nothing to one is none
WEBHOOK_SECONDS = Histogram(
    "pecia_webhook_seconds", "Seconds that one try took.", buckets=_SECONDS, registry=REGISTRY
)

QUEUE_PARTS = Gauge(
    "pecia_queue_parts",
    "Parts that wait, in Redis and up to a hundred thousand in Postgres; `quarantine`: on which a worker died.",
    ["stage", "lane"],
    registry=FLEET,
)
QUEUE_OLDEST = Gauge(
    "pecia_queue_oldest_seconds",
    "How long the oldest part of a lane that could run has waited.",
    ["lane"],
    registry=FLEET,
)
LEASED_PARTS = Gauge("pecia_leased_parts", "Parts that workers hold.", registry=FLEET)
STRANGE_MESSAGES = Gauge(
    "pecia_strange_messages", "Messages in Redis that were none and were put aside.", registry=FLEET
)
UNPUBLISHED = Gauge(
    "pecia_unpublished_parts",
    "Parts that could run and are not in Redis although their list is not half full: the relay's work.",
    registry=FLEET,
)
UNPUBLISHED_OLDEST = Gauge(
    "pecia_unpublished_oldest_seconds", "How long the oldest of them has been due.", registry=FLEET
)
DUE_WEBHOOKS = Gauge("pecia_due_webhooks", "Callbacks that are due and not being tried.", registry=FLEET)
DUE_WEBHOOKS_OLDEST = Gauge(
    "pecia_due_webhooks_oldest_seconds", "How long the oldest of them has been due.", registry=FLEET
)
PAUSED_RECEIVERS = Gauge(
    "pecia_paused_receivers",
    "Receivers for which callbacks wait that failed so often that one at a time tries them.",
    registry=FLEET,
)
REMOVALS = Gauge(
    "pecia_documents_awaiting_removal", "Documents that every job has let go of.", registry=FLEET
)
REMOVALS_OLDEST = Gauge(
    "pecia_documents_awaiting_removal_oldest_seconds", "How long the oldest has waited.", registry=FLEET
)
WORKERS = Gauge("pecia_workers_on_duty", "Processes heard of lately.", ["role"], registry=FLEET)
MEASURED = Gauge(
    "pecia_measured_timestamp_seconds", "When upkeep looked all this up, since the epoch.", registry=FLEET
)

GPU_USE = Gauge(
    "pecia_gpu_utilization_ratio", "Share of time in which the GPU computed.", ["gpu"], registry=GPUS
)
GPU_MEMORY_USED = Gauge("pecia_gpu_memory_used_bytes", "Memory in use, by anybody.", ["gpu"], registry=GPUS)
GPU_MEMORY = Gauge("pecia_gpu_memory_bytes", "Memory that it has.", ["gpu"], registry=GPUS)
