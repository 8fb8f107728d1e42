"""What vLLM would run with these settings on a GPU, and how many pages at a time: arithmetic, nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.kv_cache import KvShape, MemoryPlan, kv_shape, kv_tokens, memory_plan, page_tokens
from pecia_workers.engines.profiles import MOST_SEQUENCES, Profile, known_model, merged, recommended
from pecia_workers.engines.reader_cards import card_of, readers_for

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.models import Model

_SIZES: Final = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_bytes"),
    *("kv_cache_dtype", "quantization", "enforce_eager", "speculative_config", "tensor_parallel_size"),
    "caption_tokens",
)
_BATCHES: Final = ("batch_tokens", "batch_min", "batch_max", "batch_concurrent")


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
        sizes=_sizes(chosen),
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


def _sizes(settings: WorkerSettings) -> dict[str, Any]:
    names = (*_SIZES, *_BATCHES) if settings.admission == "dynamic" else _SIZES
    return {name: value for name in names if (value := getattr(settings, name))}
