"""What vLLM shall run on this machine's GPU, from `profiles.toml`, and the plan of that: nothing is loaded."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import models
from pecia_workers.engines.reader_cards import Data, card_of, did_you_mean, packaged, readers_for
from pecia_workers.protocol.base import EngineUnavailableError

NO_PROFILE: Final = "none"
_SIZES: Final = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_bytes"),
    *("kv_cache_dtype", "quantization", "enforce_eager", "speculative_config", "tensor_parallel_size"),
    "caption_tokens",
)
OF_A_PROFILE: Final = frozenset({"model", *_SIZES}) - {"speculative_config"}
"""Settings that a profile's file may have."""
CPU: Final = "cpu"
GIB: Final = 2**30

_MOST_SEQUENCES: Final = 1024
"""What vLLM runs at most by its own choice, on its largest GPUs."""
_SEQUENCES: Final = 256
"""Its choice on others: for a model of which it is not known what a request takes."""
_LARGE_GIB: Final = 70
_STEP, _LARGE_STEP = 8_192, 16_384
"""Its tokens in one step, below `_LARGE_GIB` and from there on. Source: `EngineArgs.get_batch_defaults`, for offline
use; set here, for its asynchronous class falls back to 2,048 and 128 sequences."""
_SMALL_STEPS: Final = "A100"
"""Whose throughput large steps reduce, whatever its memory (vllm-project/vllm#17885)."""
_BATCHES: Final = ("batch_tokens", "batch_min", "batch_max", "batch_concurrent")

_File = TypeVar("_File", bound=BaseModel)


class Recommended(Data):
    """The models for one size of GPU and one wish."""

    reads: str
    """For pages, and for captions too where one worker does both."""
    reads_because: str
    captions: str
    """For a worker that does nothing else."""
    captions_because: str


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

    models: dict[str, models.Model]
    choices: tuple[Choice, ...]
    profiles: dict[str, Profile]
    refused: dict[str, str]


@cache
def profile_file() -> ProfileFile:
    """Return the profiles that come with the fleet."""
    return packaged("profiles.toml", ProfileFile)


def with_profile(settings: WorkerSettings, *, captions: bool = False) -> WorkerSettings:
    """Return the settings with the profile's values where nothing was given; a zero that was given stays.

    `captions`: the worker does nothing else. Settings for another engine than vLLM, and those with the profile `none`,
    stay as they are. Takes up to seconds to ask the driver. Raises `EngineUnavailableError` for an unknown profile.
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
        best = recommended(memory_bytes, quality=settings.prefer_quality)
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
    sequences = _SEQUENCES
    if known and known.layers:
        memory = models.memory_plan(chosen, known, memory_bytes, profile.reserve_bytes)
        kv = models.kv_shape(chosen, known)
        page = models.layers_planned(kv).held(models.page_tokens(chosen), 0, begun=True)
        sequences = max(1, min(_MOST_SEQUENCES, models.kv_tokens(kv, memory.kv_cache) // page))
    large = memory_bytes >= _LARGE_GIB * GIB and profile.gpu != _SMALL_STEPS
    sizes = {"max_num_seqs": sequences, "max_num_batched_tokens": _LARGE_STEP if large else _STEP}
    given = settings.model_fields_set | profile.settings.keys()
    return chosen.model_copy(update={name: value for name, value in sizes.items() if name not in given})


def profile_named(name: str) -> Profile:
    """Return the profile, or the one that a file holds: a name that ends with .toml is its path.

    Raises `EngineUnavailableError` with the names that there are, or what is wrong with the file.
    """
    if name.endswith(".toml"):
        profile = _read(Path(name), Profile)
        if unknown := sorted(profile.settings.keys() - OF_A_PROFILE):
            raise EngineUnavailableError(f"{name}: a profile has no setting {unknown[0]!r}.")
        return profile
    profiles = profile_file().profiles
    if name.lower() in profiles:
        return profiles[name.lower()]
    hint = did_you_mean(name.lower(), [*profiles, NO_PROFILE])
    raise EngineUnavailableError(f"There is no profile {name!r}. {hint}")


def speed_in(path: Path) -> Speed:
    """Return the speed that a file says: a profile, or the table alone. Raises `EngineUnavailableError`."""
    return _read(path, _Measured).speed


class _Measured(BaseModel):
    speed: Speed


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


def profile_toml(profile: Profile) -> str:
    """Return the file of a profile, as `PECIA_PROFILE` takes it by its path."""
    own = profile.model_dump(exclude={"settings", "engine_options", "speed"})
    tables = [
        "".join(_lines(own)),
        "".join(["[settings]\n", *_lines(profile.settings)]),
        "".join(["[engine_options]\n", *_lines(profile.engine_options)]),
    ]
    return "\n".join([*tables, speed_toml(profile.speed)] if profile.speed else tables)


def speed_toml(speed: Speed) -> str:
    """Return the table of a profile that says how fast its engine is."""
    return "[speed]\n" + "".join(f"{name} = {value:.3g}\n" for name, value in speed)


def _lines(values: Mapping[str, Any], end: str = "\n") -> list[str]:
    def key(name: str) -> str:
        return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)

    return [f"{key(name)} = {_toml(value)}{end}" for name, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    """Return a value on one line. What JSON writes is TOML too, but for tables."""
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
    """Return the memory of the first GPU, in bytes; what the profile says without one, or of one that reports none."""
    found = gpus[0].memory_bytes if gpus and profile.memory_bytes else 0
    return found or profile.memory_bytes


def recommended(memory_bytes: int, *, quality: bool) -> Recommended:
    """Return the models for a GPU of so much memory."""
    choice = next(choice for choice in profile_file().choices if memory_bytes <= choice.up_to_gib * GIB)
    return choice.quality if quality else choice.speed


def known_model(name: str) -> models.Model | None:
    """Return what is known of a model: from its files if they are here, else from the table of recommended ones."""
    return (models.local_model(name) or profile_file().models.get(name)) if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """A model on a GPU, and the pages that there is room for."""

    profile: str
    model: str
    quantization: str
    license: str
    why: str
    """Of this model and quantisation."""
    card: str
    """Whose reader card it has."""
    warning: str
    """What its licence shuts out."""
    needs: str
    """What its operator has to see to."""
    readers: tuple[str, ...]
    """Models made for documents that would fit as well, all under permissive licences."""
    sizes: dict[str, Any]
    """What profile and settings say, by the fleet's names."""
    engine_options: dict[str, Any]
    """The same, by vLLM's names."""
    memory: models.MemoryPlan
    kv: models.KvShape
    kv_bytes_per_token: int
    kv_tokens: int
    """That all layers keep: the budget of admission, where none of them has a window."""
    context: int
    """Most tokens of one request."""
    context_kept: int
    """What the KV cache keeps of it, as a number of tokens that all layers keep."""
    page_tokens: int
    """Of an A4 page of mixed documents: picture, prompt and expected text."""
    page_kept: int
    """What the KV cache keeps of it at its end."""
    unclear: str
    """What is not known of what the layers keep, and how it is counted."""
    pages_in_cache: int
    """For which the KV cache has room."""
    pages_at_a_time: int

    @property
    def starts(self) -> bool:
        """Whether the KV cache holds one request of the largest size, without which vLLM does not start."""
        return self.kv_tokens >= self.context_kept

    @property
    def kv_share(self) -> float:
        """The share of the KV cache that so many pages of the default size take."""
        return self.pages_at_a_time * self.page_kept / self.kv_tokens if self.kv_tokens else 0.0

    @property
    def kv_blocks(self) -> int:
        """The blocks that would hold as many pages of a model whose layers all keep everything."""
        return self.kv_tokens * self.page_tokens // self.page_kept // models.BLOCK

    @property
    def bound_by(self) -> str:
        """What keeps more pages from being read at a time."""
        if self.pages_at_a_time == self.pages_in_cache:
            return "the KV cache: one page more does not fit whole"
        if self.pages_at_a_time == _MOST_SEQUENCES:
            return f"vLLM, which runs no more than {_MOST_SEQUENCES:,} sequences unless PECIA_MAX_NUM_SEQS says so"
        return "max_num_seqs, as it was set"


