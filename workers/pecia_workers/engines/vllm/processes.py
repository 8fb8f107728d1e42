"""vLLM's own processes: their arguments, failures of their start, and their end with the worker.

Problems visible in a checkpoint's files are found before vLLM is imported; other errors are those of vLLM and the Hub's
library. Imports no vLLM.
"""

import contextlib
import difflib
import json
import logging
import multiprocessing
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.engines.models import local_checkpoint, local_model
from pecia_workers.engines.profiles import GIB, profile_file
from pecia_workers.engines.reader_cards import Data, card_of, packaged
from pecia_workers.protocol.base import EngineDeadError, EngineUnavailableError, stages_served

_NAMES: Final = (
    *("model", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "quantization"),
    *("gpu_memory_utilization", "enforce_eager", "video_pruning_rate", "speculative_config"),
    "tensor_parallel_size",
)
"""Settings of the fleet that are vLLM arguments of the same names."""
_FIXED: Final[Mapping[str, Any]] = {
    "scheduling_policy": "priority",  # or vLLM refuses a request that has one
    "disable_log_stats": True,  # the fleet's own logger stays
    # One that was rendered and given up could not be asked again; and pages stay no longer than they are read.
    "mm_processor_cache_gb": 0,
    # Knows most of JSON Schema; and no model can fill its answer with line breaks instead of values.
    "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
}


def engine_arguments(settings: WorkerSettings, known: Collection[str]) -> dict[str, Any]:
    """Return the arguments for vLLM's engine; empty settings are left to the reader card or vLLM.

    `settings.engine_options` override all others. Raises `EngineUnavailableError` for an option that is not `known`.
    """
    for option in settings.engine_options:
        if option not in known:
            near = difflib.get_close_matches(option, sorted(known), n=1)
            fields = "they are the fields of vllm.engine.arg_utils.AsyncEngineArgs."
            hint = f"did you mean {near[0]!r}?" if near else fields
            raise EngineUnavailableError(
                f"PECIA_ENGINE_OPTIONS: {option!r} is no option of this vLLM: {hint}"
            )
    chosen = {name: getattr(settings, name) for name in _NAMES}
    chosen["kv_cache_memory_bytes"] = settings.kv_cache_bytes
    # A page; where clips are captioned one, or its frames if a model knows no video. What is not allowed takes no
    # memory: vLLM keeps as much as the largest that it allows.
    captions = Stage.CAPTION in stages_served(settings)
    chosen["limit_mm_per_prompt"] = {
        "image": settings.video_frames if captions else 1,
        "video": 1 if captions else 0,
    }
    if settings.adapters:
        # A slot for each and one more: on the CPU vLLM 0.32 gives requests without an adapter what is in the last
        # slot, so it must stay empty (vllm-project/vllm#48421).
        chosen |= {"enable_lora": True, "max_lora_rank": settings.max_lora_rank}
        chosen["max_loras"] = len(settings.adapters) + 1
    backend = settings.kv_offload_backend or "native"
    offloading = {"kv_offloading_size": settings.kv_offload_bytes / GIB, "kv_offloading_backend": backend}
    # It is the size that turns it on, though LMCache's server keeps a size of its own.
    is_offloading = settings.kv_offload_bytes or backend == "lmcache"
    return {
        **_FIXED,
        **{name: value for name, value in chosen.items() if value},
        **(offloading if is_offloading else {}),
        **card_of(settings.model, settings.card).engine_options,
        **settings.engine_options,
    }


