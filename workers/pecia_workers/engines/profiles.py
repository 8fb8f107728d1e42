"""Profiles of GPUs in `profiles.toml`, and the settings that follow for vLLM. Nothing is loaded."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, DocumentType
from pecia_workers.engines import models
from pecia_workers.engines.reader_cards import Data, card_of, did_you_mean, packaged
from pecia_workers.engines.speed import PageLoad, Rates, Speed, estimated_speed, knee, stored_as
from pecia_workers.protocol.base import EngineUnavailableError, Layers

NO_PROFILE: Final = "none"
SIZES: Final = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_bytes"),
    *("kv_cache_dtype", "quantization", "enforce_eager", "speculative_config", "tensor_parallel_size"),
    "caption_tokens",
)
OF_A_PROFILE: Final = frozenset({"model", *SIZES}) - {"speculative_config"}
"""Settings that a profile may contain."""
CPU: Final = "cpu"
GIB: Final = 2**30

_MOST_SEQUENCES: Final = 1024
"""vLLM's default maximum of sequences on its largest GPUs."""
SEQUENCES: Final = 256
"""Its default on others; used for models whose requests are of unknown size."""
_LARGE_GIB: Final = 70
_STEP, _LARGE_STEP = 8_192, 16_384
"""Its tokens in one step, below `_LARGE_GIB` and from there on. Source: `EngineArgs.get_batch_defaults`, for offline
use; set here, since its asynchronous class uses 2,048 and 128 sequences."""
_SMALL_STEPS: Final = "A100"
"""GPUs whose throughput large steps reduce, whatever their memory (vllm-project/vllm#17885)."""


class Recommended(Data):
    """Recommended models for one size of GPU and one purpose."""

    reads: str
    """Model for pages, and for captions if one worker does both."""
    reads_because: str
    captions: str
    """Model for a worker that only captions."""
    captions_because: str


class Choice(Data):
    """The models for one size of GPU."""

    up_to_gib: float
    capability: float = 0
    """Least compute capability."""
    speed: Recommended
    quality: Recommended


class Profile(Rates):
    """One kind of machine."""

    title: str
    gpu: str = ""
    """A word in the GPU's name; empty: any GPU."""
    memory_gib: float
    reserve_gib: float
    """Estimated memory beside weights and KV cache."""
    settings: dict[str, Any]
    """Settings under the fleet's names. `model`: the model of the measurements; `max_num_seqs` and
    `max_num_batched_tokens` are measured, and otherwise computed from model and memory."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options under vLLM's names, without a setting of the fleet."""
    speed: Speed | None = None
    """Measured speed, with the model in `settings`."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the profile's GPU; 0 without one."""
        return int(self.memory_gib * GIB)

    @property
    def reserve_bytes(self) -> int:
        """Reserve of each GPU."""
        return int(self.reserve_gib * GIB)


class ProfileFile(Data):
    """Contents of `profiles.toml`."""

    models: dict[str, models.Model]
    choices: tuple[Choice, ...]
    profiles: dict[str, Profile]
    refused: dict[str, str]


@cache
def profile_file() -> ProfileFile:
    """Return the profiles that come with the fleet."""
    return packaged("profiles.toml", ProfileFile)


def with_profile(settings: WorkerSettings, *, captions: bool = False) -> WorkerSettings:
    """Return the settings with the profile's values where none was given; a given zero is kept.

    `captions`: for a worker that only captions. Settings for another engine than vLLM, or with the profile `none`, are
    returned unchanged. The driver may take seconds to answer. Raises `EngineUnavailableError` for an unknown profile.
    """
    if settings.engine != "vllm" or settings.profile == NO_PROFILE:
        return settings
    gpus = models.visible_gpus()
    profile = profile_named(settings.profile) if settings.profile else profile_of(gpus)
    return merged(settings, profile, memory_of(profile, gpus), captions=captions)


