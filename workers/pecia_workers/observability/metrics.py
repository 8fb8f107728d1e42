"""Metrics of a process for Prometheus, and its health.

Metrics follow Prometheus' conventions: base units, `_total` for what only grows. Labels hold stages, lanes, codes,
engines, roles and the like, never ids of jobs or parts, nor text of submitters. A process exports its own work; `FLEET`
holds figures that upkeep collects for all, `GPUS` those of the driver.

Health is judged by progress, not by liveness of the process or its loop. A worker that could claim and does not, or
holds parts and finishes none, is unhealthy and should be restarted. Health is not judged while Redis or Postgres is
unavailable, as the worker is not at fault.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Info
from prometheus_client.metrics import MetricWrapperBase

from pecia_schemas.states import DeliveryState

log = structlog.get_logger(__name__)

_HEALTH_EVERY_S = 5.0
_TIMEOUT_S = 60.0
"""Seconds that a worker may claim nothing while parts wait; it looks every second."""
_STEP_S = 300.0
"""Seconds that one step of a service may take: the relay of a million parts takes minutes."""

REGISTRY = CollectorRegistry()
"""Metrics of this process."""
FLEET = CollectorRegistry()
"""Figures of the fleet that upkeep reads from Postgres and Redis."""
GPUS = CollectorRegistry()
"""The GPUs that an engine worker may use."""


class _Quick(MetricWrapperBase):
    """Caches children by labels: their lookup took a tenth of a worker's time for a part."""

    def labels(self, *values: Any, **named: Any) -> Self:
        """Return the metric with these labels."""
        if named:
            return super().labels(*values, **named)
        found: dict[tuple[Any, ...], Self] = self.__dict__.setdefault("_found", {})
        if values not in found:
            found[values] = super().labels(*values)
        return found[values]


class Counter(_Quick, prometheus_client.Counter):
    """A counter with cached labels."""


class Gauge(_Quick, prometheus_client.Gauge):
    """A gauge with cached labels."""


class Histogram(_Quick, prometheus_client.Histogram):
    """A histogram with cached labels."""


_counter = partial(Counter, registry=REGISTRY)
_gauge = partial(Gauge, registry=REGISTRY)
_histogram = partial(Histogram, registry=REGISTRY)
_fleet = partial(Gauge, registry=FLEET)
_gpu = partial(Gauge, registry=GPUS)

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_WAITS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400)

WORKER = Info("pecia_worker", "Role and version of this process.", registry=REGISTRY)

CLAIMS = _counter("pecia_claims", "Calls to Redis that brought parts.")
CLAIMED_PARTS = _counter("pecia_claimed_parts", "Parts claimed.", ["stage", "lane"])
CLAIM_SIZE = _histogram("pecia_claim_parts", "Parts of one claim.", buckets=_COUNTS)
CLAIM_FILL = _histogram(
    "pecia_claim_token_fill_ratio",
    "Share of the free tokens that a claim used; more than 1 for a part that is larger than the budget.",
    buckets=_SHARES,
)
PARTS_HELD = _gauge("pecia_parts_held", "Parts that this worker has taken and neither finished nor requeued.")
WORKERS_LOST = _counter(
    "pecia_workers_lost", "Workers that this process took for dead, with parts or without."
)
OVERDUE_PARTS = _counter("pecia_overdue_parts", "Parts that this worker held for too long and gave up.")

QUEUED = _histogram(
    "pecia_queue_seconds",
    "Seconds from when a part could have run to its claim.",
    ["stage", "lane"],
    buckets=_WAITS,
)
ATTEMPTS = _counter("pecia_attempts", "Attempts begun at a part.", ["stage", "lane"])
PARTS = _counter(
    "pecia_parts",
    "Attempts that ended: `done`, `retried`, `postponed`, `failed`, or `lost`: no longer this worker's at its commit.",
    ["stage", "outcome"],
)
PART_SECONDS = _histogram(
    "pecia_part_seconds", "Seconds from claim to commit of an attempt.", ["stage"], buckets=_SECONDS
)
WITNESSED = _counter(
    "pecia_witnessed_pages",
    "Pages held against a witness: `layer`, `ocr`, or `missed` where the CPU engine failed.",
    ["witness"],
)
CANARIES = _counter(
    "pecia_canaries",
    "Canary pages, once `read` right, `unanswered`, or `failed`; `leaked`: their text came back for another page.",
    ["outcome"],
)
FAILURES = _counter("pecia_failures", "Attempts that failed, by failure code.", ["stage", "code"])
PAGES = _counter(
    "pecia_pages_read", "Pages with a result, by who read them and how well.", ["engine", "verdict"]
)

