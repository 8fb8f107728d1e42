"""vLLM's processes come and go with their worker, whatever happens to either."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from offline import INSTRUCTION, KV_CACHE_BYTES, SIZES, picture
from pecia_schemas import DocumentType, Verdict
from pecia_workers.engines import Engine, EngineDeadError, EngineRequest, EngineUnavailableError

Processes = Callable[..., list[psutil.Process]]

LONG = EngineRequest(
    id="long",
    images=(picture(0),),
    workload=DocumentType.CHART,
    instruction=INSTRUCTION,
    max_output_tokens=1500,
)

WORKER = f"""
import asyncio, signal, sys
from pecia_schemas import DocumentType
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import EngineRequest, create_engine
sys.path.insert(0, {str(Path(__file__).parent)!r})
from offline import INSTRUCTION, picture

async def main():
    settings = WorkerSettings(engine="vllm", model=sys.argv[1], kv_cache_bytes={KV_CACHE_BYTES}, **{SIZES!r})
    engine = create_engine(settings)
    await engine.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: print("interrupted", flush=True))
    request = EngineRequest(id="1", images=(picture(0),), workload=DocumentType.CHART, instruction=INSTRUCTION,
                            max_output_tokens=1500)
    reading = asyncio.create_task(engine.generate(request))
    while not engine.load().running:
        await asyncio.sleep(0.01)
    print("reading", flush=True)
    print((await reading).verdict, flush=True)
    await engine.stop()

if __name__ == "__main__":
    asyncio.run(main())
"""
"""A worker in small: it says when it reads, and how the answer ended."""


@pytest.fixture
def worker(tmp_path: Path, endless_checkpoint: Path) -> subprocess.Popen[str]:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    return subprocess.Popen(
        [sys.executable, program, str(endless_checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


async def under_way(engine: Engine) -> None:
    while not engine.load().running:  # noqa: ASYNC110  an engine rings no bell
        await asyncio.sleep(0.01)


def said(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout
    for line in worker.stdout:
        if not line.startswith(("INFO", "WARNING", "(")):  # vLLM logs to the same place
            return line.strip()
    pytest.fail("the worker ended")


def test_the_death_of_the_core_is_told_at_once_and_a_new_engine_can_follow(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path, engine_processes: Processes
) -> None:
    async def story() -> None:
        engine = make_vllm(endless_checkpoint)
        await engine.start()
        reading = asyncio.create_task(engine.generate(LONG))
        await under_way(engine)
        begun = time.monotonic()
        for process in engine_processes():
            process.kill()
        with pytest.raises(EngineDeadError):
            await reading
        assert time.monotonic() - begun < 5
        with pytest.raises(EngineDeadError):
            engine.load()
        with pytest.raises(EngineDeadError):
            await engine.generate(LONG)
        await engine.stop()
        await engine.start()
        assert (await engine.generate(LONG)).verdict is not Verdict.UNREADABLE
        await engine.stop()

    asyncio.run(story())


def test_stopping_while_it_starts_ends_the_start(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path, engine_processes: Processes
) -> None:
    async def story() -> float:
        engine = make_vllm(endless_checkpoint)
        starting = asyncio.create_task(engine.start())
        while not engine_processes():  # noqa: ASYNC110  they ring no bell
            await asyncio.sleep(0.02)
        begun = time.monotonic()
        starting.cancel()
        await engine.stop()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return time.monotonic() - begun

    assert asyncio.run(story()) < 8


def test_a_model_that_is_not_there_is_said_in_a_sentence(
    make_vllm: Callable[..., Engine], tmp_path: Path
) -> None:
    async def story() -> None:
        engine = make_vllm(tmp_path / "nothing")
        with pytest.raises(EngineDeadError, match=r"vLLM did not start: .*nothing"):
            await engine.start()
        await engine.stop()

    asyncio.run(story())


def test_an_unknown_option_is_refused_with_the_nearest_one(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path
) -> None:
    async def story() -> None:
        engine = make_vllm(endless_checkpoint, engine_options={"tensor_paralel_size": 2})
        with pytest.raises(EngineUnavailableError, match="did you mean 'tensor_parallel_size'"):
            await engine.start()
        await engine.stop()

    asyncio.run(story())


def test_nothing_of_the_engine_outlives_a_killed_worker(
    worker: subprocess.Popen[str], engine_processes: Processes, eventually: Callable[..., object]
) -> None:
    assert said(worker) == "reading"
    processes = engine_processes(worker.pid)
    assert processes

    worker.kill()
    worker.wait()

    eventually(
        lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes),
        timeout=12,
        what="the end of the engine's processes",
    )


def test_ctrl_c_reaches_the_worker_alone(worker: subprocess.Popen[str]) -> None:
    assert said(worker) == "reading"

    os.killpg(worker.pid, signal.SIGINT)

    assert said(worker) == "interrupted"
    assert said(worker) in ("truncated", "repetition"), "the engine did not read to the end"
    assert worker.wait(30) == 0