def merged(
    settings: WorkerSettings, profile: Profile, memory_bytes: int, *, captions: bool = False
) -> WorkerSettings:
    """Return the settings with this profile's values, on a GPU of so much memory (0: none)."""
    model = settings.model or profile.settings.get("model", "")
    if not model and memory_bytes:
        best = recommended(memory_bytes, profile.capability, quality=settings.prefer_quality)
        model = best.captions if captions else best.reads
    values = {name: value for name, value in profile.settings.items() if name != "model"}
    known = known_model(model)
    if known and "max_model_len" in values:
        values["max_model_len"] = min(values["max_model_len"], known.context)
    options = profile.engine_options | card_of(model, settings.card).engine_options | settings.engine_options
    unset = {name: value for name, value in values.items() if name not in settings.model_fields_set}
    chosen = settings.model_copy(update={**unset, "model": model, "engine_options": options})
    if not memory_bytes:
        return chosen
    large = memory_bytes >= _LARGE_GIB * GIB and profile.gpu != _SMALL_STEPS
    if "max_num_batched_tokens" not in settings.model_fields_set | profile.settings.keys():
        chosen = chosen.model_copy(update={"max_num_batched_tokens": _LARGE_STEP if large else _STEP})
    if "max_num_seqs" in settings.model_fields_set:
        return chosen
    sequences = profile.settings.get("max_num_seqs", 0)
    if known and known.layers:
        sized = sized_for(chosen, profile, known, memory_bytes)
        most = max(1, min(sequences or sized.most, sized.most))
        if sized.speed is None:
            sequences = sequences or min(SEQUENCES, most)
        elif not sequences or settings.page_seconds:
            sequences = knee(sized.speed, sized.load, most, settings.page_seconds)
    return chosen.model_copy(update={"max_num_seqs": sequences or SEQUENCES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A model on a GPU: its capacity and speed."""

    model: models.Model
    memory: models.MemoryPlan
    kv: models.KvShape
    layers: Layers
    page: int
    """Tokens of a page."""
    kept: int
    """Those that the KV cache keeps of it at its end."""
    load: PageLoad
    speed: Speed | None

    @property
    def tokens(self) -> int:
        """Of the KV cache."""
        return models.kv_tokens(self.kv, self.memory.kv_cache)

    @property
    def most(self) -> int:
        """Most concurrent pages, by the KV cache and by vLLM."""
        return min(_MOST_SEQUENCES, self.tokens // self.kept)


def sized_for(settings: WorkerSettings, profile: Profile, model: models.Model, memory_bytes: int) -> Sized:
    """Return the sizes for settings merged with the profile."""
    if settings.quantization == "fp8" and model.quantization == "none":  # at load
        model = stored_as(model, "fp8") or model
    memory = models.memory_plan(settings, model, memory_bytes, profile.reserve_bytes)
    kv = models.kv_shape(settings, model)
    page, output = models.page_tokens(settings), EXPECTED_OUTPUT_TOKENS[DocumentType.MIXED]
    longest = min(model.context, settings.max_model_len or model.context)
    layers = models.layers_planned(kv, settings.max_num_batched_tokens or longest)
    load = PageLoad(prompt=page - output, output=output, held=page - output / 2)
    known = profile.speed if profile.settings.get("model") == settings.model else None
    return Sized(
        model=model,
        memory=memory,
        kv=kv,
        layers=layers,
        page=page,
        kept=layers.held(page, 0, begun=True),
        load=load,
        speed=known
        or estimated_speed(
            profile,
            model,
            weights=memory.weights,
            kv_bytes_per_token=kv.bytes_per_token,
            load=load,
            gpus=memory.gpus,
        ),
    )


def profile_named(name: str) -> Profile:
    """Return the profile of this name, or from a path ending in .toml.

    Raises `EngineUnavailableError` with the known names, or the file's error.
    """
    if name.endswith(".toml"):
        profile = _read(Path(name))
        if unknown := sorted(profile.settings.keys() - OF_A_PROFILE):
            raise EngineUnavailableError(f"{name}: a profile has no setting {unknown[0]!r}.")
        return profile
    profiles = profile_file().profiles
    if name.lower() in profiles:
        return profiles[name.lower()]
    hint = did_you_mean(name.lower(), [*profiles, NO_PROFILE])
    raise EngineUnavailableError(f"There is no profile {name!r}. {hint}")


def _read(path: Path) -> Profile:
    try:
        return Profile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        said = f"{path} cannot be read: {error.strerror}. `pecia engine tune` writes such a file."
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        said = f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}."
    except ValueError as error:
        said = f"{path} is not TOML: {error}."
    raise EngineUnavailableError(said)


def profile_toml(profile: Profile) -> str:
    """Return the contents of a profile file for `PECIA_PROFILE`."""
    own = profile.model_dump(exclude={"settings", "engine_options", "speed"})
    tables = [
        "".join(_lines(own)),
        "".join(["[settings]\n", *_lines(profile.settings)]),
        "".join(["[engine_options]\n", *_lines(profile.engine_options)]),
    ]
    if profile.speed:
        tables.append("[speed]\n" + "".join(f"{name} = {value:.3g}\n" for name, value in profile.speed))
    return "\n".join(tables)


def _lines(values: Mapping[str, Any], end: str = "\n") -> list[str]:
    def key(name: str) -> str:
        return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)

    return [f"{key(name)} = {_toml(value)}{end}" for name, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    """Return a value on one line. JSON is valid TOML, except for tables."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(_lines(value, end="")) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def profile_of(gpus: Sequence[models.Gpu]) -> Profile:
    """Return the profile for the first of the GPUs; the CPU's without one."""
    profiles = profile_file().profiles
    if not gpus:
        return profiles[CPU]
    gpu = gpus[0]
    on_gpus = [profile for profile in profiles.values() if profile.memory_gib]
    named = [profile for profile in on_gpus if profile.gpu and re.search(rf"\b{profile.gpu}\b", gpu.name)]
    candidates = named or [profile for profile in on_gpus if not profile.gpu]
    return next((one for one in candidates if gpu.memory_bytes <= one.memory_bytes), candidates[-1])


def memory_of(profile: Profile, gpus: Sequence[models.Gpu]) -> int:
    """Return the memory of the first GPU, in bytes; the profile's figure without a GPU, or if the GPU reports none."""
    found = gpus[0].memory_bytes if gpus and profile.memory_bytes else 0
    return found or profile.memory_bytes


def recommended(memory_bytes: int, capability: float = 0, *, quality: bool) -> Recommended:
    """Return the recommended models for a GPU of this memory and compute capability."""
    choice = next(
        choice
        for choice in profile_file().choices
        if memory_bytes <= choice.up_to_gib * GIB and capability >= choice.capability
    )
    return choice.quality if quality else choice.speed


def known_model(name: str) -> models.Model | None:
    """Return a model's properties, from its files on this machine or the table of recommended models."""
    return (models.local_model(name) or profile_file().models.get(name)) if name else None