_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json", "additional_chat_templates", "tekken.json")
"""Files that contain a chat template; `tekken.json` is Mistral's tokenizer, which needs none."""
_WITH_TEMPLATE: Final = ("tokenizer_config.json", "processor_config.json")
"""Files that may contain a template under `chat_template`."""
VLLM_TEMPLATES: Final = frozenset(
    {
        *("blip-2", "clip", "colpali", "deepseek_ocr", "deepseek_ocr2", "deepseek_vl_v2", "minicpmv"),
        *("minicpmv4_6", "minicpmv4_7", "paligemma", "siglip", "siglip2", "unlimited-ocr", "unlimited_ocr"),
    }
)
"""Families for which vLLM has a template."""
_OTHER_TOKENIZER: Final = ("tokenizer", "tokenizer_mode", "trust_remote_code")
"""Engine options with which the template may come from elsewhere."""
_FORMATS: Final = ("awq", "gptq", "compressed-tensors", "fp8")
_AT_LOAD: Final = "fp8"
_QUANTIZATION_FILES: Final = ("quant_config.json", "quantize_config.json")
"""Files in which old checkpoints declare their quantisation."""
_WHOLE_HASH: Final = "def mm_hash_to_token_values("
"""Attribute of an LMCache that keys pictures by their whole hash instead of 16 bits; its version does not tell."""
_TRUE: Final = ("1", "ON", "YES", "TRUE")
_NAMED: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""A name on the Hub; anything else is a path."""


class _Failure(Data):
    said: str
    sentence: str


class _Failures(Data):
    failures: tuple[_Failure, ...]


def check_model(settings: WorkerSettings) -> None:
    """Raise `EngineUnavailableError` for a model that vLLM could not run. Nothing is loaded or downloaded."""
    if not settings.model:
        raise EngineUnavailableError(
            f"The engine {settings.engine!r} needs a model:"
            " set PECIA_MODEL to a directory or a name on the Hugging Face Hub."
        )
    # What is known to lead nowhere. Every other name is vLLM's to judge, which takes those of plugins too.
    if advice := profile_file().refused.get(settings.quantization.lower().replace("-", "_")):
        raise EngineUnavailableError(
            f"PECIA_QUANTIZATION={settings.quantization}: {advice}. (PECIA_ENGINE_OPTIONS passes a `quantization` on"
            " unchecked.)"
        )
    if settings.kv_offload_backend == "lmcache":
        _check_lmcache()
    model, directory = settings.model, Path(settings.model)
    if directory.is_dir():
        _check_directory(directory, settings)
    if directory.exists() or "://" in model:
        return
    if not _NAMED.fullmatch(model):
        raise EngineUnavailableError(
            f"PECIA_MODEL={model}: there is no such directory on this machine. Name the one with the model's"
            " config.json, in full, or a name on the Hugging Face Hub, as owner/name."
        )
    offline = any(
        os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    if offline and local_checkpoint(model, settings.engine_options.get("revision")) is None:
        raise EngineUnavailableError(
            f"PECIA_MODEL={model} is not in the Hub's cache of this machine, and HF_HUB_OFFLINE forbids to fetch it:"
            " unset that for the first start, or copy the checkpoint and set PECIA_MODEL to its directory."
        )


def start_failure(error: Exception, settings: WorkerSettings) -> EngineUnavailableError | EngineDeadError:
    """Return our error for vLLM's; the notes on it hold its processes' errors."""
    chain, cause = [], error.__cause__
    while cause is not None:
        chain.append(error_line(cause))
        cause = cause.__cause__
    said = "; ".join(getattr(error, "__notes__", ()) or [error_line(error), *chain])
    return _explained(said, settings) or EngineDeadError(f"vLLM did not start: {said}")


def _explained(said: str, settings: WorkerSettings) -> EngineUnavailableError | None:
    for failure in packaged("vllm/start_failures.toml", _Failures).failures:
        if found := re.search(failure.said, said):
            named = {name: value or "no" for name, value in found.groupdict().items()}
            about = {"model": settings.model, "quantization": settings.quantization}
            return EngineUnavailableError(failure.sentence.format(**about, **named))
    return None


def _check_directory(directory: Path, settings: WorkerSettings) -> None:
    if (directory / "params.json").is_file():  # of Mistral's own format, which has neither file
        return
    if not (directory / "config.json").is_file():
        deeper = [*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")]
        hint = (
            f"Did you mean {deeper[0].parent}?" if deeper else "Name the directory with it and the weights."
        )
        raise EngineUnavailableError(f"PECIA_MODEL={directory}: there is no config.json in it. {hint}")
    config = _json(directory / "config.json")
    if not config:
        raise EngineUnavailableError(
            f"PECIA_MODEL={directory}: its config.json cannot be read as JSON. Copy the checkpoint once more."
        )
    has_template = (
        config.get("model_type") in VLLM_TEMPLATES
        or any(settings.engine_options.get(name) for name in _OTHER_TOKENIZER)
        or any((directory / name).exists() for name in _TEMPLATES)
        or any("chat_template" in _json(directory / name) for name in _WITH_TEMPLATE)
    )
    if not has_template and (error := _explained("ChatTemplateResolutionError", settings)):
        raise error
    _check_quantization(directory, settings)


def _check_lmcache() -> None:
    """Raise `EngineUnavailableError` for an LMCache that may confuse the caches of two pictures."""
    package = find_spec("lmcache")
    for place in (package.submodule_search_locations or ()) if package else ():
        with contextlib.suppress(OSError):
            if _WHOLE_HASH in (Path(place) / "integration" / "vllm" / "utils.py").read_text(encoding="utf-8"):
                return
    raise EngineUnavailableError(
        "PECIA_KV_OFFLOAD_BACKEND=lmcache needs an LMCache with the change of 27 August 2026 (LMCache/LMCache#4783):"
        " earlier ones may answer a page from the cache of another. No such LMCache is installed here."
    )


def _check_quantization(directory: Path, settings: WorkerSettings) -> None:
    """Compare the requested format with the checkpoint's, where both are known formats."""
    wanted, model = _format(settings.quantization), local_model(str(directory))
    if not wanted or not model:
        return
    remedy = "Leave PECIA_QUANTIZATION empty: the checkpoint declares its quantisation."
    if model.quantization == "none":
        if wanted != _AT_LOAD and not any((directory / name).is_file() for name in _QUANTIZATION_FILES):
            raise EngineUnavailableError(
                f"PECIA_QUANTIZATION={settings.quantization}, but {directory} is not quantised. {remedy}"
            )
    elif (there := _format(model.quantization)) and there != wanted:
        raise EngineUnavailableError(
            f"PECIA_QUANTIZATION={settings.quantization}, but {directory} is quantised as {model.quantization}."
            f" {remedy}"
        )