def plan_engine(
    settings: WorkerSettings, profile: Profile, memory_bytes: int, *, captions: bool = False
) -> EnginePlan:
    """Return the plan for a GPU of so much memory (0: the CPU), or for as many as `tensor_parallel_size` says.

    Raises `EngineUnavailableError` if there is no model to plan with, or nothing is known of it.
    """
    if settings.model:
        why = "the model that you named"
    elif memory_bytes:
        best = recommended(memory_bytes, quality=settings.prefer_quality)
        why = best.captions_because if captions else best.reads_because
    else:
        raise EngineUnavailableError(
            "No model is recommended for the CPU, where PECIA_ENGINE=cpu reads. Name one to plan with: --model."
        )
    chosen = merged(settings, profile, memory_bytes, captions=captions)
    model, card = known_model(chosen.model), card_of(chosen.model, settings.card)
    if model is None:
        raise EngineUnavailableError(
            f"Nothing is known of the model {chosen.model!r}: name a directory with its config.json, or a model that is"
            " in the Hugging Face cache of this machine."
        )
    if not model.layers:  # with attention
        raise EngineUnavailableError(f"How many tokens fit is not known: {model.unclear}.")
    memory = models.memory_plan(chosen, model, memory_bytes, profile.reserve_bytes)
    kv = models.kv_shape(chosen, model)
    names = (*_SIZES, *_BATCHES) if chosen.admission == "dynamic" else _SIZES
    tokens, page = models.kv_tokens(kv, memory.kv_cache), models.page_tokens(chosen)
    context = min(model.context, chosen.max_model_len or model.context)
    layers = models.layers_planned(kv, chosen.max_num_batched_tokens or context)
    page_kept = layers.held(page, 0, begun=True)
    return EnginePlan(
        profile=profile.title,
        model=chosen.model,
        quantization=chosen.quantization or model.quantization,
        license=model.license or card.license,
        why=why,
        card=card.title,
        warning=card.warning,
        needs=card.needs,
        readers=() if captions else readers_for(memory_bytes),
        sizes={name: value for name in names if (value := getattr(chosen, name))},
        engine_options=chosen.engine_options,
        memory=memory,
        kv=kv,
        kv_bytes_per_token=kv.bytes_per_token,
        kv_tokens=tokens,
        context=context,
        context_kept=layers.held(context, 0, begun=False),
        page_tokens=page,
        page_kept=page_kept,
        unclear=model.unclear,
        pages_in_cache=tokens // page_kept,
        pages_at_a_time=min(tokens // page_kept, chosen.max_num_seqs or tokens // page_kept),
    )
