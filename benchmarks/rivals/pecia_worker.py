"""Pecia's own engine worker, with an engine that answers at once, or after a while, and no document to decode."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import numpy as np

from pecia_schemas.blocks import plain_blocks
from pecia_schemas.results import Page
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_schemas.tasks import DocumentType
from pecia_schemas.tracing import exported
from pecia_workers.app import app, worker_argv
from pecia_workers.batching.batcher import Priced
from pecia_workers.protocol.base import Budget, Engine, EngineRequest
from pecia_workers.protocol.parts import ClaimedPart, Done
from pecia_workers.worker.runtime import Runtime
from pecia_workers.worker.stages import Stages

PIXEL = np.zeros((1, 1, 3), np.uint8)


class AnswerAtOnce:
    """The read stage without fetching and decoding: what is left is the way from claim to committed row."""

    def __init__(self, engine: Engine, work_s: float) -> None:
        self._engine = engine
        self._work_s = work_s

    async def __call__(self, part: ClaimedPart) -> Done:
        if self._work_s:
            await asyncio.sleep(self._work_s)
        request = EngineRequest(id=str(part.id), images=(PIXEL,), workload=DocumentType.MIXED)
        answer = await self._engine.generate(request)
        page = Page(
            number=part.ordinal + 1,
            blocks=plain_blocks(answer.text),
            verdict=answer.verdict,
            width=1,
            height=1,
            engine="instant",
        )
        return Done(page)


class InstantStages(Stages):
    work_s = 0.0

    async def start(self, priced: Priced) -> Budget:  # noqa: ARG002
        assert self.engine is not None  # noqa: S101
        await self.engine.start()
        self.handlers[Stage.READ] = AnswerAtOnce(self.engine, self.work_s)
        return self.engine.budget


class BenchmarkRuntime(Runtime):
    stages = InstantStages


def run(*, slots: int = 0, work_s: float = 0, lease_s: int = 0) -> None:
    """Be the worker until stopped: so many parts at a time, each so long; 0: as it comes."""
    asked: dict[str, Any] = {}
    if slots:
        asked["max_in_flight"] = slots
    if lease_s:
        asked["lease"] = timedelta(seconds=lease_s)
    settings = WorkerSettings(engine="simulated:instant", **asked)
    InstantStages.work_s = work_s
    app.use(settings)
    app.new_runtime = lambda: BenchmarkRuntime(settings, app.stages)
    app.conf.worker_send_task_events = False  # as stock Celery has it
    with exported(settings, "pecia-engine"):
        app.worker_main([*worker_argv([Stage.READ], settings), "--loglevel=WARNING"])


if __name__ == "__main__":
    run()
