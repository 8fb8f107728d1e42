"""vLLM's processes come and go with their worker, whatever happens to either."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from pecia_schemas import Verdict
from pecia_workers.engines import Engine, EngineDeadError, EngineUnavailableError
from small_worker import LONG, under_way, work

Processes = Callable[..., list[psutil.Process]]
Worker = tuple[BaseProcess, Connection]


@pytest.fixture(autouse=True)
def _none_is_left(engine_processes: Processes) -> Iterator[None]:
    yield
    assert not engine_processes()


@pytest.fixture
def worker(fork_server: ForkServerContext, endless_checkpoint: Path) -> Iterator[Worker]:
    """A worker that reads one page, in a process group of its own, and where it tells of it."""
    here, there = multiprocessing.Pipe()
    process = fork_server.Process(target=work, args=(str(endless_checkpoint), there))
    process.start()
    there.close()
    yield process, here
    process.kill()
    process.join()


@pytest.mark.usefixtures("spawned_cores")
def test_the_death_of_the_core_is_told_and_a_new_engine_can_follow(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path, engine_processes: Processes
) -> None:
    async def story() -> None:
        engine = make_vllm(endless_checkpoint)
        await engine.start()
        reading = asyncio.create_task(engine.generate(LONG))
        await under_way(engine)
        for process in engine_processes():
            process.kill()
        with pytest.raises(EngineDeadError):
            await reading
        with pytest.raises(EngineDeadError):
            engine.load()
        with pytest.raises(EngineDeadError):
            await engine.generate(LONG)
        await engine.stop()
        await engine.start()
        assert (await engine.generate(LONG)).verdict is not Verdict.UNREADABLE
        await engine.stop()

    asyncio.run(story())


@pytest.mark.usefixtures("spawned_cores")
def test_stopping_while_it_starts_ends_the_start(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path, engine_processes: Processes
) -> None:
    async def story() -> int | None:
        engine = make_vllm(endless_checkpoint)
        starting = asyncio.create_task(engine.start())
        while not engine_processes():  # noqa: ASYNC110  they ring no bell
            await asyncio.sleep(0.02)
        (core,) = multiprocessing.active_children()
        starting.cancel()
        await engine.stop()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return core.exitcode

    assert asyncio.run(story()) == -signal.SIGKILL, "it was loaded to its end"


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
    worker: Worker, engine_processes: Processes, eventually: Callable[..., object]
) -> None:
    process, told = worker
    assert told.recv() == "reading"
    processes = engine_processes(process.pid)
    assert processes

    process.kill()

    eventually(
        lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes),
        what="the end of the engine's processes",
    )


def test_ctrl_c_reaches_the_worker_alone(worker: Worker) -> None:
    process, told = worker
    assert told.recv() == "reading"
    assert process.pid

    os.killpg(process.pid, signal.SIGINT)

    assert told.recv() == "interrupted"
    assert told.recv() in (Verdict.TRUNCATED, Verdict.REPETITION), "the engine did not read to the end"
    process.join()
    assert process.exitcode == 0
