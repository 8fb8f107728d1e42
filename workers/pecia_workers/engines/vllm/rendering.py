"""Requests rendered for vLLM's engine by its chat template and processor, and passed between processes.

Imports vLLM. A rendered prompt is passed in sealed memory, by vLLM's typed msgpack: nothing is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import torch
from blake3 import blake3
from PIL import Image
from vllm.exceptions import VLLMClientError
from vllm.multimodal.inputs import MultiModalFieldElem, MultiModalKwargsItems, PlaceholderRange
from vllm.renderers import ChatParams, renderer_from_config
from vllm.v1.serial_utils import CUSTOM_TYPE_RAW_VIEW, MMF_CLASS_TO_FACTORY, MsgpackDecoder, MsgpackEncoder

from pecia_schemas.failures import FailureCode
from pecia_workers.media.frames import InvalidMemoryError, Sealed, aligned, digest, sealed
from pecia_workers.media.pages import MediaError
from pecia_workers.protocol.base import EngineRequest

_CHAT: Final = ChatParams(
    chat_template_kwargs={"add_generation_prompt": True, "tokenize": False, "enable_thinking": False}
)
_COUNT: Final = struct.Struct("<I")
_MOST_BUFFERS: Final = 4096
_NEAR: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered request: tokens and prepared pictures."""

    prompt: Any = field(repr=False)

    @property
    def tokens(self) -> int:
        """Length of the prompt, pictures included."""
        return len(self.prompt["prompt_token_ids"])

    @property
    def image_tokens(self) -> int:
        """Tokens of its pictures."""
        return sum(self._items())

    @property
    def largest_item(self) -> int:
        """Tokens of its largest picture."""
        return max(self._items(), default=0)

    @property
    def size(self) -> int:
        """Bytes of the prepared pictures."""
        return sum(tensor.nbytes for tensor in _tensors(self.prompt.get("mm_kwargs")))

    def _items(self) -> list[int]:
        placed = self.prompt.get("mm_placeholders", {}).values()
        return [place.get_num_embeds() for places in placed for place in places]

    def differs_in(self, other: Rendered) -> str:
        """Return the name of a part in which the engine's inputs differ, empty if they are equal."""
        for name in ("prompt_token_ids", "mm_placeholders", "mm_hashes"):
            if self.prompt.get(name) != other.prompt.get(name):
                return name
        ours, theirs = (list(_tensors(one.prompt.get("mm_kwargs"))) for one in (self, other))
        shapes = [[(one.dtype, one.shape) for one in tensors] for tensors in (ours, theirs)]
        # Equal but for the last bits, which depend on how many threads computed them.
        is_same = shapes[0] == shapes[1] and all(
            torch.allclose(one.double(), two.double(), rtol=_NEAR, atol=_NEAR)
            for one, two in zip(ours, theirs, strict=True)
        )
        return "" if is_same else "mm_kwargs"


class Renderer:
    """Renders one request at a time."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        processor = renderer.mm_processor
        self.takes_clips = processor is not None and processor.info.allowed_mm_limits.get("video", 0) > 0
        """Whether the frames of a clip are passed as one video."""

    def render(self, request: EngineRequest, name: str) -> Rendered:
        """Render the request by the checkpoint's processor, with `name` for its pixels. Raises `MediaError`."""
        try:
            if self.takes_clips and (times := request.clip):
                words = self._renderer.get_tokenizer().apply_chat_template(
                    request.messages([{"type": "video"}]), add_generation_prompt=True, tokenize=False
                )
                about = {  # what the processors want to know of the frames; nothing is sampled again
                    "fps": times.fps,
                    "duration": times.duration,
                    "total_num_frames": max(round(times.duration * times.fps), times.indices[-1] + 1),
                    "frames_indices": list(times.indices),
                    "video_backend": "opencv",
                    "do_sample_frames": False,
                }
                # Chat messages have no way to carry frames that are in memory.
                video = (np.stack(request.images), about)
                clip = {"prompt": words, "multi_modal_data": {"video": [video]}}
                (prompt,) = self._renderer.render_cmpl([clip])
            else:
                pictures = [
                    {"type": "image_pil", "image_pil": Image.fromarray(image), "uuid": f"{name}-{number}"}
                    for number, image in enumerate(request.images)
                ]
                _, (prompt,) = self._renderer.render_chat([request.messages(pictures)], _CHAT)
        except VLLMClientError:  # its text may quote the request
            raise MediaError(FailureCode.TOO_LARGE, "The prompt does not fit into the engine.") from None
        return named(prompt, name)


