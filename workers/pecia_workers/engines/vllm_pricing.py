"""What a request's prompt takes of vLLM, to the token, before vLLM has seen it.

Pictures and clips by the family's own formula, words by the checkpoint's tokenizer, the chat template's frame by what
the engine's renderer made of a few probes when it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from pecia_workers.engines.base import ClipTimes, EngineRequest, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pecia_workers.batching.cost import TokenCounter

_WORDS: Final = "Read this."
_PROBES: Final = ((84, 112), (280, 196))
"""Heights and widths, in pixels, of the pictures that a count is held against."""
_CLIP_FRAMES: Final = 4
_REMEMBERED_TEXTS: Final = 1024


class Renderer(Protocol):
    """Counts a prompt as the engine does."""

    async def prompt_tokens(self, request: EngineRequest) -> int:
        """Return the length of the request's prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Modalities:
    """What one request may hold."""

    images: int
    """Pictures, at most."""
    clips: bool
    """Whether frames go in as one video."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrice:
    """Prompt tokens of requests, exact."""

    counter: TokenCounter
    text_tokens: Callable[[str], int]
    bare: int
    """Tokens of the chat template around words alone."""
    with_image: int
    """The same around one picture."""
    per_image: int
    """What each further picture adds beside its own tokens."""
    with_clip: int

    def tokens(self, request: EngineRequest) -> int:
        """Return the prompt's length. Raises `pecia_workers.batching.cost.CostError`."""
        return self._frame(request) + self.text_tokens(request.instruction) + self.pictures(request)

    def pictures(self, request: EngineRequest) -> int:
        """Return what the request's pictures, or its clip, add."""
        sizes = [(image.shape[1], image.shape[0]) for image in request.images]
        if request.clip and self.counter.takes_video:
            width, height = sizes[0]
            clip = request.clip
            return self.counter.video_tokens(len(sizes), width, height, clip.fps, indices=clip.indices)
        return sum(self.counter.image_tokens(width, height) for width, height in sizes)

    def _frame(self, request: EngineRequest) -> int:
        if not request.images:
            return self.bare
        if request.clip and self.counter.takes_video:
            return self.with_clip
        return self.with_image + self.per_image * (len(request.images) - 1)


async def calibrated(
    counter: TokenCounter, text_tokens: Callable[[str], int], renderer: Renderer, modalities: Modalities
) -> PromptPrice | None:
    """Return prices that agree with the engine's own count on pictures and clips of some sizes.

    None if a processor that counts for itself does not agree: the engine has another. Raises `EngineUnavailableError`
    if a formula does not.
    """
    try:
        return await _calibrated(counter, text_tokens, renderer, modalities)
    except EngineUnavailableError:
        if not counter.by_processor:
            raise
        return None


async def _calibrated(
    counter: TokenCounter, text_tokens: Callable[[str], int], renderer: Renderer, modalities: Modalities
) -> PromptPrice:
    count = lru_cache(maxsize=_REMEMBERED_TEXTS)(text_tokens)
    images = [_probe([_picture(size)]) for size in _PROBES]
    with_image = await _frame_of(images, counter, count, renderer)
    per_image = with_clip = 0
    if modalities.images > 1:
        pairs = [_probe([_picture(size), _picture(size)]) for size in _PROBES]
        per_image = await _frame_of(pairs, counter, count, renderer) - with_image
    if modalities.clips and counter.takes_video:
        times = ClipTimes(fps=2.0, indices=tuple(range(_CLIP_FRAMES)), duration=_CLIP_FRAMES / 2)
        clips = [_probe([_picture(size)] * _CLIP_FRAMES, times) for size in _PROBES]
        with_clip = await _frame_of(clips, counter, count, renderer)
    return PromptPrice(
        counter=counter,
        text_tokens=count,
        bare=await renderer.prompt_tokens(_probe([])) - count(_WORDS),
        with_image=with_image,
        per_image=per_image,
        with_clip=with_clip,
    )


async def _frame_of(
    probes: Sequence[EngineRequest],
    counter: TokenCounter,
    text_tokens: Callable[[str], int],
    renderer: Renderer,
) -> int:
    """Return the tokens of the frame around the probes' pictures, which must be the same for all."""
    naked = PromptPrice(
        counter=counter, text_tokens=text_tokens, bare=0, with_image=0, per_image=0, with_clip=0
    )
    frames = {await renderer.prompt_tokens(probe) - naked.tokens(probe) for probe in probes}
    if len(frames) > 1:
        raise EngineUnavailableError(
            f"The token formula of {counter.family} is not this checkpoint's: it is wrong by {min(frames)} to"
            f" {max(frames)} tokens. PECIA_EXACT_COST=false lets the engine count by itself, which is slower."
        )
    return frames.pop()


def _probe(images: Sequence[NDArray[np.uint8]], clip: ClipTimes | None = None) -> EngineRequest:
    return EngineRequest(id="probe", images=tuple(images), clip=clip, workload="mixed", instruction=_WORDS)


def _picture(size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.zeros((*size, 3), dtype=np.uint8)
