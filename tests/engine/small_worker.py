"""`python small_worker.py CHECKPOINT`: a worker in small. It says when it reads, and how the answer ended."""

import asyncio
import signal
import sys

from offline import KV_CACHE_BYTES, SIZES, asked
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.registry import create_engine
from pecia_workers.protocol.base import Engine

LONG = asked(0, id="long", workload=DocumentType.CHART, max_output_tokens=1500)


async def under_way(engine: Engine) -> None:
    while not engine.load().running:  # noqa: ASYNC110  an engine wakes no one
        await asyncio.sleep(0.01)


def _tell(word: str) -> None:
    print(word, flush=True)  # noqa: T201  what reads it waits for each line


async def _work(model: str) -> None:
    engine = create_engine(WorkerSettings(engine="vllm", model=model, kv_cache_bytes=KV_CACHE_BYTES, **SIZES))
    await engine.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _tell, "interrupted")
    reading = asyncio.create_task(engine.generate(LONG))
    await under_way(engine)
    _tell("reading")
    _tell((await reading).verdict)
    await engine.stop()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
