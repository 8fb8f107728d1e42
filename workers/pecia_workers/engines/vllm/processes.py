"""vLLM's own processes: what they inherit, which signals reach them, and that none outlives its worker."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Final

_GUARDED: Final = "_PECIA_GUARDS_ENGINE"
_LAST_WORDS: Final = "_PECIA_ENGINE_LAST_WORDS"
_LOOK_S: Final = 1.0
_GRACE_S: Final = 6.0
_NO_REPORTS: Final = ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY")
"""By each of these vLLM or a library below it is told to send nothing to its maker."""
_CORE: Final = "EngineCore"  # the name vLLM gives to the process that holds the scheduler


def prepare_environment(log_level: str, *, on_cpu: bool) -> None:
    """Set what vLLM reads from the environment; before it is imported. What an operator has set stays."""
    os.environ.update(engine_environment(log_level, on_cpu=on_cpu))


def engine_environment(log_level: str, *, on_cpu: bool) -> dict[str, str]:
    """Return what a process that runs vLLM shall have in its environment. What an operator has set stays."""
    wanted = {"VLLM_LOGGING_LEVEL": log_level.upper()} | dict.fromkeys(_NO_REPORTS, "1")
    if on_cpu:
        # The scheduler computes by itself, as on one GPU: a second process would only spin on a core while it waits.
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # Then vLLM does not bound the threads as it should: its own bound leaves one core to us as well.
        wanted["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) - 1))
    kept = {name: os.environ.get(name, value) for name, value in wanted.items()}
    # A forked child would hang on the locks and the OpenMP threads of ours, and would not load the guard.
    return kept | {_GUARDED: "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


@contextlib.contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Children that this thread starts meanwhile ignore SIGINT: Ctrl-C reaches the whole group, but draining is ours.

    Source: a mask of blocked signals is inherited through fork and exec, signal(7).
    """
    resource_tracker.ensure_running()  # it would unblock SIGINT in this thread if it started later
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextlib.contextmanager
def cores_last_words() -> Iterator[None]:
    """Note on an exception which errors the engine's processes logged: vLLM's own message says `see above`."""
    with tempfile.NamedTemporaryFile("r", prefix="pecia-engine-") as words:
        os.environ[_LAST_WORDS] = words.name
        try:
            yield
        except Exception as error:
            if logged := words.read().splitlines():
                error.add_note("; ".join(logged))
            raise
        finally:
            del os.environ[_LAST_WORDS]


class _LastWords(logging.Handler):
    """Appends errors to the file, as long as it is there: once the engine runs, they may quote a request."""

    def __init__(self, file: str) -> None:
        super().__init__(logging.ERROR)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info and record.exc_info[1]
        if not error:
            return
        with contextlib.suppress(OSError):
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND)
            os.write(file, f"{error_line(error)}\n".encode())
            os.close(file)


def error_line(error: BaseException) -> str:
    """Return an error on one line, as the last one of a traceback."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def kill_cores() -> None:
    """End the engine processes of this process at once: one that is still loading listens to nothing else."""
    for child in multiprocessing.active_children():
        if child.name.startswith(_CORE):
            child.kill()


def guard() -> None:
    """Have this process end when its parent has, and say why if it cannot start; if it is one of an engine of Pecia's.

    vLLM calls this in each of its processes (entry point `vllm.general_plugins`): by itself it would live on, and hold
    the GPU, after its worker was killed.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or _GUARDED not in os.environ:
        return
    if words := os.environ.get(_LAST_WORDS):
        logging.getLogger("vllm").addHandler(_LastWords(words))
    threading.Thread(target=_end_after, args=(parent.pid,), name="orphan-guard", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)  # a core ends its own children in order
    time.sleep(_GRACE_S)
    os._exit(1)
