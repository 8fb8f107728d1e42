"""What vLLM shall run on this machine's GPU, from `profiles.toml`: sizes, options, and the model that fits."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.gpus import Gpu, visible_gpus
from pecia_workers.engines.models import Model, kv_shape, kv_tokens, local_model, memory_plan, page_tokens
from pecia_workers.engines.reader_cards import Data, card_of

NO_PROFILE: Final = "none"
_TOML: Final = ".toml"
OF_A_PROFILE: Final = frozenset(
    {
        *("model", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization"),
        *("kv_cache_bytes", "kv_cache_dtype", "quantization", "tensor_parallel_size", "caption_tokens"),
        "enforce_eager",
    }
)
"""Settings that a profile's file may have."""
CPU: Final = "cpu"
GIB: Final = 2**30

MOST_SEQUENCES: Final = 1024
"""What vLLM runs at most by its own choice, on its largest GPUs."""
_SEQUENCES: Final = 256
"""Its choice on others: for a model of which nothing is known before it is downloaded."""
_LARGE_GIB: Final = 70
_STEP, _LARGE_STEP = 8_192, 16_384
"""Its tokens in one step, below `_LARGE_GIB` and from there on. Source: `EngineArgs.get_batch_defaults`, for offline
use; set here, for its asynchronous class falls back to 2,048 and 128 sequences."""
_SMALL_STEPS: Final = "A100"
"""Whose throughput large steps reduce, whatever its memory (vllm-project/vllm#17885)."""


_File = TypeVar("_File", bound=BaseModel)


class Recommended(Data):
    """The models for one size of GPU and one wish."""

    reads: str
    """For pages, and for captions too where one worker does both."""
    reads_because: str
    captions: str
    """For a worker that does nothing else."""
    captions_because: str

    def model(self, *, captions: bool) -> str:
        """Return the model for captions or for pages."""
        return self.captions if captions else self.reads


class Choice(Data):
    """The models for one size of GPU."""

    up_to_gib: float
    speed: Recommended
    quality: Recommended


class Speed(Data):
    """What an engine's iterations take, in seconds."""

    base_s: float = Field(gt=0)
    """Each of them, whatever it does."""
    prefill_token_s: float = Field(ge=0)
    """More for each token of a prompt."""
    decode_sequence_s: float = Field(ge=0)
    """More for each sequence that writes."""


class Profile(Data):
    """One kind of machine."""

    title: str
    gpu: str = ""
    """A word of the GPU's name; empty: any."""
    memory_gib: float
    reserve_gib: float
    """What is needed beside weights and KV cache; an estimate."""
    memory_gbs: float = 0
    """10^9 bytes that its memory moves in a second; 0: unknown."""
    tflops: float = 0
    """10^12 operations a second, dense, in 16 bits; 0: unknown."""
    settings: dict[str, Any]
    """By the fleet's names. `model` is one that it was made with, `max_num_seqs` and `max_num_batched_tokens` were
    measured: without them they follow from the model and the memory."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """By vLLM's names: what has no setting of the fleet's."""
    speed: Speed | None = None
    """As it was measured."""

    @property
    def memory_bytes(self) -> int:
        """Of the GPU that gave the profile its name; 0 without one."""
        return int(self.memory_gib * GIB)

    @property
    def reserve_bytes(self) -> int:
        """Of each GPU."""
        return int(self.reserve_gib * GIB)


class ProfileFile(Data):
    """All of `profiles.toml`."""

    models: dict[str, Model]
    choices: tuple[Choice, ...]
    profiles: dict[str, Profile]
    refused: dict[str, str]


@cache
def profile_file() -> ProfileFile:
    """Return the profiles that come with the fleet."""
    text = (files("pecia_workers.engines") / "profiles.toml").read_text(encoding="utf-8")
    return ProfileFile.model_validate(tomllib.loads(text))


def with_profile(settings: WorkerSettings, *, captions: bool = False) -> WorkerSettings:
    """Return the settings with the profile's values where nothing was given; a zero that was given stays.

    `captions`: the worker does nothing else. Settings for another engine than vLLM, and those with the profile `none`,
    stay as they are. Takes up to seconds to ask the driver. Raises `EngineUnavailableError` for an unknown profile.
    """
    if settings.engine != "vllm" or settings.profile == NO_PROFILE:
        return settings
    gpus = visible_gpus()
    profile = profile_named(settings.profile) if settings.profile else profile_of(gpus)
    return merged(settings, profile, memory_of(profile, gpus), captions=captions)


def merged(
    settings: WorkerSettings, profile: Profile, memory_bytes: int, *, captions: bool = False
) -> WorkerSettings:
    """Return the settings with this profile's values, on a GPU of so much memory (0: none)."""
    model = settings.model or profile.settings.get("model", "")
    if not model and memory_bytes:
        model = recommended(memory_bytes, quality=settings.prefer_quality).model(captions=captions)
    values = {name: value for name, value in profile.settings.items() if name != "model"}
    known = known_model(model)
    if known and "max_model_len" in values:
        values["max_model_len"] = min(values["max_model_len"], known.context)
    card = card_of(model, settings.card)
    options = profile.engine_options | card.engine_options | settings.engine_options
    unset = {name: value for name, value in values.items() if name not in settings.model_fields_set}
    chosen = settings.model_copy(update={**unset, "model": model, "engine_options": options})
    if not memory_bytes:
        return chosen
    large = memory_bytes >= _LARGE_GIB * GIB and profile.gpu != _SMALL_STEPS
    sizes = {
        "max_num_seqs": _sequences(chosen, profile, memory_bytes, known),
        "max_num_batched_tokens": _LARGE_STEP if large else _STEP,
    }
    given = settings.model_fields_set | profile.settings.keys()
    return chosen.model_copy(update={name: value for name, value in sizes.items() if name not in given})


