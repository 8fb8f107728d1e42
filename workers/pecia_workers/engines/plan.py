"""What vLLM would run with these settings on a GPU, how many pages at a time, and how fast: nothing is loaded.

The speed is estimated from what the GPU can move and compute. Writing reads all weights once an iteration, and each
sequence's keys and values; reading a prompt is arithmetic, two operations for each weight and token. GPUs reach a part
of what their data sheets say; the shares below are taken from what is usual for large matrix products, so a plan is an
estimate until its speed was measured on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.iteration import BLOCK_TOKENS, IterationModel
from pecia_workers.engines.models import (
    KvShape,
    MemoryPlan,
    Model,
    kv_shape,
    kv_tokens,
    memory_plan,
    page_tokens,
)
from pecia_workers.engines.profiles import MOST_SEQUENCES, Profile, Speed, known_model, merged, recommended
from pecia_workers.engines.reader_cards import card_of, readers_for

_SIZES: Final = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_bytes"),
    *("kv_cache_dtype", "quantization", "enforce_eager", "speculative_config", "tensor_parallel_size"),
    "caption_tokens",
)
_BATCHES: Final = ("batch_tokens", "batch_min", "batch_max", "batch_concurrent")

_OF_BANDWIDTH: Final = 0.7
_OF_ARITHMETIC: Final = 0.5
_ITERATION_S: Final = 0.002
"""What scheduling and launching take of an iteration."""
_BYTES: Final = {"none": 2.0, "fp8": 1.0}
_FOUR_BITS: Final = 0.6
"""Bytes of a weight where most have four bits, embeddings and the vision tower sixteen."""


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
    memory: MemoryPlan
    kv: KvShape
    kv_bytes_per_token: int
    kv_tokens: int
    """The budget of admission."""
    context: int
    """Most tokens of one request."""
    page_tokens: int
    """Of an A4 page of mixed documents: picture, prompt and expected text."""
    pages_in_cache: int
    """For which the KV cache has room."""
    pages_at_a_time: int

    @property
    def starts(self) -> bool:
        """Whether the KV cache holds one request of the largest size, without which vLLM does not start."""
        return self.kv_tokens >= self.context

    @property
    def kv_share(self) -> float:
        """The share of the KV cache that so many pages of the default size take."""
        return self.pages_at_a_time * self.page_tokens / self.kv_tokens if self.kv_tokens else 0.0

    @property
    def bound_by(self) -> str:
        """What keeps more pages from being read at a time."""
        if self.pages_at_a_time == self.pages_in_cache:
            return "the KV cache: one page more does not fit whole"
        if self.pages_at_a_time == MOST_SEQUENCES:
            return f"vLLM, which runs no more than {MOST_SEQUENCES:,} sequences unless PECIA_MAX_NUM_SEQS says so"
        return "max_num_seqs, as it was set"


def plan_engine(
    settings: WorkerSettings, profile: Profile, memory_bytes: int, *, captions: bool = False
) -> EnginePlan:
    """Return the plan for a GPU of so much memory (0: the CPU), or for as many as `tensor_parallel_size` says.

    Raises `EngineUnavailableError` if there is no model to plan with, or nothing is known of it.
    """
    why = _why(settings, memory_bytes, captions=captions)
    chosen = merged(settings, profile, memory_bytes, captions=captions)
    model, card = _known(chosen.model), card_of(chosen.model, settings.card)
    memory = memory_plan(chosen, model, memory_bytes, profile.reserve_bytes)
    kv = kv_shape(chosen, model)
    names = (*_SIZES, *_BATCHES) if chosen.admission == "dynamic" else _SIZES
    tokens, page = kv_tokens(kv, memory.kv_cache), page_tokens(chosen)
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
        context=min(model.context, chosen.max_model_len or model.context),
        page_tokens=page,
        pages_in_cache=tokens // page,
        pages_at_a_time=min(tokens // page, chosen.max_num_seqs or tokens // page),
    )


def _why(settings: WorkerSettings, memory_bytes: int, *, captions: bool) -> str:
    if settings.model:
        return "the model that you named"
    if not memory_bytes:
        raise EngineUnavailableError(
            "No model is recommended for the CPU, where PECIA_ENGINE=cpu reads. Name one to plan with: --model."
        )
    models = recommended(memory_bytes, quality=settings.prefer_quality)
    return models.captions_because if captions else models.reads_because


def _known(name: str) -> Model:
    if model := known_model(name):
        return model
    raise EngineUnavailableError(
        f"Nothing is known of the model {name!r}: name a directory with its config.json, or a model that is in the"
        " Hugging Face cache of this machine."
    )


def speed_of(
    plan: EnginePlan, profile: Profile, model: Model, held_tokens: float, measured: Speed | None = None
) -> IterationModel:
    """Return the time model of a planned engine whose sequences hold so many tokens on average.

    `measured` goes before all estimates. Raises `EngineUnavailableError` without it if nothing is known of the GPU's
    speed or of the weights.
    """
    speed = measured or _estimated(plan, profile, model, held_tokens)
    return IterationModel(
        max_num_seqs=plan.sizes.get("max_num_seqs") or max(1, plan.pages_in_cache),
        max_num_batched_tokens=plan.sizes.get("max_num_batched_tokens") or plan.context,
        kv_blocks=plan.kv_tokens // BLOCK_TOKENS,
        **speed.model_dump(),
    )


def _estimated(plan: EnginePlan, profile: Profile, model: Model, held_tokens: float) -> Speed:
    if not profile.memory_gbs or not profile.tflops:
        raise EngineUnavailableError(
            f"Nothing is known of the speed of {profile.title}: name a GPU with --gpu."
        )
    if not plan.memory.weights:
        raise EngineUnavailableError(f"The weights of {plan.model} are not here: their size tells the speed.")
    bandwidth = profile.memory_gbs * 1e9 * _OF_BANDWIDTH * plan.memory.gpus
    parameters_b = model.parameters_b or model.weights_gb / _BYTES.get(model.quantization, _FOUR_BITS)
    token_s = 2e9 * parameters_b / (profile.tflops * 1e12 * _OF_ARITHMETIC * plan.memory.gpus)
    return Speed(
        base_s=_ITERATION_S + plan.memory.weights / bandwidth,
        prefill_token_s=token_s,
        decode_sequence_s=token_s + plan.kv_bytes_per_token * held_tokens / bandwidth,
    )