def _format(quantization: str) -> str | None:
    return next((name for name in _FORMATS if name in quantization.lower()), None)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


_GUARDED: Final = "_PECIA_GUARDS_ENGINE"
_LAST_WORDS: Final = "_PECIA_ENGINE_LAST_WORDS"
_PARENT_EVERY_S: Final = 1.0
_GRACE_S: Final = 6.0
_NO_REPORTS: Final = ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY")
"""Environment variables that disable telemetry of vLLM and its libraries."""
_CORE: Final = "EngineCore"  # the name vLLM gives to the process that holds the scheduler


def engine_environment(log_level: str, *, on_cpu: bool) -> dict[str, str]:
    """Return environment variables for a process that runs vLLM, without those that an operator has set."""
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
    """Children that this thread starts meanwhile ignore SIGINT: Ctrl-C reaches the process group, but draining is ours.

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
    """Add the errors logged by the engine's processes as a note, as vLLM's own message only says `see above`."""
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
    """Appends errors to a file while it exists, that is until the engine runs and errors may quote requests."""

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
    """Return an error on one line, like the last line of a traceback."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def kill_cores() -> None:
    """Kill the engine's processes: one that is still loading reacts to no other signal."""
    for child in multiprocessing.active_children():
        if child.name.startswith(_CORE):
            child.kill()


def guard() -> None:
    """In a process of Pecia's engine: end it with its parent, and report its errors while it starts.

    vLLM calls this in each of its processes (entry point `vllm.general_plugins`). Otherwise they would keep running,
    and occupy the GPU, after their worker was killed.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or _GUARDED not in os.environ:
        return
    if words := os.environ.get(_LAST_WORDS):
        logging.getLogger("vllm").addHandler(_LastWords(words))
    pid = parent.pid

    def end_after_it() -> None:
        while os.getppid() == pid:
            time.sleep(_PARENT_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)  # a core ends its own children in order
        time.sleep(_GRACE_S)
        os._exit(1)

    threading.Thread(target=end_after_it, name="orphan-guard", daemon=True).start()
