"""What a checkpoint's own files say about its processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pecia_workers.batching.cost.base import CheckpointError

_SCOPES = frozenset({"text_kwargs", "images_kwargs", "videos_kwargs", "audio_kwargs", "common_kwargs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorFiles:
    """The checkpoint's configuration, as transformers resolves it, and the engine's overrides.

    Source of the precedence: transformers `image_processing_base.py::get_image_processor_dict` and
    `video_processing_utils.py::get_video_processor_dict`: the section in processor_config.json first, then the file of
    its own; a checkpoint without a video file has its *image* limits apply to video as well.
    """

    config: Mapping[str, Any]
    """config.json"""
    processor: Mapping[str, Any]
    """processor_config.json, empty if there is none"""
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    image_overrides: Mapping[str, Any]
    """The part of vLLM's `mm_processor_kwargs` that reaches pictures."""
    video_overrides: Mapping[str, Any]
    video_pruning_rate: float
    """The share of a clip's tokens that the engine drops, 0 to 1."""

    @classmethod
    def read(
        cls,
        checkpoint: Path,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        video_pruning_rate: float = 0.0,
    ) -> Self:
        """Return what the directory `checkpoint` holds. Raises `CheckpointError`."""
        config = _read(checkpoint / "config.json")
        if config is None:
            message = f"{checkpoint} has no config.json."
            raise CheckpointError(message)
        processor = _read(checkpoint / "processor_config.json") or {}
        image = _read(checkpoint / "preprocessor_config.json")
        video = _read(checkpoint / "video_preprocessor_config.json")
        overrides = mm_processor_kwargs or {}
        return cls(
            config=config,
            processor=processor,
            image=processor.get("image_processor") or image or {},
            video=processor.get("video_processor") or video or image or {},
            image_overrides=_scoped(overrides, "images_kwargs"),
            video_overrides=_scoped(overrides, "videos_kwargs"),
            video_pruning_rate=video_pruning_rate,
        )

    @property
    def model_type(self) -> str:
        """The model type that config.json names, empty if it names none."""
        return str(self.config.get("model_type", ""))


class CheckpointTokenizer:
    """Counts the tokens of a text with the checkpoint's tokenizer.json, loaded when first asked."""

    def __init__(self, checkpoint: Path) -> None:
        self._file = checkpoint / "tokenizer.json"

    def __call__(self, text: str) -> int:
        """Return the tokens of `text`, none added. Raises `CheckpointError` if there is no tokenizer.json."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # noqa: PLC0415  comes with pecia[vllm]

        if not self._file.is_file():
            message = f"{self._file} does not exist: pass `text_tokens`, the engine's own tokenizer."
            raise CheckpointError(message)
        return Tokenizer.from_file(str(self._file))


def _scoped(overrides: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """Return what reaches one kind of media; what is named for it alone goes before what is named for all.

    Source: vLLM `multimodal/processing/context.py::_resolve_mm_processor_kwargs`.
    """
    shared = {name: value for name, value in overrides.items() if name not in _SCOPES}
    return {**shared, **overrides.get(scope, {})}


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        message = f"{file} is no JSON."
        raise CheckpointError(message) from error
    if not isinstance(content, dict):
        message = f"{file} is no JSON object."
        raise CheckpointError(message)
    return content
