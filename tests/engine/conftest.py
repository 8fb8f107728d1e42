"""Real vLLM on tiny checkpoints: `make test-engine` brings both."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import offline
from checkpoints import make_checkpoint, quantize
from fleets import fleet_of
from offline import KV_CACHE_BYTES, SIZES
from pecia import Client
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.registry import create_engine
from pecia_workers.engines.vllm.processes import engine_environment
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.protocol.base import Engine

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""Of one test: on a busy machine the import of vLLM alone takes a minute, and some tests have it imported thrice."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.shared.servers")
    # vLLM leaves a context of its sockets to the garbage collector, which may come after the last test.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process of pytest have vLLM, with all tests that ask engines of its own.

    vLLM and torch warn of much, in our process too: that is theirs to mend.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("engines"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def _avx512() -> None:
    """Some of vLLM's kernels for the CPU are built for AVX-512 alone."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("vLLM's kernels for 4-bit weights and 8-bit caches need a CPU with AVX-512")


@pytest.fixture(scope="session")
def awq_checkpoint(_avx512: None, checkpoint: Path) -> Path:
    """The same in 4 bits."""
    return quantize(checkpoint, checkpoint.with_name("tiny-awq"))


@pytest.fixture(scope="session")
def gptq_checkpoint(_avx512: None, checkpoint: Path) -> Path:
    """The same in 4 bits, as AutoGPTQ writes them."""
    return quantize(checkpoint, checkpoint.with_name("tiny-gptq"), "gptq")


@pytest.fixture(scope="session")
def endless_checkpoint(checkpoint: Path) -> Path:
    """One whose answers are as long as they may be."""
    return make_checkpoint(checkpoint.with_name("endless"), endless=True)


@pytest.fixture(scope="session")
def looping_checkpoint(checkpoint: Path) -> Path:
    """One that says the same for ever."""
    return make_checkpoint(checkpoint.with_name("looping"), loops=True)


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    """Starts processes that have imported vLLM. They are forked from one that has no threads, as ours has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forked"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment("warning", on_cpu=True).items():
            patch.setenv(name, value)
        patch.delenv("_PECIA_GUARDS_ENGINE")
        patch.setenv("PYTHONPATH", str(HERE))  # Python 3.11's server does not take our path over
        forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def _forked_cores(fork_server: ForkServerContext) -> Iterator[None]:
    """Cores of engines in this process start in a second."""
    os.environ.update(engine_environment("warning", on_cpu=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: fork_server)
        yield


@pytest.fixture
def spawned_cores(_forked_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores start as the product starts them, for tests of how they start and end."""
    spawn = multiprocessing.get_context("spawn")
    monkeypatch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: spawn)


@pytest.fixture(scope="session")
def make_vllm(_forked_cores: None) -> Callable[..., Engine]:
    """Makes engines, small enough to start in seconds; not started."""

    def make(model: Path, **settings: Any) -> Engine:
        usual = {**SIZES, "kv_cache_bytes": KV_CACHE_BYTES, "log_level": "warning"}
        return create_engine(WorkerSettings(engine="vllm", model=str(model), **{**usual, **settings}))

    return make


@pytest.fixture(scope="session")
def answers_offline(
    fork_server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path, str], list[dict[str, Any]]]:
    """Asks vLLM's offline API, once for each model and dtype, in a process of its own."""

    @cache
    def ask(model: Path, dtype: str) -> list[dict[str, Any]]:
        answers = tmp_path_factory.mktemp("offline") / "answers.json"
        asking = fork_server.Process(target=offline.write_answers, args=(str(model), dtype, answers))
        asking.start()
        asking.join()
        assert asking.exitcode == 0
        told: list[dict[str, Any]] = json.loads(answers.read_text())
        return told

    return ask


@pytest.fixture(scope="session")
def fleet(session_directory: Path, endless_checkpoint: Path) -> Iterator[tuple[LocalFleet, Client]]:
    """A fleet in which a page is dead after two deaths, and whose answers are as long as they may be."""
    with fleet_of(
        session_directory / "fleet",
        endless_checkpoint,
        engine_options={"dtype": "float32"},
        max_deaths=2,
        video_segment=timedelta(seconds=2),
        video_frames=6,
    ) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def engine_processes() -> Callable[..., list[psutil.Process]]:
    """Finds vLLM's processes below one, or below this."""
    return _engine_processes


def _engine_processes(pid: int | None = None) -> list[psutil.Process]:
    """Return the core and its workers: Python's spawned children, which soon give themselves a title."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and _is_of_vllm(child)]


def _is_of_vllm(process: psutil.Process) -> bool:
    try:
        return any("VLLM::" in word or "spawn_main" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
