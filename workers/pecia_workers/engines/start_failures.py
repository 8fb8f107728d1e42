"""Why vLLM would not start, or did not: one sentence each, with what to do.

What the checkpoint's files tell is found before vLLM is imported; the rest is in the words of vLLM and of the Hub's
library.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineDeadError, EngineUnavailableError
from pecia_workers.engines.models import local_checkpoint, local_model
from pecia_workers.engines.profiles import profile_file
from pecia_workers.engines.vllm.processes import error_line

NO_TEMPLATE: Final = (
    "PECIA_MODEL={model}: the checkpoint has no chat template, and without one it cannot be asked anything."
    " Copy chat_template.jinja or tokenizer_config.json of the published checkpoint beside its config.json,"
    " or name its instruct variant."
)
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json", "additional_chat_templates", "tekken.json")
"""Each of these holds one; `tekken.json` is Mistral's tokenizer, which needs none."""
_WITH_TEMPLATE: Final = ("tokenizer_config.json", "processor_config.json")
"""A template may stand in one of these, under `chat_template`."""
VLLM_TEMPLATES: Final = frozenset(
    {
        *("blip-2", "clip", "colpali", "deepseek_ocr", "deepseek_ocr2", "deepseek_vl_v2", "minicpmv"),
        *("minicpmv4_6", "minicpmv4_7", "paligemma", "siglip", "siglip2", "unlimited-ocr", "unlimited_ocr"),
    }
)
"""Families for which vLLM brings a template."""
_OTHER_TOKENIZER: Final = ("tokenizer", "tokenizer_mode", "trust_remote_code")
"""With one of these among the engine's options, the template may come from elsewhere."""
_FORMATS: Final = ("awq", "gptq", "compressed-tensors", "fp8")
_AT_LOAD: Final = "fp8"
_QUANTIZATION_FILES: Final = ("quant_config.json", "quantize_config.json")
"""Where old checkpoints say how they are quantised."""
_TRUE: Final = ("1", "ON", "YES", "TRUE")
_NAMED: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""A name on the Hub; anything else is a path."""

_LESS_MEMORY: Final = (
    "Take a smaller or a quantised model (`pecia engine plan` shows what fits), or lower PECIA_MAX_NUM_BATCHED_TOKENS"
    " and PECIA_MAX_NUM_SEQS."
)
_SAID: Final[dict[str, str]] = {
    (
        r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed.*"
        r"available KV cache memory \((?P<there>[\d.]+) GiB\)(.*maximum model length is (?P<most>\d+))?"
    ): (
        "The KV cache is too small: one request of PECIA_MAX_MODEL_LEN={length} tokens needs {needed} GiB,"
        " and there are {there}, enough for {most} tokens. Lower PECIA_MAX_MODEL_LEN, or enlarge the cache:"
        " PECIA_KV_CACHE_BYTES, PECIA_GPU_MEMORY_UTILIZATION, PECIA_KV_CACHE_DTYPE=fp8, a smaller model."
    ),
    r"No available memory for the cache blocks": (
        "The model {model} leaves no memory for a KV cache. Raise PECIA_GPU_MEMORY_UTILIZATION. "
        + _LESS_MEMORY
    ),
    r"Free memory on device.*?\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\)": (
        "Of the device's {all} GiB only {free} are free, less than PECIA_GPU_MEMORY_UTILIZATION takes: end what"
        " else uses it (nvidia-smi lists it), or set a lower share."
    ),
    r"OutOfMemoryError|out of memory|MemoryError|[Cc]an(no|')t allocate memory": (
        "There is not enough memory to load {model}. " + _LESS_MEMORY
    ),
    r"does not match the quantization|Unknown quantization method|Cannot find the config file for": (
        "PECIA_QUANTIZATION={quantization} is not what the checkpoint {model} has: leave it empty, for a checkpoint"
        " says by itself how it is quantised."
    ),
    r"gated repo|GatedRepoError": (
        "The Hub gives {model} only to accounts that accepted its terms: accept them on"
        " https://huggingface.co/{model}, then set HF_TOKEN to a token of that account; or copy the checkpoint and"
        " set PECIA_MODEL to its directory."
    ),
    r"valid model identifier|RepositoryNotFoundError|valid repository name": (
        "The Hub has no model {model}, or it is private: correct PECIA_MODEL, or set HF_TOKEN to a token that may"
        " read it."
    ),
    r"couldn't connect to|LocalEntryNotFoundError|outgoing traffic has been disabled|OfflineModeIsEnabled": (
        "The model {model} is not on this machine, and the Hub cannot be reached: let the machine reach it once,"
        " or copy the checkpoint and set PECIA_MODEL to its directory."
    ),
    r"ChatTemplateResolutionError": NO_TEMPLATE,
    r"Failed core proc\(s\): \{[^}]*-9": (
        "The engine's process was killed while it loaded {model}, most likely by the kernel for want of main memory"
        " (`dmesg` tells). " + _LESS_MEMORY
    ),
}
"""A pattern of what was said, and our sentence for it; the first that is found counts."""


def check_model(settings: WorkerSettings) -> None:
    """Raise `EngineUnavailableError` for a model that vLLM could not run. Nothing is loaded or downloaded."""
    if not settings.model:
        raise EngineUnavailableError(
            f"The engine {settings.engine!r} needs a model:"
            " set PECIA_MODEL to a directory or a name on the Hugging Face Hub."
        )
    _check_name(settings.quantization)
    directory = Path(settings.model)
    if directory.is_dir():
        _check_directory(directory, settings)
    elif not directory.exists() and "://" not in settings.model:
        _check_absent(settings)


def start_failure(error: Exception, settings: WorkerSettings) -> EngineUnavailableError | EngineDeadError:
    """Return our error for what vLLM raised; the notes on it are what its processes said."""
    said = "; ".join(getattr(error, "__notes__", ()) or _chain(error))
    for pattern, sentence in _SAID.items():
        if found := re.search(pattern, said):
            named = {"most": "no", **{name: value for name, value in found.groupdict().items() if value}}
            return EngineUnavailableError(
                sentence.format(model=settings.model, quantization=settings.quantization, **named)
            )
    return EngineDeadError(f"vLLM did not start: {said}")


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield error_line(error)
        error = error.__cause__


def _check_name(quantization: str) -> None:
    """Refuse what is known to lead nowhere. Every other name is vLLM's to judge, which takes those of plugins too."""
    advice = profile_file().refused.get(quantization.lower().replace("-", "_"))
    if advice:
        raise EngineUnavailableError(
            f"PECIA_QUANTIZATION={quantization}: {advice}. (PECIA_ENGINE_OPTIONS passes a `quantization` on unchecked.)"
        )


