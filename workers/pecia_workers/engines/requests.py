"""Preparation of requests for a language model: rendering in turn, reducing pictures that do not fit, loops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.protocol.base import EngineError, EngineRefusedError, EngineRequest
from pecia_workers.protocol.parts import waiting

if TYPE_CHECKING:
    from pecia_workers.engines.vllm.rendering import Rendered

_DOUBTFUL: Final = 0.25
"""Share of the context from which an estimated prompt is counted exactly before it is sent."""
_TRIES: Final = 8
"""Reductions of a request before it is refused."""
_LEAST_FRAMES: Final = 2
_LEAST_SIDE: Final = 56
"""Least side of a reduced picture, in pixels."""
_LEAST_ANSWER: Final = 16
_UNCHANGED: Final = 0.5
"""Most of its size that a picture keeps if its reduction saved no tokens: the model reduces it anyway."""
_MARGIN: Final = 0.98
"""Margin on areas, since sides are rounded to a model's patches."""
_NOTHING_FITS: Final = "No legible picture fits into the context beside the text."

LOOPS: Final = {"min_pattern_size": 8, "max_pattern_size": 48, "min_count": 12}
"""Number and length, in tokens, of equal patterns at the end of a text that make it a loop; the names are vLLM's.

A shorter pattern repeats within the shortest; an empty table of a dozen rows is not yet a loop.
"""
_VERDICTS: Final = {"stop": Verdict.OK, "length": Verdict.TRUNCATED, "repetition": Verdict.REPETITION}


def is_loop(pieces: Sequence[object]) -> bool:
    """Return whether a text, in pieces of one token each, ends in a loop."""
    for size in range(LOOPS["min_pattern_size"], LOOPS["max_pattern_size"] + 1):
        length = size * LOOPS["min_count"]
        if len(pieces) < length or pieces[-1] != pieces[-1 - size]:
            continue
        if pieces[-length:-size] == pieces[-length + size :]:  # so the end is one pattern, again and again
            return True
    return False


def verdict_of(finish_reason: str, text: str, *, otherwise: str) -> Verdict:
    """Return the verdict for a finish reason of vLLM or OpenAI. Raises `EngineError` for any other."""
    if finish_reason not in _VERDICTS:
        raise EngineError(otherwise)
    return _VERDICTS[finish_reason] if text.strip() else Verdict.UNREADABLE


def check_adapter(request: EngineRequest, settings: WorkerSettings) -> None:
    """Raise `EngineRefusedError` for an adapter that the settings do not name."""
    if request.adapter is not None and request.adapter not in settings.adapters:
        raise EngineRefusedError(
            "The task names an adapter that this engine does not have.", FailureCode.ADAPTER_UNAVAILABLE
        )


