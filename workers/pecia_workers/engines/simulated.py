"""Engines without a model: one simulates the time of a language model, one answers immediately.

`IterationScheduler` is continuous batching without a clock: what an engine's scheduler decides, and how long it takes.
Each iteration gives every running sequence one token of decode, or a chunk of its prefill, within
`max_num_batched_tokens`; waiting sequences are admitted first come first served while slots and KV blocks last. When
blocks run out, the newest sequence frees its blocks, returns to the head of the queue and is computed again, or with
`swap` is kept in the host's memory and restored. With `chunk_tokens` and `prefill_share` a long prompt uses only part
of each iteration, so that writing sequences wait less.
"""

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, DocumentType
from pecia_workers.engines import models
from pecia_workers.protocol import base

BLOCK_TOKENS = models.BLOCK
_INSTANT_SLOTS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationModel:
    """Limits and speed of an engine."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 16_384
    kv_blocks: int = 8_192
    chunk_tokens: int | None = None
    """Most prompt tokens in an iteration; None: no limit beside the iteration's own."""
    prefill_share: float = 1.0
    """Largest share of prompts in an iteration's tokens."""
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_block_s: float = 0.000_04
    """Seconds to move one block to the host's memory or back: 1 MiB at 25 GB/s, half of what PCIe 5 can do."""
    base_s: float = 0.008
    """Constant seconds of each iteration."""
    prefill_token_s: float = 0.000_02
    decode_sequence_s: float = 0.000_1

    @property
    def budget(self) -> base.Budget:
        """Budget: sequences, and the KV cache in tokens."""
        tokens = self.kv_blocks * BLOCK_TOKENS
        step = self.prefill_budget(0)
        return base.Budget(slots=self.max_num_seqs, tokens=tokens, block=BLOCK_TOKENS, step_tokens=step)

    def prefill_budget(self, decoding: int) -> int:
        """Return the prompt tokens of an iteration beside that many writing sequences, at least 1."""
        share = int(self.prefill_share * self.max_num_batched_tokens)
        left = self.max_num_batched_tokens - decoding
        return max(1, min(share, left, self.chunk_tokens or left))

    def duration(self, prefilled: int, decoded: int, swapped: int = 0) -> float:
        """Return the seconds of an iteration that swapped `blocks`."""
        computing = prefilled * self.prefill_token_s + decoded * self.decode_sequence_s
        return self.base_s + computing + swapped * self.swap_block_s


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request inside the engine."""

    id: str
    prompt: int
    output: int
    """Tokens it will write, at least 1."""
    rank: int = 0
    """Rank of its lane: smaller is sooner."""
    computed: int = field(default=0, init=False)
    """Tokens whose keys and values are in the cache."""
    generated: int = field(default=0, init=False)
    blocks: int = field(default=0, init=False)
    swapped: int = field(default=0, init=False)
    """Blocks in the host's memory."""

    @property
    def remaining(self) -> int:
        """Known tokens that are still to be computed."""
        return self.prompt + self.generated - self.computed

    @property
    def is_decoding(self) -> bool:
        """Whether only its last token is left to compute."""
        return self.generated > 0 and self.remaining == 1

    @property
    def is_finished(self) -> bool:
        """Whether it has written everything."""
        return self.generated >= self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Record of one iteration."""

    duration: float
    """Seconds."""
    prefilled: int
    """Tokens of prompts, those computed again included."""
    decoded: int
    """Sequences that took one decode step."""
    started: tuple[Sequence, ...]
    """Sequences that wrote their first token."""
    finished: tuple[Sequence, ...]
    preempted: int


class IterationScheduler:
    """Schedules an engine's computation, iteration by iteration."""

    def __init__(self, model: IterationModel) -> None:
        self.model = model
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._free = model.kv_blocks
        self._moved = 0
        self._preemptions = 0

    @property
    def load(self) -> base.Load:
        """Its load; written tokens include those of preempted sequences."""
        return base.Load(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used=1 - self._free / self.model.kv_blocks,
            preemptions=self._preemptions,
            written={one.id: one.generated for queue in (self.running, self.waiting) for one in queue},
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `ValueError` if it is empty or larger than the cache."""
        if min(sequence.prompt, sequence.output) < 1:
            raise ValueError("A sequence reads and writes at least one token.")
        if _blocks(sequence.prompt + sequence.output) > self.model.kv_blocks:
            raise ValueError("The sequence is longer than the KV cache.")
        behind = sum(other.rank > sequence.rank for other in self.waiting)
        self.waiting.insert(len(self.waiting) - behind, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and free its blocks; an unknown sequence is ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def step(self) -> Iteration:
        """Run one iteration."""
        self._moved = 0
        plan, preempted = self._continue_running()
        self._preemptions += preempted
        if not preempted:
            self._admit(plan)
        decoding = sum(sequence.is_decoding for sequence in plan)
        unwritten = [sequence for sequence in plan if sequence.generated == 0]
        for sequence, chunk in plan.items():
            sequence.computed += chunk
            sequence.generated += sequence.remaining == 0  # what completes all that is known writes the next
        finished = tuple(sequence for sequence in plan if sequence.is_finished)
        for sequence in finished:
            self.remove(sequence)
        prefilled = sum(plan.values()) - decoding
        return Iteration(
            duration=self.model.duration(prefilled, decoding, self._moved),
            prefilled=prefilled,
            decoded=decoding,
            started=tuple(sequence for sequence in unwritten if sequence.generated),
            finished=finished,
            preempted=preempted,
        )

    def coast(self, most: int) -> int:
        """Run up to `most` iterations in which every sequence writes and none starts, ends or is preempted.

        Returns their number, perhaps 0; all take the same time. Equivalent to single steps, but much faster.
        """
        model, running = self.model, self.running
        writing = all(sequence.is_decoding for sequence in running)
        if self.waiting or not running or not writing:
            return 0
        steps = min(most, min(sequence.output - sequence.generated for sequence in running) - 1)
        needed = sum(_blocks(sequence.computed + steps) - sequence.blocks for sequence in running)
        if steps < 1 or needed > self._free or len(running) > model.max_num_batched_tokens:
            return 0
        for sequence in running:
            self._reserve(sequence, steps)
            sequence.computed += steps
            sequence.generated += steps
        return steps

    def _continue_running(self) -> tuple[dict[Sequence, int], int]:
        plan: dict[Sequence, int] = {}
        budget, preempted, index = self.model.max_num_batched_tokens, 0, 0
        prompts = self._prefill_budget()
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            chunk = min(sequence.remaining, budget if sequence.is_decoding else min(budget, prompts))
            while not self._reserve(sequence, chunk):
                preempted += 1
                newest = max(reversed(self.running), key=lambda one: one.rank)
                self.running.remove(newest)
                if self.model.preemption == "swap":
                    self._moved += newest.blocks
                    self._free += newest.blocks
                    newest.swapped, newest.blocks = newest.blocks, 0
                else:
                    self._release(newest)
                self.waiting.appendleft(newest)
                if newest is sequence:
                    return plan, preempted
            plan[sequence] = chunk
            budget -= chunk
            index += 1
        return plan, preempted

    def _admit(self, plan: dict[Sequence, int]) -> None:
        read = sum(chunk for sequence, chunk in plan.items() if not sequence.is_decoding)
        left = self.model.max_num_batched_tokens - sum(plan.values())
        budget = min(left, self._prefill_budget() - read)
        while self.waiting and budget > 0 and len(self.running) < self.model.max_num_seqs:
            sequence = self.waiting[0]
            chunk = min(sequence.remaining, budget)
            if not self._reserve(sequence, chunk):
                return
            self._moved, sequence.swapped = self._moved + sequence.swapped, 0
            self.running.append(self.waiting.popleft())
            plan[sequence] = chunk
            budget -= chunk

    def _prefill_budget(self) -> int:
        return self.model.prefill_budget(sum(sequence.is_decoding for sequence in self.running))

    def _reserve(self, sequence: Sequence, chunk: int) -> bool:
        needed = _blocks(sequence.computed + chunk) - sequence.blocks
        if needed > self._free:
            return False
        self._free -= needed
        sequence.blocks += needed
        return True

    def _release(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence, to be computed again with what it has written."""
        self._free += sequence.blocks
        sequence.blocks = sequence.computed = 0


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


_SPREADS: Final[dict[str, tuple[float, float, int]]] = {
    DocumentType.PRESCRIPTION: (200, 80, 500),
    DocumentType.DIAGNOSIS: (800, 300, 2000),
    DocumentType.LAB_RESULT: (400, 150, 1000),
    DocumentType.CHART: (2000, 800, 5000),
    DocumentType.MIXED: (600, 700, 5000),
}
"""Output tokens of a page in the medical workload: mean, deviation, maximum. Other types vary around their mean."""

OutputLengths = Callable[[str, str], int]
"""Returns the output tokens of a request of a workload, at least 1; deterministic for a request."""


def drawn_length(request_id: str, workload: str, *, seed: int = 0) -> int:
    """Return a length, log-normal with the type's mean and deviation, cut at its maximum: with a long tail."""
    expected = EXPECTED_OUTPUT_TOKENS[workload]
    mean, deviation, most = _SPREADS.get(workload, (expected, expected / 2, 2 * expected))
    variance = math.log(1 + (deviation / mean) ** 2)
    rng = random.Random(f"{seed}:{request_id}")  # noqa: S311  a workload, no secret
    drawn = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    return min(most, max(1, round(drawn)))


class Clock:
    """The loop's time for a simulation; late wake-ups are compensated by the next."""

    def __init__(self) -> None:
        self._due = 0.0

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        # An iteration starts when the one before was due, or now after a pause in which there was nothing to do.
        late = self.now - self._due
        start = self._due if 0 <= late < seconds else self.now
        self._due = start + seconds
        await asyncio.sleep(self._due - self.now)


@dataclass(slots=True, eq=False)
class _Running:
    arrived: float
    ended: asyncio.Future[None]
    first_token_s: float | None = None


def _simulated(model: str) -> base.Capabilities:
    return base.Capabilities(name="simulated", model=model, stages=base.LANGUAGE_MODEL, samples=False)


class SimulatedEngine(base.Engine):
    """Follows `IterationScheduler` in real or virtual time: true token counts and times, but no text."""

    def __init__(
        self,
        model: IterationModel | None = None,
        lengths: OutputLengths | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._scheduler = IterationScheduler(model or IterationModel())
        super().__init__(_simulated("iteration-level"), self._scheduler.model.budget)
        self._lengths = lengths or drawn_length
        self._clock = clock or Clock()
        self._running: dict[Sequence, _Running] = {}
        self._work = asyncio.Event()
        self._iterations: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to iterate."""
        self._iterations = asyncio.create_task(self._iterate())

    async def stop(self) -> None:
        """End every request; callers get `asyncio.CancelledError`."""
        await self._end_all()
        if self._iterations is not None:
            self._iterations.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._iterations

    async def _answer(self, request: base.EngineRequest) -> base.Generation:
        length = self._lengths(request.id, request.workload)
        output = min(length, request.max_output_tokens or length)
        sequence = Sequence(id=request.id, prompt=request.prompt_tokens, output=output, rank=request.priority)
        try:
            self._scheduler.add(sequence)
        except ValueError as error:
            raise base.EngineError(str(error)) from None
        running = _Running(self._clock.now, asyncio.get_running_loop().create_future())
        self._running[sequence] = running
        self._work.set()
        try:
            await running.ended
        finally:
            del self._running[sequence]
            self._scheduler.remove(sequence)
        return base.Generation(
            text="",
            verdict=Verdict.TRUNCATED if output < length else Verdict.OK,
            usage=TokenUsage(prompt=sequence.prompt, image=request.picture_tokens, output=sequence.generated),
            first_token_s=running.first_token_s,
        )

    def load(self) -> base.Load:
        """Return the scheduler's load; requests that it has not received yet count as waiting."""
        held = self._scheduler.load
        return replace(held, waiting=len(self._in_flight) - held.running)

    async def _iterate(self) -> None:
        while True:
            if not self._running:
                self._work.clear()
                await self._work.wait()
            iteration = self._scheduler.step()
            await self._clock.sleep(iteration.duration)
            for sequence in iteration.started:
                if running := self._running.get(sequence):
                    running.first_token_s = self._clock.now - running.arrived
            for sequence in iteration.finished:
                if (running := self._running.get(sequence)) and not running.ended.done():
                    running.ended.set_result(None)


class InstantEngine(SimulatedEngine):
    """Answers immediately without text, to measure the cost of everything around an engine."""

    _ANSWER: Final = base.Generation(text="", verdict=Verdict.OK, usage=TokenUsage())

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = _simulated("instant")
        self.budget = base.Budget(slots=_INSTANT_SLOTS, tokens=None)

    async def start(self) -> None:
        """Nothing is loaded."""

    async def generate(self, request: base.EngineRequest) -> base.Generation:  # noqa: ARG002  nothing is read
        """Return immediately."""
        return self._ANSWER

    def load(self) -> base.Load:
        """Return an idle engine's load."""
        return base.Load(running=0, waiting=0)
