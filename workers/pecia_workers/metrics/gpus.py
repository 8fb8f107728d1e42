"""What the NVIDIA driver says of the GPUs that this process may use; nothing without a driver or `nvidia-ml-py`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from pecia_workers.metrics.declared import GPU_MEMORY, GPU_MEMORY_USED, GPU_USE, GPUS

if TYPE_CHECKING:
    from prometheus_client import Metric


class GpuCollector(Collector):
    """Asks the driver at each request for the metrics."""

    def __init__(self, nvml: Any, visible: Iterable[str]) -> None:
        """Take NVML as the module `pynvml` binds it, and the ids of the GPUs to look at."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in visible]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. What the driver does not tell of a card, or of a slice of one, is left out."""
        for handle in self._handles:
            try:
                index = str(self._nvml.nvmlDeviceGetIndex(handle))
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                GPU_MEMORY.labels(index).set(memory.total)
                GPU_MEMORY_USED.labels(index).set(memory.used)
                use = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                GPU_USE.labels(index).set(use)
            except self._nvml.NVMLError:
                continue
        return GPUS.collect()


def gpu_collector(visible: Iterable[str]) -> GpuCollector | None:
    """Return a collector for these GPUs, or None where the driver cannot be asked."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return GpuCollector(nvml, visible)
    except nvml.NVMLError:
        return None
