"""Speed of an engine on a GPU, and the number of concurrent pages that is worth their wait.

A step of the engine takes `base + p x tokens of prompts + d x pages that write`. A page of P tokens that writes O takes
O steps, in which the n pages beside it are read and written too: `W(n) = n (P p + O d) + O base` seconds, and an engine
n / W(n) pages a second. That
rises ever less with n, while W(n) keeps rising: beyond the knee, more concurrent pages only wait longer.

Writing reads all weights once a step, and each page's keys and values; reading a prompt takes two operations for each
weight and token. GPUs reach a share of their data sheets; the shares were measured on an H200, and are assumed for
others. `pecia engine tune` measures the three speeds themselves.
"""

import math
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from pecia_workers.engines.models import Model
from pecia_workers.engines.reader_cards import Data

KNEE: Final = 0.95
"""Share of the highest rate that defines the knee."""
FP8_FROM: Final = 8.9
"""Compute capability from which FP8 is computed, twice as fast as 16 bits; below it, weights are only stored in FP8."""
_WIDE: Final = 2.0
"""Bytes of a weight in 16 bits."""
_STEP_S: Final = 0.002
"""Seconds of scheduling and launching in a step."""
_BYTES: Final = {"none": _WIDE, "fp8": 1.0, "awq": 4.156 / 8, "gptq": 4.156 / 8}
"""Bytes of a weight, with the scales of its group of 128."""
_QUANTISED: Final = 0.79
"""Share of a model's weights that a format quantises, as of Qwen2.5-VL-7B: vision tower and embeddings keep 16 bits."""


class Speed(Data):
    """Time of an engine's steps, in seconds."""

    base_s: float = Field(gt=0)
    """Constant time of a step."""
    prefill_token_s: float = Field(ge=0)
    """Additional time for each prompt token."""
    decode_sequence_s: float = Field(ge=0)
    """Additional time for each writing sequence."""


class Rates(Data):
    """Memory and compute rates of a kind of GPU."""

    memory_gbs: float = 0
    """10^9 bytes a second, by its data sheet; 0: unknown."""
    tflops: float = 0
    """10^12 operations a second, dense, in 16 bits, by its data sheet; 0: unknown."""
    capability: float = 0
    """Compute capability; 0: unknown."""
    of_memory: float = 0.70
    of_arithmetic: float = 0.41
    """Shares of these rates that an engine reaches: the H200's, unless measured on this kind."""
    measured: str = ""
    """The run that measured the shares on this kind; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLoad:
    """The tokens of a page."""

    prompt: float
    output: float
    """Mean."""
    held: float
    """Mean tokens that its sequence holds while it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """An engine's pace at a number of concurrent pages."""

    pages: int
    pages_per_s: float
    page_s: float
    """From the engine's start on a page to its end."""


def weights_of(model: Model) -> tuple[float, float]:
    """Return the weights that compute a token, in 10^9: all, and those in layers that a format quantises."""
    size = bytes_of(model)
    saved = _WIDE - size
    total = model.parameters_b or model.weights_gb / (_WIDE - _QUANTISED * saved)
    known = (_WIDE * total - model.weights_gb) / saved if saved and model.parameters_b else 0
    return total, known if known > 0 else _QUANTISED * total


def bytes_of(model: Model) -> float:
    """Return the bytes of a quantised weight; 4 bits for an unknown format."""
    return model.weight_bits / 8 or _BYTES.get(model.quantization, _BYTES["awq"])


def stored_as(model: Model, quantization: str) -> Model | None:
    """Return the model with its layers in another format, or None for a mixture of experts, which is not modelled."""
    total, quantised = weights_of(model)
    if model.weights_gb > _WIDE * total:
        return None
    size = round(_WIDE * total - (_WIDE - _BYTES[quantization]) * quantised, 2)
    update = {"quantization": quantization, "weights_gb": size, "parameters_b": total, "weight_bits": 0}
    return model.model_copy(update=update)


def estimated_speed(
    rates: Rates, model: Model, *, weights: int, kv_bytes_per_token: int, load: PageLoad, gpus: int
) -> Speed | None:
    """Return the speed on that many of these GPUs, or None if these or the weights are unknown."""
    if not (rates.memory_gbs and rates.tflops and weights):
        return None
    bandwidth = rates.memory_gbs * 1e9 * rates.of_memory * gpus
    total, quantised = weights_of(model)
    if bytes_of(model) == 1 and rates.capability >= FP8_FROM:
        total -= quantised / 2
    token_s = 2e9 * total / (rates.tflops * 1e12 * rates.of_arithmetic * gpus)
    return Speed(
        base_s=_STEP_S + weights / bandwidth,
        prefill_token_s=token_s,
        decode_sequence_s=token_s + kv_bytes_per_token * load.held / bandwidth,
    )


def pace(speed: Speed, load: PageLoad, pages: int) -> Pace:
    """Return the pace of an engine of this speed with that many concurrent pages."""
    seconds = pages * _each(speed, load) + load.output * speed.base_s
    return Pace(pages=pages, pages_per_s=pages / seconds, page_s=seconds)


def curve(speed: Speed, load: PageLoad, most: int, chosen: int) -> tuple[Pace, ...]:
    """Return the pace at one page, two, four and so on, at the chosen number and at the maximum."""
    doubled = [1 << doublings for doublings in range(most.bit_length())]
    return tuple(pace(speed, load, pages) for pages in sorted({*doubled, chosen, most}))


def knee(speed: Speed, load: PageLoad, most: int, page_seconds: float = 0) -> int:
    """Return the fewest concurrent pages that reach 95 % of the rate of `most` pages.

    Fewer, if a page would take longer than `page_seconds` (0: no bound) with them; at least 1.
    """
    enough = KNEE * pace(speed, load, most).pages_per_s
    pages = math.ceil(enough * load.output * speed.base_s / (1 - enough * _each(speed, load)))
    if page_seconds:
        pages = min(pages, within(speed, load, page_seconds, most))
    return max(1, min(most, pages))


def within(speed: Speed, load: PageLoad, seconds: float, most: int) -> int:
    """Return the number of concurrent pages, up to `most`, with which each takes at most that long; 0: none."""
    return max(0, min(most, int((seconds - load.output * speed.base_s) / _each(speed, load))))


def _each(speed: Speed, load: PageLoad) -> float:
    """Return the engine's seconds for a page, without the constant time that all share."""
    return load.prompt * speed.prefill_token_s + load.output * speed.decode_sequence_s