BATCH_SIZE = _histogram(
    "pecia_batch_requests", "Requests in the engine just after some were admitted.", buckets=_COUNTS
)
BATCH_KV_USED = _histogram(
    "pecia_batch_kv_cache_used_ratio",
    "Share of the engine's KV cache in use, as it says, when requests were admitted.",
    buckets=_SHARES,
)
ADMISSION_WAIT = _histogram(
    "pecia_admission_wait_seconds", "Seconds that a request waited for room in the engine.", buckets=_SECONDS
)
FIRST_TOKEN = _histogram(
    "pecia_first_token_seconds", "Seconds from the request to its first token.", ["engine"], buckets=_SECONDS
)
REQUEST_SECONDS = _histogram(
    "pecia_engine_request_seconds",
    "Seconds that the engine took for a request, without the wait for room.",
    ["engine"],
    buckets=_SECONDS,
)
PROMPT_TOKENS = _counter("pecia_prompt_tokens", "Tokens the engine read.", ["engine"])
CACHED_TOKENS = _counter(
    "pecia_cached_tokens", "Of these, tokens that its prefix cache held already.", ["engine"]
)
OUTPUT_TOKENS = _counter("pecia_output_tokens", "Tokens the engine wrote.", ["engine"])
WASTED_TOKENS = _counter(
    "pecia_wasted_tokens", "Tokens of readings that were thrown away and of attempts that failed.", ["engine"]
)

ENGINE_RUNNING = _gauge("pecia_engine_running_requests", "Requests it works on.", ["engine"])
ENGINE_WAITING = _gauge("pecia_engine_waiting_requests", "Requests that wait inside the engine.", ["engine"])
ENGINE_PREPARING = _gauge(
    "pecia_engine_preparing_requests", "Requests that are made ready before they may enter.", ["engine"]
)
KV_USED = _gauge("pecia_engine_kv_cache_used_ratio", "Share of the KV cache in use.", ["engine"])
BUDGET_SHARE = _gauge(
    "pecia_engine_budget_share_ratio",
    "Share of the engine's budget for which it has memory; less than 1 after it ran out of it.",
    ["engine"],
)
PREEMPTIONS = _counter(
    "pecia_engine_preemptions", "Requests put back because the KV cache was full.", ["engine"]
)
DRAFTED = _counter("pecia_engine_draft_tokens", "Tokens that speculative decoding proposed.", ["engine"])
ACCEPTED = _counter(
    "pecia_engine_accepted_draft_tokens",
    "Of these, tokens that the model would have written itself: what the speculation saved.",
    ["engine"],
)
MISPRICED = _counter(
    "pecia_engine_mispriced_requests",
    "Requests whose prompt was not as long as their price said.",
    ["engine"],
)

UPKEEP_ACTIONS = _counter(
    "pecia_upkeep_actions", "What the steps of upkeep put right or ended; `relay`: parts published.", ["step"]
)
UPKEEP_FAILURES = _counter("pecia_upkeep_failures", "Steps of upkeep that failed, by the reason.", ["reason"])
WEBHOOKS = _counter(
    "pecia_webhook_attempts",
    "Tries to deliver a callback: `delivered`, `pending` (tried again) or `dead`, with those that grew too old or "
    "whose receiver is gone.",
    ["outcome"],
)
for _state in DeliveryState:
    WEBHOOKS.labels(_state)  # shown from the start: an increase from nothing to one is none
WEBHOOK_SECONDS = _histogram("pecia_webhook_seconds", "Seconds that one try took.", buckets=_SECONDS)

QUEUE_PARTS = _fleet(
    "pecia_queue_parts",
    "Parts that wait, in Redis and up to a hundred thousand in Postgres; `quarantine`: on which a worker died.",
    ["stage", "lane"],
)
QUEUE_OLDEST = _fleet(
    "pecia_queue_oldest_seconds", "How long the oldest part of a lane that could run has waited.", ["lane"]
)
LEASED_PARTS = _fleet("pecia_leased_parts", "Parts that run, as Postgres knows.")
STRANGE_MESSAGES = _fleet("pecia_strange_messages", "Messages in Redis that were none and were put aside.")
UNPUBLISHED = _fleet(
    "pecia_unpublished_parts",
    "Parts that could run and are not in Redis although their list is not half full: the relay's work.",
)
UNPUBLISHED_OLDEST = _fleet("pecia_unpublished_oldest_seconds", "How long the oldest of them has been due.")
DUE_WEBHOOKS = _fleet("pecia_due_webhooks", "Callbacks that are due and not being tried.")
DUE_WEBHOOKS_OLDEST = _fleet("pecia_due_webhooks_oldest_seconds", "How long the oldest of them has been due.")
PAUSED_RECEIVERS = _fleet(
    "pecia_paused_receivers",
    "Receivers for which callbacks wait that failed so often that one at a time tries them.",
)
REMOVALS = _fleet("pecia_documents_awaiting_removal", "Documents that every job has let go of.")
REMOVALS_OLDEST = _fleet("pecia_documents_awaiting_removal_oldest_seconds", "How long the oldest has waited.")
WORKERS = _fleet("pecia_workers_on_duty", "Processes heard of lately.", ["role"])
MEASURED = _fleet("pecia_measured_timestamp_seconds", "When upkeep looked all this up, since the epoch.")

