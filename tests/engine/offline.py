"""What vLLM's own offline API says to a set of pages.

In bfloat16 a word may turn with the company that its page has in the batch: two tokens that are almost as likely change
places. So tests that compare texts compute in float32, and where kernels cannot, in float16.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import ClipTimes, EngineRequest
from pecia_workers.reading.page import instruction_for

PAGES = 32
SCHEMA = {
    "type": "object",
    "properties": {"drug": {"type": "string", "maxLength": 8}, "refills": {"enum": [0, 1, 2]}},
    "required": ["drug", "refills"],
    "additionalProperties": False,
}
INSTRUCTION = instruction_for(DocumentType.PRESCRIPTION, None)
MOST_TOKENS = 40  # some answers end before, so that the batch changes all the time
SIZES: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "enforce_eager": True,
}
KV_CACHE_BYTES = 1 << 26
NUMBERS_OF_A_TOKEN = 2 * 2 * 2 * 64
"""Keys and values of two layers with two heads of 64 numbers each."""


def picture(number: int) -> NDArray[np.uint8]:
    """Return coarse noise of one of several sizes: the same for the same number."""
    coarse = np.random.default_rng(number).integers(0, 255, (5 + number % 4, 7, 3), dtype=np.uint8)
    return coarse.repeat(28, axis=0).repeat(28, axis=1)


def png(number: int, *, side: int | None = None) -> bytes:
    from PIL import Image  # noqa: PLC0415  only fleets are sent files

    drawn, file = Image.fromarray(picture(number)), io.BytesIO()
    (drawn.resize((side, side)) if side else drawn).save(file, "PNG")
    return file.getvalue()


def asked(number: int, **changes: Any) -> EngineRequest:
    request = EngineRequest(
        id=str(number),
        images=(picture(number),),
        workload=DocumentType.PRESCRIPTION,
        instruction=INSTRUCTION,
        max_output_tokens=MOST_TOKENS,
    )
    return replace(request, **changes)


def clip(frames: int = 7, *, seed: int = 1, side: int = 112) -> EngineRequest:
    """Return a request for the caption of a clip of noise, of two frames a second."""
    shown = np.random.default_rng(seed).integers(0, 255, (frames, side, side, 3), dtype=np.uint8)
    times = ClipTimes(fps=10.0, indices=tuple(range(0, 5 * frames, 5)), duration=frames / 2)
    return EngineRequest(
        id=f"clip-{seed}",
        images=tuple(shown),
        clip=times,
        workload="caption-brief",
        instruction="Describe it.",
        max_output_tokens=24,
    )


def _message(number: int) -> list[dict[str, Any]]:
    from PIL import Image  # noqa: PLC0415  only this program looks at pictures through vLLM

    content = [
        {"type": "image_pil", "image_pil": Image.fromarray(picture(number))},
        {"type": "text", "text": INSTRUCTION},
    ]
    return [{"role": "user", "content": content}]


def write_answers(checkpoint: str, dtype: str, answers: Path) -> None:
    """Write token counts and texts as JSON, one for each page."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams  # noqa: PLC0415  after the environment

    llm = LLM(
        model=checkpoint,
        dtype=dtype,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        limit_mm_per_prompt={"image": 1},
        **SIZES,
    )
    params = SamplingParams(temperature=0, max_tokens=MOST_TOKENS)
    outputs = llm.chat([_message(number) for number in range(PAGES)], params, use_tqdm=False)
    told = [{"prompt": len(one.prompt_token_ids), "text": one.outputs[0].text} for one in outputs]
    answers.write_text(json.dumps(told))