def named(prompt: Any, name: str) -> Rendered:
    """Return a prompt whose pictures have this name in the engine's caches.

    The name of an untrusted preparer is not used: under another page's name the engine would answer with its text.
    """
    if hashes := prompt.get("mm_hashes"):
        prompt["mm_hashes"] = {
            kind: [f"{name}-{kind}-{number}" for number in range(len(of))] for kind, of in hashes.items()
        }
    return Rendered(prompt)


def name_of(request: EngineRequest) -> str:
    """Return a name for the request's pixels: a hash of pixels, sizes and times of frames."""
    pictures = [(image.shape, digest(image)) for image in request.images]
    return str(blake3(repr((pictures, request.clip)).encode()).hexdigest())


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, MultiModalFieldElem):
        yield from _tensors(nested.data)
    elif isinstance(nested, Mapping):
        yield from _tensors([nested[key] for key in sorted(nested)])  # two processes order them otherwise
    elif isinstance(nested, Sequence):
        for one in nested:
            yield from _tensors(one)


class _Wire(msgspec.Struct):  # type: ignore[misc]  # it is not installed where types are checked
    """The part of vLLM's `EngineInput` that is passed; names and types are vLLM's."""

    prompt_token_ids: list[int]
    prompt: str | None = None
    mm_kwargs: MultiModalKwargsItems | None = None
    mm_hashes: dict[str, list[str]] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None


class _Decoder(MsgpackDecoder):  # type: ignore[misc]
    """Never unpickles, whatever the environment allows vLLM, and creates only declared fields."""

    def ext_hook(self, code: int, data: memoryview) -> Any:
        if code != CUSTOM_TYPE_RAW_VIEW:
            raise InvalidMemoryError
        return data

    def _decode_mm_field_elem(self, obj: dict[str, Any]) -> Any:
        if obj["field"][0] not in MMF_CLASS_TO_FACTORY.values():
            raise InvalidMemoryError
        return super()._decode_mm_field_elem(obj)


def packed(rendered: Rendered) -> Sealed:
    """Return a prompt as sealed memory: the number of buffers, their lengths, and the buffers."""
    wire = _Wire(**{name: rendered.prompt.get(name) for name in _Wire.__struct_fields__})
    buffers = [memoryview(buffer) for buffer in MsgpackEncoder().encode(wire)]
    head = _COUNT.pack(len(buffers)) + struct.pack(f"<{len(buffers)}Q", *(one.nbytes for one in buffers))
    return Sealed(sealed([memoryview(head), *buffers]))


def unpacked(memory: memoryview) -> Any:
    """Return the prompt in such a memory, without copying its tensors. Raises `InvalidMemoryError`."""
    try:
        wire = _Decoder(t=_Wire).decode(list(_buffers(memory)))
    except Exception:  # noqa: BLE001  whatever was made of it may fail anywhere
        raise InvalidMemoryError from None
    prompt = {name: value for name in _Wire.__struct_fields__ if (value := getattr(wire, name)) is not None}
    return {"type": "multimodal" if wire.mm_kwargs else "token", **prompt}


def _buffers(memory: memoryview) -> Iterator[memoryview]:
    (count,) = _COUNT.unpack_from(memory)
    if count > _MOST_BUFFERS:
        raise InvalidMemoryError
    lengths = struct.Struct(f"<{count}Q")
    at = aligned(_COUNT.size + lengths.size)
    for length in lengths.unpack_from(memory, _COUNT.size):
        if at + length > memory.nbytes:
            raise InvalidMemoryError
        yield memory[at : at + length]
        at = aligned(at + length)


_renderer: Renderer | None = None


def load_renderer(config: Any) -> None:
    """Load the renderer of an engine with this configuration into this process, for the processes forked from it."""
    global _renderer  # noqa: PLW0603  the processes that are forked find it there
    if _renderer is None:
        torch.set_num_threads(1)
        renderer = renderer_from_config(config)
        renderer.warmup(_CHAT)
        _renderer = Renderer(renderer)


def render(request: EngineRequest, name: str) -> Sealed:
    """Return a request as sealed memory. Raises `MediaError`."""
    assert _renderer is not None  # noqa: S101  it is loaded before any process is forked
    return packed(_renderer.render(request, name))