GPU_USE = _gpu("pecia_gpu_utilization_ratio", "Share of time in which the GPU computed.", ["gpu"])
GPU_MEMORY_USED = _gpu("pecia_gpu_memory_used_bytes", "Memory in use, by all processes.", ["gpu"])
GPU_MEMORY = _gpu("pecia_gpu_memory_bytes", "Memory that it has.", ["gpu"])


@dataclass(frozen=True, slots=True)
class Condition:
    """A process's condition, in a word or two without ids."""

    ok: bool
    reason: str


class Health(Protocol):
    """Health of a process, for `/healthz` and `/readyz`."""

    def live(self) -> Condition:
        """Whether it makes progress or has nothing to do; otherwise it should be restarted."""
        ...

    def ready(self) -> Condition:
        """Whether it accepts work now."""
        ...


class Liveness:
    """Liveness of a service: when it last finished a step or looked for work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def beat(self) -> None:
        """Record a finished step or look."""
        self._last = self._clock()

    def live(self) -> Condition:
        """Return whether the last step is recent; a loop without any counts as starting."""
        if self._last is None:
            return Condition(ok=True, reason="starting")
        silent = self._clock() - self._last
        if silent > _STEP_S:
            return Condition(ok=False, reason=f"stalled for {silent:.0f} s")
        return Condition(ok=True, reason="working")

    def ready(self) -> Condition:
        """Return whether it has started and is live."""
        return self.live() if self._last is not None else Condition(ok=False, reason="starting")


LIVENESS = Liveness()
"""Liveness of this process, if it is a service without parts."""


class Holder(Protocol):
    """View of a worker's parts."""

    @property
    def held(self) -> int:
        """How many parts it holds."""
        ...

    @property
    def moved_at(self) -> float:
        """When it last claimed, finished or requeued a part, by the monotonic clock."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it has started and is not stopping."""
        ...


@dataclass(eq=False)
class WorkerHealth:
    """Health of a worker with parts. Checked every few seconds on a thread, so that requests never block."""

    holder: Holder
    backlog: Callable[[], int | None]
    """Returns how much waits that this worker could do; None: Redis is away."""
    database_answers: Callable[[], bool]
    hold_limit_s: float
    """How long a part may be held."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._excused_at = self.clock()
        self._redis_answers = True
        self._stalled = False

    def watch(self) -> None:
        """Start the checks, on a thread of their own, until the process ends."""
        threading.Thread(target=self._keep_looking, name="health", daemon=True).start()

    def live(self) -> Condition:
        """Return what the last look found."""
        if not self.holder.is_open:
            return Condition(ok=True, reason="starting or stopping")
        if self._stalled:
            return Condition(ok=False, reason=f"stalled for {self._still():.0f} s")
        return Condition(ok=True, reason="working" if self.holder.held else "idle")

    def ready(self) -> Condition:
        """Return whether the worker claims."""
        if not self.holder.is_open:
            return Condition(ok=False, reason="starting or stopping")
        if not self._redis_answers:
            return Condition(ok=False, reason="Redis does not answer")
        return self.live()

    def look(self) -> None:
        """Judge once."""
        if not self.holder.is_open:
            self._excused_at = self.clock()
            return
        waiting = self.backlog()
        self._redis_answers = waiting is not None
        nothing_to_do = waiting is None or not (waiting or self.holder.held)
        if nothing_to_do or (self._is_overdue() and not self.database_answers()):
            self._excused_at = self.clock()
        self._stalled = self._is_overdue()

    def _still(self) -> float:
        return self.clock() - max(self._excused_at, self.holder.moved_at)

    def _is_overdue(self) -> bool:
        """Return whether nothing moved for too long; one part alone may take all the time that parts have."""
        return self._still() > _TIMEOUT_S + (self.hold_limit_s if self.holder.held else 0.0)

    def _keep_looking(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  a look that fails says nothing about the worker
                log.warning("health_unknown", error=type(error).__name__)
            time.sleep(_HEALTH_EVERY_S)
