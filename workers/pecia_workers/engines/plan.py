"""The plan of an engine on a GPU: model, format, concurrent pages and their cost. Nothing is loaded."""

from dataclasses import dataclass
from typing import Any, Final

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import models
from pecia_workers.engines.profiles import (
    SEQUENCES,
    SIZES,
    Profile,
    Sized,
    known_model,
    merged,
    recommended,
    sized_for,
)
from pecia_workers.engines.reader_cards import card_of, readers_for
from pecia_workers.engines.speed import FP8_FROM, KNEE, Pace, PageLoad, Speed, curve, knee, pace, stored_as
from pecia_workers.protocol.base import EngineUnavailableError

WORKER_PAGE_S: Final = 0.022
WORKER_TOKEN_S: Final = 29e-6
"""CPU seconds of the worker's process for a page, and for an output token with its log-probability.

Both are measured by `benchmarks/worker_loop.py`; 15 ms of a page are its path through a fleet with a simulated engine.
"""
_BATCHES: Final = ("batch_tokens", "batch_min", "batch_max", "batch_concurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatPlan:
    """A model's weights in one format on a GPU, computed like the plan."""

    format: str
    weights: int
    """Bytes."""
    pace: Pace | None
    """Pace at the knee; None: the weights leave no memory for a page."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """A model on a GPU, and the concurrent pages that fit."""

    profile: str
    model: str
    quantization: str
    license: str
    why: str
    """Reason for this model and quantisation."""
    card: str
    """Name of its reader card."""
    warning: str
    """Uses that its licence excludes."""
    needs: str
    """What its operator has to provide."""
    readers: tuple[str, ...]
    """Other models for documents that fit, under permissive licences."""
    sizes: dict[str, Any]
    """Sizes by profile and settings, under the fleet's names."""
    engine_options: dict[str, Any]
    """Further options under vLLM's names."""
    memory: models.MemoryPlan
    kv: models.KvShape
    kv_bytes_per_token: int
    kv_tokens: int
    """KV tokens kept by all layers: the budget of admission, unless layers have windows."""
    context: int
    """Most tokens of one request."""
    context_kept: int
    """Use of the KV cache by such a request, in tokens kept by all layers."""
    page_tokens: int
    """Tokens of an A4 page of mixed documents: picture, prompt and expected text."""
    page_kept: int
    """Use of the KV cache by a page at its end."""
    unclear: str
    """What is unknown about the layers' cache, and how it is counted."""
    pages_in_cache: int
    """Pages that fit into the KV cache."""
    pages_at_a_time: int
    bound_by: str
    """The limit on concurrent pages."""
    speed: Speed | None
    """Speed of the engine; None: unknown GPU."""
    speed_by: str
    """Source of the speed."""
    load: PageLoad
    """Tokens of the planned page."""
    paces: tuple[Pace, ...]
    """Pace for rising numbers of concurrent pages, up to those that the KV cache holds."""
    formats: tuple[FormatPlan, ...]
    """The same model in each format, the fastest first."""

    @property
    def starts(self) -> bool:
        """Whether the KV cache holds one request of the largest size, without which vLLM does not start."""
        return self.kv_tokens >= self.context_kept

    @property
    def worker_pages_per_s(self) -> float:
        """Pages a second that the worker's own process can serve, on any GPU."""
        return 1 / (WORKER_PAGE_S + self.load.output * WORKER_TOKEN_S)

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in use by the planned number of pages."""
        return self.pages_at_a_time * self.page_kept / self.kv_tokens if self.kv_tokens else 0.0

    @property
    def kv_blocks(self) -> int:
        """Blocks that would hold as many pages of a model without windows."""
        return self.kv_tokens * self.page_tokens // self.page_kept // models.BLOCK


def plan_engine(
    settings: WorkerSettings, profile: Profile, memory_bytes: int, *, captions: bool = False
) -> EnginePlan:
    """Return the plan for a GPU of so much memory (0: the CPU), or for as many as `tensor_parallel_size` says.

    Raises `EngineUnavailableError` if no model is given or recommended, or it is unknown.
    """
    if settings.model:
        why = "the model that you named"
    elif memory_bytes:
        best = recommended(memory_bytes, profile.capability, quality=settings.prefer_quality)
        why = best.captions_because if captions else best.reads_because
    else:
        raise EngineUnavailableError(
            "No model is recommended for the CPU, where PECIA_ENGINE=cpu reads. "
            "Name a GPU (--gpu l4) or a model (--model)."
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
    names = (*SIZES, *_BATCHES) if chosen.admission == "dynamic" else SIZES
    context = min(model.context, chosen.max_model_len or model.context)
    sized = sized_for(chosen, profile, model, memory_bytes)
    in_cache = sized.tokens // sized.kept
    pages = min(in_cache, chosen.max_num_seqs or in_cache)
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
        memory=sized.memory,
        kv=sized.kv,
        kv_bytes_per_token=sized.kv.bytes_per_token,
        kv_tokens=sized.tokens,
        context=context,
        context_kept=sized.layers.held(context, 0, begun=False),
        page_tokens=sized.page,
        page_kept=sized.kept,
        unclear=model.unclear,
        pages_in_cache=in_cache,
        pages_at_a_time=pages,
        bound_by=_bound_by(settings, profile, sized, pages),
        speed=sized.speed,
        speed_by=_speed_by(profile, sized.speed),
        load=sized.load,
        paces=curve(sized.speed, sized.load, max(pages, sized.most), pages) if sized.speed and pages else (),
        formats=_formats(chosen, profile, model, memory_bytes),
    )


def _bound_by(settings: WorkerSettings, profile: Profile, sized: Sized, pages: int) -> str:
    if pages == sized.tokens // sized.kept:
        return "the KV cache: no further page fits"
    if "max_num_seqs" in settings.model_fields_set:
        return "max_num_seqs, as set"
    if sized.speed and settings.page_seconds and pages < knee(sized.speed, sized.load, sized.most):
        return f"PECIA_PAGE_SECONDS={settings.page_seconds:g}"
    if "max_num_seqs" in profile.settings:
        return "the profile's measured value"
    if sized.speed is None:
        return f"caution: nothing is known of this GPU's speed, so {SEQUENCES} at most"
    return f"their use: these read {100 * KNEE:.0f} % of the most pages a second, and each is read sooner"


def _speed_by(profile: Profile, known: Speed | None) -> str:
    if known is None:
        return "nothing is known of this GPU"
    if known is profile.speed:
        return "measured by `pecia engine tune`"
    if profile.measured:
        return f"by its data sheet and the shares of it that were measured: {profile.measured}"
    return "an estimate: by its data sheet and the shares that were measured on another card, an H200"


def _formats(
    settings: WorkerSettings, profile: Profile, model: models.Model, memory_bytes: int
) -> tuple[FormatPlan, ...]:
    """Return the model in each format; nothing where its weights or the GPU are not known."""
    if not model.weights_gb or not profile.tflops:
        return ()
    in_fp8 = "computed in FP8, which is twice as fast" if profile.capability >= FP8_FROM else ""
    plans = []
    for title, quantization, why in (
        ("BF16", "none", "16 bits, as trained"),
        ("FP8", "fp8", f"8 bits, {in_fp8 or 'computed in 16, as this GPU has no FP8 arithmetic'}"),
        ("AWQ, GPTQ", "awq", "4 bits, computed in 16: less to read in each step, more room for pages"),
    ):
        stored = stored_as(model, quantization)
        if stored is None:
            return ()
        unset = settings.model_copy(update={"quantization": "", "kv_cache_bytes": 0})
        sized = sized_for(unset, profile.model_copy(update={"speed": None}), stored, memory_bytes)
        pages = knee(sized.speed, sized.load, sized.most) if sized.speed and sized.most else 0
        best = pace(sized.speed, sized.load, pages) if sized.speed and pages else None
        plans.append(FormatPlan(format=title, weights=sized.memory.weights, pace=best, why=why))
    return tuple(sorted(plans, key=lambda plan: -plan.pace.pages_per_s if plan.pace else 0.0))
