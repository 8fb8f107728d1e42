"""A worker in small, for a process of its own: it says when it reads, and how the answer ended."""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection

from offline import INSTRUCTION, KV_CACHE_BYTES, SIZES, picture
from pecia_schemas import DocumentType
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import Engine, EngineRequest, create_engine

LONG = EngineRequest(
    id="long",
    images=(picture(0),),
    workload=DocumentType.CHART,
    instruction=INSTRUCTION,
    max_output_tokens=1500,
)


def work(model: str, told: Connection) -> None:
    """Read one page, in a process group of its own."""
    os.setsid()
    asyncio.run(_work(model, told))


async def under_way(engine: Engine) -> None:
    """Return when the engine has begun to read."""
    while not engine.load().running:  # noqa: ASYNC110  an engine rings no bell
        await asyncio.sleep(0.01)


async def _work(model: str, told: Connection) -> None:
    engine = create_engine(WorkerSettings(engine="vllm", model=model, kv_cache_bytes=KV_CACHE_BYTES, **SIZES))
    await engine.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told.send, "interrupted")
    reading = asyncio.create_task(engine.generate(LONG))
    await under_way(engine)
    told.send("reading")
    told.send((await reading).verdict)
    await engine.stop()