def _check_absent(settings: WorkerSettings) -> None:
    model = settings.model
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


def _check_directory(directory: Path, settings: WorkerSettings) -> None:
    if (directory / "params.json").is_file():  # of Mistral's own format, which has neither file
        return
    if not (directory / "config.json").is_file():
        deeper = [*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")]
        hint = (
            f"Did you mean {deeper[0].parent}?" if deeper else "Name the one that holds it and the weights."
        )
        raise EngineUnavailableError(f"PECIA_MODEL={directory}: there is no config.json in it. {hint}")
    config = _json(directory / "config.json")
    if not config:
        raise EngineUnavailableError(
            f"PECIA_MODEL={directory}: its config.json cannot be read as JSON. Copy the checkpoint once more."
        )
    _check_template(directory, config, settings)
    _check_quantization(directory, settings)


def _check_template(directory: Path, config: dict[str, Any], settings: WorkerSettings) -> None:
    elsewhere = any(settings.engine_options.get(name) for name in _OTHER_TOKENIZER)
    if elsewhere or config.get("model_type") in VLLM_TEMPLATES:
        return
    if any((directory / name).exists() for name in _TEMPLATES):
        return
    if not any("chat_template" in _json(directory / name) for name in _WITH_TEMPLATE):
        raise EngineUnavailableError(NO_TEMPLATE.format(model=directory))


def _check_quantization(directory: Path, settings: WorkerSettings) -> None:
    """Compare what is wanted with what the checkpoint is, where both are formats that are known apart."""
    wanted, model = _format(settings.quantization), local_model(str(directory))
    if not wanted or not model:
        return
    remedy = "Leave PECIA_QUANTIZATION empty: a checkpoint says by itself how it is quantised."
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