def _sequences(settings: WorkerSettings, profile: Profile, memory_bytes: int, model: Model | None) -> int:
    """Return how many pages of the default size the KV cache holds."""
    if model is None:
        return _SEQUENCES
    memory = memory_plan(settings, model, memory_bytes, profile.reserve_bytes)
    tokens = kv_tokens(kv_shape(settings, model), memory.kv_cache)
    return max(1, min(MOST_SEQUENCES, tokens // page_tokens(settings)))


def profile_named(name: str) -> Profile:
    """Return the profile, or the one that a file holds: a name that ends with .toml is its path.

    Raises `EngineUnavailableError` with the names that there are, or what is wrong with the file.
    """
    if name.endswith(_TOML):
        return _profile_in(Path(name))
    profiles = profile_file().profiles
    if name.lower() in profiles:
        return profiles[name.lower()]
    near = difflib.get_close_matches(name.lower(), profiles, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(profiles)}, {NO_PROFILE}."
    raise EngineUnavailableError(f"There is no profile {name!r}. {hint}")


def speed_toml(speed: Speed) -> str:
    """Return the table of a profile that says how fast its engine is."""
    return "[speed]\n" + "".join(f"{name} = {value:.3g}\n" for name, value in speed)


def profile_toml(profile: Profile) -> str:
    """Return the file of a profile, as `PECIA_PROFILE` takes it by its path."""
    own = profile.model_dump(exclude={"settings", "engine_options", "speed"})
    tables = [
        _pairs(own),
        "[settings]\n" + _pairs(profile.settings),
        "[engine_options]\n" + _pairs(profile.engine_options),
        speed_toml(profile.speed) if profile.speed else "",
    ]
    return "\n".join(table for table in tables if table)


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in values.items() if value is not None)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    """Return a value on one line. What JSON writes is TOML too, but for tables."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {_toml(one)}" for name, one in value.items() if one is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def speed_in(path: Path) -> Speed:
    """Return the speed that a file says: a profile, or the table alone. Raises `EngineUnavailableError`."""
    return _read(path, _Measured).speed


class _Measured(BaseModel):
    speed: Speed


def _profile_in(path: Path) -> Profile:
    profile = _read(path, Profile)
    if unknown := sorted(profile.settings.keys() - OF_A_PROFILE):
        raise EngineUnavailableError(f"{path}: a profile has no setting {unknown[0]!r}.")
    return profile


def _read(path: Path, model: type[_File]) -> _File:
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        said = f"{path} cannot be read: {error.strerror}. `pecia engine tune` writes such a file."
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        said = f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}."
    except ValueError as error:
        said = f"{path} is not TOML: {error}."
    raise EngineUnavailableError(said)


def profile_of(gpus: Sequence[Gpu]) -> Profile:
    """Return the profile for the first of the GPUs; the CPU's without one."""
    profiles = profile_file().profiles
    if not gpus:
        return profiles[CPU]
    gpu = gpus[0]
    on_gpus = [profile for profile in profiles.values() if profile.memory_gib]
    named = [profile for profile in on_gpus if profile.gpu and re.search(rf"\b{profile.gpu}\b", gpu.name)]
    candidates = named or [profile for profile in on_gpus if not profile.gpu]
    return next((one for one in candidates if gpu.memory_bytes <= one.memory_bytes), candidates[-1])


def memory_of(profile: Profile, gpus: Sequence[Gpu]) -> int:
    """Return the memory of the first GPU, in bytes; what the profile says without one, or of one that does not tell."""
    found = gpus[0].memory_bytes if gpus and profile.memory_bytes else 0
    return found or profile.memory_bytes


def recommended(memory_bytes: int, *, quality: bool) -> Recommended:
    """Return the models for a GPU of so much memory."""
    choice = next(choice for choice in profile_file().choices if memory_bytes <= choice.up_to_gib * GIB)
    return choice.quality if quality else choice.speed


def known_model(name: str) -> Model | None:
    """Return what is known of a model: from its files if they are here, else from the table of recommended ones."""
    return (local_model(name) or profile_file().models.get(name)) if name else None
