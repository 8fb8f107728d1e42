"""How fast a model is on a GPU, estimated from what the GPU can move and compute: nothing is measured.

Writing reads all weights once an iteration, and each sequence's keys and values; reading a prompt is arithmetic, two
operations for each weight and token. GPUs reach a part of what their data sheets say; the shares below are taken from
what is usual for large matrix products, so a plan is an estimate until its speed was measured on the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.iteration import BLOCK_TOKENS, IterationModel
from pecia_workers.engines.profiles import Speed

if TYPE_CHECKING:
    from pecia_workers.engines.models import Model
    from pecia_workers.engines.plan import EnginePlan
    from pecia_workers.engines.profiles import Profile

_OF_BANDWIDTH: Final = 0.7
_OF_ARITHMETIC: Final = 0.5
_ITERATION_S: Final = 0.002
"""What scheduling and launching take of an iteration."""
_BYTES: Final = {"none": 2.0, "fp8": 1.0}
_FOUR_BITS: Final = 0.6
"""Bytes of a weight where most have four bits, embeddings and the vision tower sixteen."""


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
    token_s = 2e9 * _parameters_b(model) / (profile.tflops * 1e12 * _OF_ARITHMETIC * plan.memory.gpus)
    return Speed(
        base_s=_ITERATION_S + plan.memory.weights / bandwidth,
        prefill_token_s=token_s,
        decode_sequence_s=token_s + plan.kv_bytes_per_token * held_tokens / bandwidth,
    )


def _parameters_b(model: Model) -> float:
    return model.parameters_b or model.weights_gb / _BYTES.get(model.quantization, _FOUR_BITS)
