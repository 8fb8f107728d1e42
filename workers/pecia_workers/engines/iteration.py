"""Continuous batching as an iteration-level model: what an engine's scheduler decides, and how long it takes.

Pure and without a clock. Each iteration gives every running sequence one token of decode, or a chunk of its prefill,
within `max_num_batched_tokens`; waiting sequences are admitted first come first served while slots and KV blocks last.
When blocks run out, the newest sequence gives up all of its own, waits at the head of the queue and is computed again,
or with `swap` is kept in the host's memory and brought back. With `chunk_tokens` and `prefill_share` a long prompt
takes only a part of each iteration, so that those which write wait less for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from pecia_workers.engines.base import Budget, Load

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationModel:
    """Limits and speed of an engine."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 16_384
    kv_blocks: int = 8_192
    memory_tokens: int | None = None
    """Tokens of running sequences for which there is memory; None: for all that the cache holds."""
    chunk_tokens: int | None = None
    """Most tokens of prompts in an iteration; None: as many as it has left."""
    prefill_share: float = 1.0
    """Most that prompts take of an iteration's tokens."""
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_block_s: float = 0.000_04
    """Seconds to move one block to the host's memory or back: 1 MiB at 25 GB/s, half of what PCIe 5 can do."""
    base_s: float = 0.008
    """Seconds each iteration takes whatever it does."""
    prefill_token_s: float = 0.000_02
    decode_sequence_s: float = 0.000_1

    @property
    def budget(self) -> Budget:
        """Sequences, and the KV cache in tokens."""
        return Budget(slots=self.max_num_seqs, tokens=self.kv_blocks * BLOCK_TOKENS, block=BLOCK_TOKENS)

    def prefill_budget(self, decoding: int) -> int:
        """Return how many tokens of prompts an iteration takes beside so many sequences that write, at least 1."""
        share = int(self.prefill_share * self.max_num_batched_tokens)
        left = self.max_num_batched_tokens - decoding
        return max(1, min(share, left, self.chunk_tokens or left))

    def duration(self, prefilled: int, decoded: int, swapped: int = 0) -> float:
        """Return the seconds of an iteration that moved so many blocks."""
        computing = prefilled * self.prefill_token_s + decoded * self.decode_sequence_s
        return self.base_s + computing + swapped * self.swap_block_s


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
    swapped: int = field(default=0, init=False)
    """Blocks that lie in the host's memory."""

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

    def swap_out(self) -> int:
        """Move all blocks to the host's memory; return how many they were."""
        freed, self.swapped, self.blocks = self.blocks, self.blocks, 0
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
        self._moved = 0
        self._preemptions = 0

    @property
    def load(self) -> Load:
        """What it holds; tokens written by sequences that wait again are among the written ones."""
        return Load(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used=1 - self._free / self.model.kv_blocks,
            preemptions=self._preemptions,
            written={one.id: one.generated for queue in (self.running, self.waiting) for one in queue},
        )

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
        self._moved = 0
        plan, preempted = self._continue_running()
        self._preemptions += preempted
        if not preempted:
            self._admit(plan)
        limit = self.model.memory_tokens
        if limit is not None and sum(one.computed for one in self.running) + sum(plan.values()) > limit:
            raise OutOfMemoryError
        return self._compute(plan, preempted)

    def coast(self, most: int) -> int:
        """Run up to `most` iterations in which every sequence writes and none begins, ends or gives way.

        Return how many they were, perhaps 0; all take the same time. A simulator that steps through them one by one
        comes to the same, much later.
        """
        model, running = self.model, self.running
        writing = all(sequence.is_decoding for sequence in running)
        if self.waiting or not running or not writing or model.memory_tokens is not None:
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
            chunk = sequence.chunk(budget if sequence.is_decoding else min(budget, prompts))
            while not self._reserve(sequence, chunk):
                preempted += 1
                if self._preempt_newest() is sequence:
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
            chunk = sequence.chunk(budget)
            if not self._reserve(sequence, chunk):
                return
            self._moved, sequence.swapped = self._moved + sequence.swapped, 0
            self.running.append(self.waiting.popleft())
            plan[sequence] = chunk
            budget -= chunk

    def _prefill_budget(self) -> int:
        return self.model.prefill_budget(sum(sequence.is_decoding for sequence in self.running))

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
            duration=self.model.duration(prefilled, len(decoding), self._moved),
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
        if self.model.preemption == "swap":
            freed = newest.swap_out()
            self._moved += freed
        else:
            freed = newest.restart()
        self._free += freed
        self.waiting.appendleft(newest)
        return newest


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
