"""Real vLLM on tiny checkpoints: `make test-engine` brings both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpoints import make_checkpoint, quantize
from offline import KV_CACHE_BYTES, SIZES
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import Engine, create_engine

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """vLLM leaves a context of its sockets to the garbage collector, which may come after the last test."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM and torch warn of much, in our process too: that is theirs to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision-language model of two million parameters."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def awq_checkpoint(checkpoint: Path) -> Path:
    """The same in 4 bits."""
    return quantize(checkpoint, checkpoint.with_name("tiny-awq"))


@pytest.fixture(scope="session")
def endless_checkpoint(checkpoint: Path) -> Path:
    """One whose answers are as long as they may be."""
    return make_checkpoint(checkpoint.with_name("endless"), endless=True)


@pytest.fixture(scope="session")
def looping_checkpoint(checkpoint: Path) -> Path:
    """One that says the same for ever."""
    return make_checkpoint(checkpoint.with_name("looping"), loops=True)


@pytest.fixture(scope="session")
def make_vllm() -> Callable[..., Engine]:
    """Makes engines, small enough to start in seconds; not started."""

    def make(model: Path, **settings: Any) -> Engine:
        given = {
            **SIZES,
            "kv_cache_bytes": KV_CACHE_BYTES,
            "log_level": "warning",
            "model": str(model),
            **settings,
        }
        return create_engine(WorkerSettings(engine="vllm", **given))

    return make


@pytest.fixture(scope="session")
def answers_offline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], list[dict[str, Any]]]:
    """Asks vLLM's offline API, once for each model and dtype, in a process of its own."""

    @cache
    def ask(model: Path, dtype: str) -> list[dict[str, Any]]:
        answers = tmp_path_factory.mktemp("offline") / "answers.json"
        command = [sys.executable, str(HERE / "offline.py"), str(model), dtype, str(answers)]
        asked = subprocess.run(command, check=False, capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr[-3000:]
        told: list[dict[str, Any]] = json.loads(answers.read_text())
        return told

    return ask


@pytest.fixture
def engine_processes() -> Iterator[Callable[..., list[psutil.Process]]]:
    """Finds vLLM's processes below one; none of this process may be left when the test is over."""
    yield _engine_processes
    assert not _engine_processes()


def _engine_processes(pid: int | None = None) -> list[psutil.Process]:
    """Return the core and its workers: Python's spawned children, which soon give themselves a title."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and _is_of_vllm(child)]


def _is_of_vllm(process: psutil.Process) -> bool:
    try:
        return any("VLLM::" in word or "spawn_main" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
