"""Which GPUs this process may use, as the driver's own tool tells: nothing here loads CUDA or torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from pecia_schemas.settings import WorkerSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA and vLLM look at, and so do we."""

_ASK = ("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_PATIENCE_S = 20.0  # without its persistence daemon a driver wakes every card first
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or a slice of one."""

    handle: str
    """What `CUDA_VISIBLE_DEVICES` calls it."""
    name: str
    memory_bytes: int
    """0: unknown."""


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` leaves to this process, in its order; none without a driver."""
    gpus = _all_gpus()
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return gpus
    return tuple(gpu for entry in visible.split(",") if (gpu := _called(entry.strip(), gpus)))


def shares(gpus: Sequence[Gpu], together: int) -> list[str]:
    """Return `CUDA_VISIBLE_DEVICES` for each worker, `together` GPUs in each; the rest stays unused."""
    handles = [gpu.handle for gpu in gpus]
    last = len(handles) - together + 1
    return [",".join(handles[first : first + together]) for first in range(0, last, together)]


def tensor_parallel(settings: WorkerSettings) -> int:
    """Return how many GPUs share each layer of one model."""
    return int(settings.engine_options.get("tensor_parallel_size") or settings.tensor_parallel_size or 1)


def gpus_per_worker(settings: WorkerSettings) -> int:
    """Return how many GPUs share one model."""
    return tensor_parallel(settings) * int(settings.engine_options.get("pipeline_parallel_size") or 1)


def _all_gpus() -> tuple[Gpu, ...]:
    try:
        told = subprocess.run(_ASK, check=True, capture_output=True, text=True, timeout=_PATIENCE_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = (line.split(", ") for line in told.splitlines())
    return tuple(
        Gpu(handle=uuid, name=name, memory_bytes=int(memory) * _MIB if memory.isdecimal() else 0)
        for uuid, name, memory in rows
    )


def _called(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return what CUDA takes for this entry: an index, the beginning of an id, or a slice that only its id tells."""
    if entry.isdecimal():
        index = int(entry)
        return gpus[index] if index < len(gpus) else None
    if entry.startswith("MIG-") and gpus:
        return Gpu(handle=entry, name="MIG", memory_bytes=0)
    return next((gpu for gpu in gpus if entry and gpu.handle.startswith(entry)), None)
