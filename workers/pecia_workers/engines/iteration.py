"""Continuous batching as an iteration-level model: what an engine's scheduler decides, and how long it takes.

Pure and without a clock. Each iteration gives every running sequence one token of decode, or a chunk of its prefill,
within `max_num_batched_tokens`; waiting sequences are admitted first come first served while slots and KV blocks last.
When blocks run out, the newest sequence gives up all of its own, waits at the head of the queue and is computed again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationModel:
    """Limits and speed of an engine."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 16_384
    kv_blocks: int = 8_192
    memory_tokens: int | None = None
    """Tokens of running sequences for which there is memory; None: for all that the cache holds."""
    base_s: float = 0.008
    """Seconds each iteration takes whatever it does."""
    prefill_token_s: float = 0.000_02
    decode_sequence_s: float = 0.000_1

    def duration(self, prefilled: int, decoded: int) -> float:
        """Return the seconds of an iteration."""
        return self.base_s + prefilled * self.prefill_token_s + decoded * self.decode_sequence_s


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request inside the engine."""

    id: str
    prompt: int
    output: int
    """Tokens it will write, at least 1."""
    computed: int = field(default=0, init=False)
    """Tokens whose keys and values are in the cache."""
    generated: int = field(default=0, init=False)
    blocks: int = field(default=0, init=False)

    @property
    def is_decoding(self) -> bool:
        """Whether nothing but its last token is left to compute."""
        return self.generated > 0 and self._remaining == 1

    @property
    def is_finished(self) -> bool:
        """Whether it has written everything."""
        return self.generated >= self.output

    @property
    def _remaining(self) -> int:
        return self.prompt + self.generated - self.computed

    def chunk(self, budget: int) -> int:
        """Return how many tokens it can compute in an iteration with this budget left."""
        return min(self._remaining, budget)

    def compute(self, tokens: int) -> None:
        """Compute tokens; the one that completes what is known so far writes the next."""
        self.computed += tokens
        if self._remaining == 0:
            self.generated += 1

    def restart(self) -> int:
        """Give up all blocks, to be computed again with what it has written; return how many they were."""
        freed, self.blocks, self.computed = self.blocks, 0, 0
        return freed


class OutOfMemoryError(Exception):
    """An iteration is larger than the memory: nothing that runs survives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one iteration did."""

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
    """Decides iteration by iteration what an engine computes."""

    def __init__(self, model: IterationModel) -> None:
        self.model = model
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._free = model.kv_blocks

    @property
    def kv_used(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return 1 - self._free / self.model.kv_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `ValueError` if it is empty or could never be held."""
        if min(sequence.prompt, sequence.output) < 1:
            raise ValueError("A sequence reads and writes at least one token.")
        if _blocks(sequence.prompt + sequence.output) > self.model.kv_blocks:
            raise ValueError("The sequence is longer than the whole KV cache.")
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks; one that is not here is no error."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._free += sequence.restart()
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def step(self) -> Iteration:
        """Run one iteration. Raises `OutOfMemoryError`; then remove what runs."""
        plan, preempted = self._continue_running()
        if not preempted:
            self._admit(plan)
        self._check_memory(plan)
        return self._compute(plan, preempted)

    def _continue_running(self) -> tuple[dict[Sequence, int], int]:
        plan: dict[Sequence, int] = {}
        budget, preempted, index = self.model.max_num_batched_tokens, 0, 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            chunk = sequence.chunk(budget)
            while not self._reserve(sequence, chunk):
                preempted += 1
                if self._preempt_newest() is sequence:
                    return plan, preempted
            plan[sequence] = chunk
            budget -= chunk
            index += 1
        return plan, preempted

    def _admit(self, plan: dict[Sequence, int]) -> None:
        budget = self.model.max_num_batched_tokens - sum(plan.values())
        while self.waiting and budget > 0 and len(self.running) < self.model.max_num_seqs:
            sequence = self.waiting[0]
            chunk = sequence.chunk(budget)
            if not self._reserve(sequence, chunk):
                return
            self.running.append(self.waiting.popleft())
            plan[sequence] = chunk
            budget -= chunk

    def _check_memory(self, plan: dict[Sequence, int]) -> None:
        limit = self.model.memory_tokens
        if limit is not None and sum(one.computed for one in self.running) + sum(plan.values()) > limit:
            raise OutOfMemoryError

    def _compute(self, plan: dict[Sequence, int], preempted: int) -> Iteration:
        decoding = [sequence for sequence in plan if sequence.is_decoding]
        unwritten = [sequence for sequence in plan if sequence.generated == 0]
        for sequence, chunk in plan.items():
            sequence.compute(chunk)
        finished = tuple(sequence for sequence in plan if sequence.is_finished)
        for sequence in finished:
            self.remove(sequence)
        prefilled = sum(plan.values()) - len(decoding)
        return Iteration(
            duration=self.model.duration(prefilled, len(decoding)),
            prefilled=prefilled,
            decoded=len(decoding),
            started=tuple(sequence for sequence in unwritten if sequence.generated),
            finished=finished,
            preempted=preempted,
        )

    def _reserve(self, sequence: Sequence, chunk: int) -> bool:
        needed = _blocks(sequence.computed + chunk) - sequence.blocks
        if needed > self._free:
            return False
        self._free -= needed
        sequence.blocks += needed
        return True

    def _preempt_newest(self) -> Sequence:
        newest = self.running.pop()
        self._free += newest.restart()
        self.waiting.appendleft(newest)
        return newest


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
