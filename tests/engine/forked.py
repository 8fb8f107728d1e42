"""What the tests' fork server imports, once: a core of vLLM that is forked from it starts in a second, not in fifteen.

Everything that a core imports is vLLM's own, and so is the core. The server passes no environment on, so the guard that
looks for the core's parent would find the server: the kernel ends forked processes with the server instead.
"""

import ctypes
import gc
import os
import signal

import vllm.entrypoints.launchers.api_server.entry
import vllm.entrypoints.llm
import vllm.model_executor.layers.quantization.online.base
import vllm.model_executor.models.qwen2_5_vl
import vllm.v1.engine.core
import vllm.v1.executor.uniproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401  imported so that no forked process has to

_PR_SET_PDEATHSIG = 1


def _end_with_the_server() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


os.register_at_fork(after_in_child=_end_with_the_server)
gc.freeze()  # no collection in a forked process goes through all that was imported, or copies its memory
