"""Requests as rows of Ray's vLLM processor: the checkpoint's own chat template, counted by its own processor."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
from huggingface_hub import snapshot_download
from PIL import Image
from transformers import AutoConfig, AutoProcessor
from vllm.sampling_params import RepetitionDetectionParams

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineRequest
from pecia_workers.engines.fitting import Room
from pecia_workers.engines.in_flight import LOOPS

_PROBE: Final = (112, 112)
_ALL_BUT_WEIGHTS: Final = ["*.json", "*.jinja", "*.txt", "*.model"]


@dataclass(slots=True, kw_only=True)
class Prompts:
    """What is known of the model on this side of Ray."""

    processor: Any = field(repr=False)
    room: Room
    ends: frozenset[int]
    """Tokens that end a text."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Prompts:
        """Read the checkpoint's configuration, tokenizer and processor; takes seconds."""
        directory = _fetched(settings.model, settings.engine_options.get("revision"))
        options = settings.engine_options.get("mm_processor_kwargs") or {}
        processor = AutoProcessor.from_pretrained(directory, **options)  # from this machine  # nosec B615
        context = settings.max_model_len
        if not context:
            config = AutoConfig.from_pretrained(directory)  # from this machine  # nosec B615
            context = int(config.get_text_config().max_position_embeddings)
        return cls(
            processor=processor, room=Room(context=context, item=context), ends=_ends(processor, directory)
        )

    async def prompt_tokens(self, request: EngineRequest) -> int:
        """Return the length of the request's prompt, as the checkpoint's processor renders it."""
        return await asyncio.to_thread(self._rendered, request)

    def _rendered(self, request: EngineRequest) -> int:
        rendered = self.processor(
            text=[self._words(request)], images=_pictures(request) or None, return_tensors="np"
        )
        return int(rendered["input_ids"].shape[-1])

    def words(self, request: EngineRequest) -> int:
        """Return the tokens of the request's prompt without its pictures."""
        words = self._words(replace(request, images=(), clip=None))
        return len(self.processor.tokenizer.encode(words, add_special_tokens=False))

    def probe(self) -> EngineRequest:
        """Return a small request that shows whether there is an engine."""
        picture = np.zeros((*_PROBE, 3), dtype=np.uint8)
        return EngineRequest(
            id="probe", images=(picture,), workload="mixed", instruction="Read this.", max_output_tokens=1
        )

    def row(self, request: EngineRequest) -> dict[str, Any]:
        """Return the request as the processor takes it, under a name of its own."""
        params = {
            "max_tokens": request.max_output_tokens,
            "repetition_detection": RepetitionDetectionParams(**LOOPS),
            **request.sampling.parameters,
        }
        if request.schema:
            params["structured_outputs"] = {"json": json.dumps(request.schema)}
        return {
            "name": uuid4().hex,
            "prompt": self._words(request),
            "multimodal_data": {"image": _pictures(request)},
            "sampling_params": params,
        }

    def _words(self, request: EngineRequest) -> str:
        shown = [{"type": "image"} for _ in request.images]
        asked = request.messages(shown)
        words: str = self.processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        return words


def _fetched(model: str, revision: str | None) -> Path:
    """Return the checkpoint's directory; of a name on the Hub all but the weights, which Ray fetches, is downloaded."""
    directory = Path(model)
    if directory.is_dir():
        return directory
    return Path(snapshot_download(model, revision=revision, allow_patterns=_ALL_BUT_WEIGHTS))


def _pictures(request: EngineRequest) -> list[Image.Image]:
    return [Image.fromarray(image) for image in request.images]


def _ends(processor: Any, directory: Path) -> frozenset[int]:
    """Return what vLLM ends a text at: the tokenizer's token, and those of the generation's configuration."""
    ends = {processor.tokenizer.eos_token_id}
    generation = directory / "generation_config.json"
    if generation.is_file():
        more = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
        ends |= set(more) if isinstance(more, list) else {more}
    return frozenset(end for end in ends if end is not None)
