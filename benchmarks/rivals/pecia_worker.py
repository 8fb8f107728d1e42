"""Pecia's own engine worker, with an engine that answers at once and no document to decode."""

from __future__ import annotations

import numpy as np

from pecia_schemas import DocumentType, Page, Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.app import app, worker_argv
from pecia_workers.batching.batcher import Priced
from pecia_workers.engines.base import Budget, Engine, EngineRequest
from pecia_workers.ledger import ClaimedPart, Done
from pecia_workers.runtime import Runtime

PIXEL = np.zeros((1, 1, 3), np.uint8)


class AnswerAtOnce:
    """The read stage without fetching and decoding: what is left is the way from claim to committed row."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, part: ClaimedPart) -> Done:
        request = EngineRequest(id=str(part.id), images=(PIXEL,), workload=DocumentType.MIXED)
        answer = await self._engine.generate(request)
        page = Page(
            number=part.ordinal + 1,
            text=answer.text,
            verdict=answer.verdict,
            width=1,
            height=1,
            engine="instant",
        )
        return Done(page)


class BenchmarkRuntime(Runtime):
    async def _start_stages(self, engine: Engine | None, priced: Priced) -> Budget:  # noqa: ARG002
        assert engine is not None  # noqa: S101
        await engine.start()
        self._handlers[Stage.READ] = AnswerAtOnce(engine)
        return engine.budget


if __name__ == "__main__":
    settings = WorkerSettings(engine="simulated:instant")
    app.use(settings)
    app.new_runtime = lambda: BenchmarkRuntime(settings, app.stages)
    app.conf.worker_send_task_events = False  # as stock Celery has it
    app.worker_main([*worker_argv([Stage.READ], settings), "--loglevel=WARNING"])
