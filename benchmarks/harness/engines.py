"""Real vLLM, in this process or the programs of `rivals/`, on random weights that are made here, or on the reader."""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.slips import Slip, slips
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import visible_gpus
from pecia_workers.engines.registry import create_engine
from pecia_workers.engines.vllm.processes import engine_environment
from pecia_workers.protocol.base import Engine

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "rivals")]

from vllm_job import Answer, Job  # noqa: E402  programs of that directory import it by the same name

READER = ROOT / "tests" / "engine" / "reader"
"""A small model that reads slips."""
_MAKER = READER.with_name("checkpoints.py")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A checkpoint that is made here, and the memory of its KV cache."""

    hidden: int
    layers: int
    kv_cache_bytes: int


CHECKPOINTS = {
    "tiny": Made(hidden=256, layers=2, kv_cache_bytes=1 << 26),
    "115M": Made(hidden=1024, layers=12, kv_cache_bytes=1 << 28),
}
"""One whose time is overhead, one whose time is computing."""


def checkpoint(made: Made, directory: Path) -> Path:
    """Make it, and return its directory."""
    shape = ["--hidden", str(made.hidden), "--layers", str(made.layers)]
    command = [sys.executable, str(_MAKER), str(directory), *shape]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return directory


@asynccontextmanager
async def started(made: Made, **settings: Any) -> AsyncIterator[Engine]:
    """Run an engine on such a checkpoint."""
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        given = {
            "kv_cache_bytes": made.kv_cache_bytes,
            "enforce_eager": True,
            "log_level": "warning",
            **settings,
        }
        model = str(checkpoint(made, Path(scratch) / "checkpoint"))
        engine = create_engine(WorkerSettings(engine="vllm", model=model, **given))
        try:
            await engine.start()
            yield engine
        finally:
            await engine.stop()


def drawn_slips(seed: int, count: int, *, hardness: float = 0.7) -> Iterator[Slip]:
    """Yield slips for the reader, with the fonts of the directory BENCH_FONTS."""
    fonts = Path(os.environ.get("BENCH_FONTS") or "/usr/share/fonts")
    return slips(seed, count, fonts, hardness=hardness)


def run_side(program: str, job: Job, directory: Path) -> Answer:
    """Run a program of `rivals/` on a job, in the environment of the fleet's own engine worker."""
    job.write(directory / "job.json")
    paths = (ROOT / "benchmarks" / "rivals" / program, directory / "job.json", directory / "answer.json")
    environment = os.environ | engine_environment("warning", on_cpu=not visible_gpus())
    command = [sys.executable, *map(str, paths)]
    environment["HF_HUB_OFFLINE"] = "1"
    ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{program} ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    return Answer.read(directory / "answer.json")
