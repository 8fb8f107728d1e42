"""What the stages and the engine did, put into the metrics. Cheap: a few additions for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecia_schemas import Page
from pecia_workers.engines.base import Load
from pecia_workers.ledger.commit import Cut, Done, Failed
from pecia_workers.metrics import declared as metrics

if TYPE_CHECKING:
    from pecia_workers.engines.base import Generation
    from pecia_workers.ledger import ClaimedPart, Outcome


def begun(part: ClaimedPart) -> None:
    """Count an attempt, and how long the part had waited."""
    metrics.ATTEMPTS.labels(part.stage, part.lane).inc()
    metrics.QUEUED.labels(part.stage, part.lane).observe(part.queued_s)


def ended(part: ClaimedPart, outcome: Outcome, seconds: float, *, committed: bool) -> None:
    """Count what became of an attempt."""
    metrics.PART_SECONDS.labels(part.stage).observe(seconds)
    metrics.PARTS.labels(part.stage, _name(outcome) if committed else "lost").inc()
    if not committed:
        return
    match outcome:
        case Failed(failure=failure, spent=spent):
            metrics.FAILURES.labels(part.stage, failure.code).inc()
            if spent:
                metrics.WASTED_TOKENS.labels(spent.engine).inc(spent.in_vain.usage.wasted)
        case Done(content=content):
            metrics.WASTED_TOKENS.labels(content.engine).inc(content.usage.wasted)
            if isinstance(content, Page):
                metrics.PAGES.labels(content.engine, content.verdict).inc()


def _name(outcome: Outcome) -> str:
    match outcome:
        case Done() | Cut():
            return "done"
        case Failed(retry_in=None):
            return "failed"
        case Failed():
            return "retried"


def page_witnessed(by: str) -> None:
    """Count a page that was held against a witness, or that went without."""
    metrics.WITNESSED.labels(by).inc()


def admitted(requests: int, kv_used: float | None) -> None:
    """Note how full the engine is where requests were let in: with them how many, before them how much of its cache."""
    metrics.BATCH_SIZE.observe(requests)
    if kv_used is not None:
        metrics.BATCH_KV_USED.observe(kv_used)


def generated(engine: str, generation: Generation, seconds: float) -> None:
    """Count what one request took; `seconds` with its wait for room."""
    usage = generation.usage
    metrics.PROMPT_TOKENS.labels(engine).inc(usage.prompt)
    metrics.CACHED_TOKENS.labels(engine).inc(usage.cached)
    metrics.OUTPUT_TOKENS.labels(engine).inc(usage.output)
    metrics.ADMISSION_WAIT.observe(generation.waited_s)
    metrics.REQUEST_SECONDS.labels(engine).observe(max(0.0, seconds - generation.waited_s))
    if generation.first_token_s is not None:
        metrics.FIRST_TOKEN.labels(engine).observe(generation.first_token_s)


class EngineWatch:
    """Shows what an engine says of itself, of which some figures are sums since its start."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._last = Load(running=0, waiting=0)

    @property
    def kv_used(self) -> float | None:
        """Share of the KV cache's blocks in use at the last look, 0 to 1; None if the engine does not tell."""
        return self._last.kv_used

    def saw(self, load: Load, share: float) -> None:
        """Take over one look at the engine, and the share of its budget that may be used."""
        metrics.ENGINE_RUNNING.labels(self._engine).set(load.running)
        metrics.ENGINE_WAITING.labels(self._engine).set(load.waiting)
        if load.kv_used is not None:
            metrics.KV_USED.labels(self._engine).set(load.kv_used)
        metrics.ENGINE_PREPARING.labels(self._engine).set(load.preparing)
        metrics.BUDGET_SHARE.labels(self._engine).set(share)
        for counter, now, before in (
            (metrics.PREEMPTIONS, load.preemptions, self._last.preemptions),
            (metrics.DRAFTED, load.drafted, self._last.drafted),
            (metrics.ACCEPTED, load.accepted, self._last.accepted),
            (metrics.MISPRICED, load.drifted, self._last.drifted),
        ):
            counter.labels(self._engine).inc(max(0, now - before))
        self._last = load
