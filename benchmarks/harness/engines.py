"""Real vLLM in this process, on checkpoints with random weights that are made here."""

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.registry import create_engine
from pecia_workers.protocol.base import Engine

_MAKER = Path(__file__).parents[2] / "tests" / "engine" / "checkpoints.py"


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