def probe(*images: NDArray[np.uint8]) -> EngineRequest:
    """Return a small request about pictures of our own, with an answer of one word."""
    return EngineRequest(
        id="probe", images=images, workload="mixed", instruction="Read this.", max_output_tokens=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of one request, in tokens."""

    context: int
    """Limit of prompt and answer."""
    item: int
    """Limit of one picture or clip in the engine's encoder."""

    def share(self, request: EngineRequest, words: int, pictures: int, largest: int = 0) -> float:
        """Return the share of its pictures' tokens that fits beside its text and expected answer; from 1 on, all fit.

        `largest`: tokens of the largest picture. Raises `EngineRefusedError` if not even the text fits.
        """
        answer = min(request.output_tokens, max(_LEAST_ANSWER, self.context // 4))
        most = self.context - words - answer
        if pictures and most < 1:
            raise EngineRefusedError(_NOTHING_FITS)
        if most < 0:
            raise EngineRefusedError(
                f"The words alone are {words} tokens; the engine's context is {self.context}."
            )
        return min(most / max(pictures, 1), self.item / max(largest, 1)) if pictures else 1.0


Sizes = tuple[int, int, int]
"""Tokens of a request: its words, its pictures, the largest of these (0: unknown)."""
Measure = Callable[[EngineRequest], Awaitable[Sizes | None]]


async def fitted(request: EngineRequest, limits: RequestLimits, measure: Measure) -> EngineRequest:
    """Return the request, its pictures reduced until they fit by this measure; unchanged if the measure is unknown.

    Raises `EngineRefusedError` if no legible picture would fit, or the text alone is too long.
    """
    former: int | None = None
    for _ in range(_TRIES):
        sizes = await measure(request)
        if sizes is None:
            return request
        _, pictures, _ = sizes
        share = limits.share(request, *sizes)
        if share >= 1:
            return request
        share, former = min(share, _UNCHANGED if pictures == former else 1), pictures
        request = await asyncio.to_thread(shrunk, request, share)
    raise EngineRefusedError(
        f"The pictures cannot be reduced enough for a context of {limits.context} tokens."
    )


async def fitted_by_count(
    request: EngineRequest, limits: RequestLimits, count: Callable[[EngineRequest], Awaitable[int | None]]
) -> EngineRequest:
    """Return the request like `fitted`, counting complete prompts if the estimate is close to the limit."""
    if request.prompt_tokens <= limits.context * _DOUBTFUL:
        return request
    words = await count(replace(request, images=(), clip=None))

    async def sizes(tried: EngineRequest) -> Sizes | None:
        total = await count(tried)
        return None if words is None or total is None else (words, total - words, 0)

    return await fitted(request, limits, sizes)


def shrunk(request: EngineRequest, share: float) -> EngineRequest:
    """Return the request with this share of its frames, or of its pictures' area. May take a second.

    A clip keeps its first and last frame. Raises `EngineRefusedError` if the result would not be legible.
    """
    clip = request.clip
    if clip and len(request.images) > _LEAST_FRAMES:
        frames = max(_LEAST_FRAMES, int(len(request.images) * share))
        kept = np.linspace(0, len(request.images) - 1, frames).round().astype(int)
        thinned = replace(clip, indices=tuple(clip.indices[index] for index in kept))
        return replace(request, images=tuple(request.images[index] for index in kept), clip=thinned)
    side = sqrt(share) * _MARGIN
    sizes = [(round(image.shape[1] * side), round(image.shape[0] * side)) for image in request.images]
    if min(map(min, sizes)) < _LEAST_SIDE:
        raise EngineRefusedError(_NOTHING_FITS)
    return replace(request, images=tuple(map(resized, request.images, sizes)))


def resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a picture in this width and height."""
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


class Turns:
    """Limits concurrent blocks; lower ranks first, and first come first served within a rank. For one loop."""

    def __init__(self, places: int = 1, opens: Callable[[int], bool] = lambda _rank: True) -> None:
        """`places`: concurrent blocks. `opens(rank)`: whether a rank may start; if not, no higher rank may either."""
        self._free = places
        self._opens = opens
        self._arrivals = count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, rank: int) -> AsyncIterator[None]:
        """Run the block when its turn comes, lowest rank first. The wait does not count as the part's work."""
        turn = asyncio.get_running_loop().create_future()
        heappush(self._queue, (rank, next(self._arrivals), turn))
        self.look()
        try:
            if not turn.done():
                with waiting():
                    await turn
            yield
        finally:
            if not turn.cancel() and not turn.cancelled():
                self._free += 1
            self.look()

    def look(self) -> None:
        """Start blocks whose turn has come; to be called when the result of `opens` may have changed."""
        while self._free and self._queue:
            rank, _, turn = self._queue[0]
            if not turn.done():
                if not self._opens(rank):
                    return
                turn.set_result(None)
                self._free -= 1
            heappop(self._queue)


Render = Callable[[EngineRequest], Awaitable["Rendered"]]
"""Returns the request's prompt. Raises `EngineError`."""
_ADMITTED: Final = 1_000


class Prepared(AbstractContextManager["Prepared"]):
    """A request's prompt, held until the engine takes it or the block is left."""

    def __init__(self, rendered: Rendered, free: Callable[[], None]) -> None:
        self.tokens = rendered.tokens
        """Length of the prompt."""
        self._rendered: Rendered | None = rendered
        self._free = free

    def take(self) -> Rendered | None:
        """Return the prompt once, then None."""
        rendered, self._rendered = self._rendered, None
        if rendered is not None:
            self._free()
        return rendered

    def __exit__(self, *_: object) -> None:
        self.take()


class Preparation:
    """Renders requests, a limited number at the same time, with a bounded size of waiting prompts."""

    def __init__(self, render: Render, places: int, most_bytes: int) -> None:
        self._render = render
        self._ready: Counter[int] = Counter()
        """Bytes by rank of prompts that no engine has taken yet."""
        # None waits for bytes that less urgent pages take.
        self._turns = Turns(
            places,
            lambda rank: sum(size for other, size in self._ready.items() if other <= rank) < most_bytes,
        )

    async def prepare(
        self, request: EngineRequest, limits: RequestLimits, *, admitted: bool = False
    ) -> EngineRequest:
        """Return the request with its prompt, its pictures reduced until they fit. Raises `EngineError`.

        An `admitted` request precedes all others and does not wait for bytes, since others may wait for its slot.
        """
        rank = request.priority - (_ADMITTED if admitted else 0)
        made: list[Rendered] = []

        async def rendered_sizes(request: EngineRequest) -> Sizes:
            rendered = await self._render(request)
            made[:] = [rendered]
            pictures = rendered.image_tokens
            return rendered.tokens - pictures, pictures, rendered.largest_item

        def free() -> None:
            self._ready[rank] -= size
            self._turns.look()

        async with self._turns.turn(rank):
            request = await fitted(request, limits, rendered_sizes)
            (rendered,) = made
            size = rendered.size
            self._ready[rank] += size
            return replace(request, prepared=Prepared(rendered, free))
