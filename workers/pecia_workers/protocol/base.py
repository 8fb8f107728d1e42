"""The interface of engines, which turn pixels into text."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from pecia_schemas.blocks import Block, Box, Doubt, Line, Stored
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, PROMPT_TOKENS, image_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LANGUAGE_MODEL: Final = frozenset({Stage.READ, Stage.CAPTION, Stage.SUMMARIZE})
"""Stages of every engine that runs a vision-language model."""
_READS_ALONE: Final = frozenset({"cpu", "rapidocr", "ray", "tesseract"})
_KINDS: Final = {
    "": LANGUAGE_MODEL,
    "read": frozenset({Stage.READ}),
    "caption": frozenset({Stage.CAPTION, Stage.SUMMARIZE}),
}


def stages_of(engine: str) -> frozenset[Stage]:
    """Return the stages that the engine of this name can work on."""
    return frozenset({Stage.READ}) if engine in _READS_ALONE else LANGUAGE_MODEL


def stages_served(settings: WorkerSettings) -> frozenset[Stage]:
    """Return the stages of an engine worker with these settings; none if its engine cannot do the configured work."""
    return stages_of(settings.engine) & _KINDS[settings.stages]


def only_captions(settings: WorkerSettings) -> bool:
    """Return whether an engine worker with these settings reads no pages."""
    return Stage.READ not in _KINDS[settings.stages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of an engine; stored in the worker's row for the rest of the fleet."""

    name: str
    model: str
    stages: frozenset[Stage]
    languages: frozenset[str] | None = None
    """ISO 639-1 codes that it reads; None: all that its model knows."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """For each language that it could read if something were installed: a sentence that says what to do."""
    fields: bool = False
    """Whether it can fill a JSON schema."""
    instructions: bool = False
    """Whether it follows a task's own instructions."""
    most_pixels: int = 4096 * 4096
    longest_side: int = 4096 * 4096
    """Longest side of a page, in pixels; larger pages are reduced. Defaults: the largest pictures of any model."""
    completes: bool = False
    """Whether it reads the rest of a page of which some text is known."""
    samples: bool = True
    """Whether sampling parameters change its output, as with language models."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that a task may name."""
    device: str | None = None
    """Device: `cpu`, or the GPU's name; None: unknown."""
    preparers: int = 0
    """Processes that prepare pages for it; 0: the worker prepares them, or no preparation is needed."""
    revision: str | None = None
    """Identifies its model, adapters and version: changes when one of them does. None: unknown."""

    def seen(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the width and height, in pixels, to which it reduces a picture of this size."""
        width, height = size
        scale = min(math.sqrt(self.most_pixels / (width * height)), self.longest_side / max(size))
        return size if scale >= 1 else (max(1, int(width * scale)), max(1, int(height * scale)))

    def reads(self, language: str | None) -> bool:
        """Return whether it reads the task's language, or one of several."""
        return not language or self.languages is None or not self.languages.isdisjoint(language.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """KV cache of a request by kind of layer, in tokens of the engine's budget."""

    full: float = 1.0
    """Kept for each token as long as the request runs."""
    windows: tuple[tuple[int, float], ...] = ()
    """Sliding windows: pairs of window length, in tokens, and budget for each token in it."""
    in_flight: int = 0
    """Tokens that windows keep in addition until the prompt is read."""

    def held(self, tokens: int, left: int, *, begun: bool) -> int:
        """Return the tokens that a request of `tokens` holds, its windows counted after `left` more."""
        beside = 0 if begun else self.in_flight
        kept = sum(share * min(tokens + left, window + beside) for window, share in self.windows)
        return math.ceil(self.full * tokens + kept)


WHOLE: Final = Layers()
"""Every layer keeps all tokens of a request, counted once in the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much an engine can hold at the same time."""

    slots: int
    """Requests in flight."""
    tokens: int | None
    """Sum of the costs in flight; None: only the slots count."""
    block: int = 1
    """Tokens in one block of its cache."""
    layers: Layers = WHOLE
    step_tokens: int | None = None
    """Tokens that it computes in one step; None for an engine that does not report what its requests have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a language model picks its words; other engines ignore it. The default is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    """Strings that end an answer, beside the model's own end token."""
    skip_special_tokens: bool = True
    """Off: the answer holds the model's special tokens, where they are its markup."""
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    """For the model's own logits processor."""

    @property
    def parameters(self) -> dict[str, Any]:
        """All of it, by vLLM's names; the defaults of what few models need are left out."""
        usual = {"presence_penalty": 0.0, "stop": (), "skip_special_tokens": True, "extra_args": {}}
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        own = {name: value for name, value in values if name not in usual or value != usual[name]}
        return own | {"stop": list(self.stop)} if self.stop else own


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTimes:
    """When a segment's frames were shown."""

    fps: float
    """Frames per second of the source that `indices` counts."""
    indices: tuple[int, ...]
    """Position of each frame in the source, from 0."""
    duration: float
    """Seconds of the source."""


class Piece(Stored):
    """A piece of text that was read quickly, or an area of the page in which text was missed."""

    corners: tuple[float, ...]
    """x and y of its four corners, from the top left of its text clockwise."""
    words: tuple[Box, ...]
    """The words that were read there."""
    is_gap: bool = False
    """Whether text was missed there, to be located beside the words."""
    written: tuple[str, ...] = ()
    """What the page's text has that is like a word of these: the word says so where its ink may as well be that."""
    parts_thousands: bool = False
    """Whether the page parts its thousands by commas, and none by a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One part, ready for the engine."""

    id: str
    part: UUID | None = None
    """The part's id; one part may make several requests."""
    images: tuple[NDArray[np.uint8], ...]
    """RGB, height x width x 3: one page, the frames of a segment, or nothing for a request of words alone."""
    known: tuple[Line, ...] = ()
    """Exact text of the page, in no order, not itself to be read; for an engine that `completes`."""
    unread: tuple[Box, ...] = ()
    """Areas of the page whose text is not known, without overlap."""
    again: tuple[Piece, ...] = ()
    """Pieces of a quickly read page, to be read again: the answer has a line for each."""
    clip: ClipTimes | None = None
    """Given if the images are the frames of one clip."""
    workload: str
    """Key under which output lengths are learned: a document type, `fields`, `caption-` and a style, or `summary`."""
    language: str | None = None
    instruction: str = ""
    """What a language model is asked to do with the images, in plain words; other engines need none."""
    system: str | None = None
    """System message; None: what the model's chat template says by itself."""
    sampling: Sampling = Sampling()
    schema: Mapping[str, Any] | None = None
    """JSON schema that the text must follow; only for an engine whose capabilities say `fields`."""
    adapter: str | None = None
    """LoRA adapter to answer with; one of the engine's capabilities."""
    log_probabilities: bool = False
    """Whether the answer is to have those of its tokens, if the engine knows them."""
    tenant: str = ""
    """Tenant: the engine's caches share nothing between tenants. Empty: unknown."""
    priority: int = 0
    """Smaller is sooner, for an engine that orders what waits inside it."""
    expected_output_tokens: int | None = None
    """Learned output length of this workload; None: not known yet."""
    max_output_tokens: int | None = None
    until: float | None = field(default=None, compare=False)
    """Deadline, by the loop's clock, at which the engine stops it, whatever it has written; None: no deadline."""
    prepared: AbstractContextManager[object] | None = field(default=None, repr=False, compare=False)
    """Result of the engine's `fit`, for its `generate`; freed when the block is left."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of its pictures, in pixels; there must be one."""
        height, width = self.images[0].shape[:2]
        return width, height

    @property
    def picture_tokens(self) -> int:
        """Tokens of its pictures by the fleet's price formula."""
        return sum(image_tokens(image.shape[1], image.shape[0]) for image in self.images)

    @property
    def prompt_tokens(self) -> int:
        """Tokens that are read before the first is written, by the fleet's price formula."""
        return self.picture_tokens + PROMPT_TOKENS

    @property
    def output_tokens(self) -> int:
        """Tokens that will probably be written, never more than its maximum."""
        expected = self.expected_output_tokens or EXPECTED_OUTPUT_TOKENS[self.workload]
        return min(expected, self.max_output_tokens or expected)

    def bounded(self, most: int) -> EngineRequest:
        """Return the request limited to `most` output tokens, unless it has its own maximum. 0: no limit."""
        return replace(self, max_output_tokens=self.max_output_tokens or most or None)

    def messages(self, shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return it as chat messages: pictures first, then its words if it has any."""
        words = [{"type": "text", "text": self.instruction}] if self.instruction else []
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": [*shown, *words]}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The engine's answer to one request."""

    text: str
    verdict: Verdict
    usage: TokenUsage = TokenUsage()  # noqa: RUF009  frozen, so it may be shared
    blocks: tuple[Block, ...] = ()
    """Blocks of a page, in reading order, in pixels of the image; empty if the engine returns only text."""
    coverage: float | None = None
    """Share of the text-like ink that was read; None: not measured."""
    doubts: tuple[Doubt, ...] = ()
    tokens: tuple[tuple[str, float], ...] = ()
    """Of a language model: the text of each token, and the natural logarithm of its probability; empty if they were not
    asked for, or are not known."""
    first_token_s: float | None = None
    waited_s: float = 0.0
    """Seconds before the engine had capacity for it; not part of the engine's time."""
    shrunk_to: tuple[int, int] | None = None
    """Width and height, in pixels, to which the engine reduced the images; None: not reduced."""
    stopped: bool = False
    """Whether its deadline passed first: then it has no text, and its tokens are counted as far as known."""
    glanced: tuple[Piece, ...] = ()
    """Pieces of text of a quickly read page, each of which may be read `again`."""
    engine: str | None = None
    """Which of several readers of the engine made it; None: the engine itself."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """The blocks' lines, in reading order."""
        return tuple(line for block in self.blocks for line in block.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine is doing now."""

    running: int
    waiting: int
    preparing: int = 0
    """Requests in preparation."""
    kv_used: float | None = None
    """Share of the KV cache's blocks in use, 0 to 1; None for an engine that has none, or does not report it."""
    preemptions: int = 0
    """Requests preempted since the start because the KV cache was full."""
    drifted: int = 0
    """Requests since the start whose prompt length differed from that in `cost`."""
    drafted: int = 0
    """Tokens since the start that were proposed by speculative decoding."""
    accepted: int = 0
    """Proposed tokens that the model accepted."""
    written: Mapping[str, int] = field(default_factory=dict)
    """Tokens written by each request in flight, by id, if the engine reports them; a live mapping."""

    @property
    def acceptance(self) -> float | None:
        """Share of the proposed tokens that was accepted; None where nothing was proposed."""
        return self.accepted / self.drafted if self.drafted else None


class EngineError(Exception):
    """The engine failed on this request only. Its text must not quote the document."""


class EngineRefusedError(EngineError):
    """This engine can never serve the request; another attempt would end the same."""

    def __init__(self, found: str, code: FailureCode = FailureCode.TOO_LARGE) -> None:
        super().__init__(found)
        self.code = code
        """Failure code of the part."""


class EngineOverloadedError(EngineError):
    """The engine had no memory for this request beside the others; with fewer of them it may."""


class EngineDeadError(EngineError):
    """The engine is gone and every request with it."""


class EngineDistrustedError(EngineDeadError):
    """The engine's answers do not match its pages: all results since its last good canary page are void."""


class EngineUnavailableError(ValueError):
    """The engine that the settings name cannot run here; the message says what to change or install."""


class Generator(Protocol):
    """Generates text for the stages: an engine, or a batcher before one."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Cancelling the caller ends the request in the engine. Raises `EngineError`."""
        ...


class Engine(ABC):
    """Turns images into text, many requests at a time, on the loop that started it."""

    def __init__(self, capabilities: Capabilities, budget: Budget, most_output: int = 0) -> None:
        """`most_output`: maximum tokens of an answer whose request has none; 0: no limit."""
        self.capabilities = capabilities
        """Capabilities; complete once it has started."""
        self.budget = budget
        """Budget; fixed once started."""
        self._most_output = most_output
        self._in_flight: dict[str, asyncio.Task[Generation]] = {}

    @abstractmethod
    async def start(self) -> None:
        """Load the model; returns when the engine is ready.

        Raises `EngineDeadError`, `EngineUnavailableError`. `stop` cleans up even after a start that failed or was
        cancelled.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End every request and free all processes and memory; callers get `asyncio.CancelledError`."""

    async def fit(self, request: EngineRequest) -> EngineRequest:
        """Return the request prepared for the engine, with its images reduced where needed.

        Raises `EngineRefusedError` for a request that cannot be made to fit.
        """
        return request

    def cost(self, request: EngineRequest) -> int:
        """Return the cost of a request returned by `fit`, in tokens of the budget: input plus expected output."""
        return self._prompt_tokens(request) + request.bounded(self._most_output).output_tokens

    def _prompt_tokens(self, request: EngineRequest) -> int:
        """Return the length of the request's prompt, as far as the engine knows it."""
        return request.prompt_tokens

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Raises `EngineError`, also for an id that is in flight already."""
        if request.id in self._in_flight:
            raise EngineError("A request with this id is in flight already.")
        clock = asyncio.get_running_loop().time
        timeout = None if request.until is None else max(0.0, request.until - clock())
        prompt = self._prompt_tokens(request)
        # A task, which `stop` can end.
        task = self._in_flight[request.id] = asyncio.create_task(self._answer(request))
        try:
            done, _ = await asyncio.wait([task], timeout=timeout)
            if done:
                return task.result()
            output = self.load().written.get(request.id, 0)
            usage = TokenUsage(prompt=prompt, image=request.picture_tokens, output=output)
            return Generation(text="", verdict=Verdict.TRUNCATED, usage=usage, stopped=True)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            del self._in_flight[request.id]

    @abstractmethod
    async def _answer(self, request: EngineRequest) -> Generation:
        """Return the text. Cancelled when the request is given up."""

    @abstractmethod
    def load(self) -> Load:
        """Return the present load. Raises `EngineDeadError` as soon as the engine is known to be dead."""

    def _load_of(self, slots: int) -> Load:
        """Return the load of an engine that works on at most `slots` requests at the same time."""
        running = min(len(self._in_flight), slots)
        return Load(running=running, waiting=len(self._in_flight) - running)

    async def _end_all(self) -> None:
        """End every request, and wait until all have ended."""
        for task in (tasks := list(self._in_flight.values())):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
