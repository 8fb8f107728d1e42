"""vLLM's processes come and go with their worker, whatever happens to either."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import small_worker
from pecia_schemas.results import Verdict
from pecia_workers.protocol.base import Engine, EngineDeadError, EngineUnavailableError
from small_worker import LONG, under_way
from tests.shared.limits import eventually

Processes = Callable[..., list[psutil.Process]]


@pytest.fixture(autouse=True)
def _none_is_left(engine_processes: Processes) -> Iterator[None]:
    yield
    assert not engine_processes()


@pytest.fixture
def worker(endless_checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, small_worker.__file__, str(endless_checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def said(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout
    for line in worker.stdout:
        if not line.startswith(("INFO", "WARNING", "(")):  # vLLM logs to the same place
            return line.strip()
    pytest.fail("the worker ended")


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
def test_a_stop_ends_the_start(make_vllm: Callable[..., Engine], endless_checkpoint: Path) -> None:
    async def story() -> int | None:
        engine, former = make_vllm(endless_checkpoint), set(multiprocessing.active_children())
        starting = asyncio.create_task(engine.start())
        while not (cores := set(multiprocessing.active_children()) - former):  # noqa: ASYNC110  they wake no one
            await asyncio.sleep(0.02)
        (core,) = cores
        starting.cancel()
        await engine.stop()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return core.exitcode

    assert asyncio.run(story()) == -signal.SIGKILL, "it was loaded to its end"


@pytest.mark.usefixtures("spawned_cores")
def test_a_core_that_ends_while_it_is_killed_fails_no_stop(
    make_vllm: Callable[..., Engine],
    endless_checkpoint: Path,
    engine_processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(process: psutil.Process, *, recursive: bool) -> list[psutil.Process]:
        looked.append(recursive)
        process.kill()
        process.wait()
        raise psutil.NoSuchProcess(process.pid)

    async def story() -> None:
        engine = make_vllm(endless_checkpoint)
        await engine.start()
        for process in engine_processes():
            process.suspend()  # so that vLLM has to kill it
        with monkeypatch.context() as patched:
            patched.setattr(psutil.Process, "children", ends)
            await engine.stop()

    looked: list[bool] = []
    asyncio.run(story())
    assert looked


@pytest.mark.usefixtures("spawned_cores")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"kv_cache_bytes": 1 << 20},
            r"KV cache is too small: .*PECIA_MAX_MODEL_LEN=2048 .* enough for \d+ tokens",
        ),
        ({"quantization": "unknown"}, "PECIA_QUANTIZATION=unknown is not what the checkpoint"),
    ],
    ids=["said by the core", "said in our process"],
)
def test_what_keeps_it_from_starting_is_said_in_a_sentence(
    make_vllm: Callable[..., Engine], checkpoint: Path, settings: dict[str, Any], sentence: str
) -> None:
    async def story() -> None:
        engine = make_vllm(checkpoint, **settings)
        with pytest.raises(EngineUnavailableError, match=sentence):
            await engine.start()
        await engine.stop()

    asyncio.run(story())


def test_nothing_of_the_engine_outlives_a_killed_worker(
    worker: subprocess.Popen[str], engine_processes: Processes
) -> None:
    assert said(worker) == "reading"
    processes = engine_processes(worker.pid)
    assert processes

    worker.kill()
    worker.wait()

    eventually(
        lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes),
        what="the end of the engine's processes",
    )


def test_ctrl_c_reaches_the_worker_alone(worker: subprocess.Popen[str]) -> None:
    assert said(worker) == "reading"
    os.killpg(worker.pid, signal.SIGINT)
    assert said(worker) == "interrupted"
    assert said(worker) in ("truncated", "repetition"), "the engine did not read to the end"
    assert worker.wait() == 0
