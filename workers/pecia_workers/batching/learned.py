"""Figures that a worker learns about its engine and shares: output lengths, and the share of memory that is safe.

Lengths are counted on a logarithmic grid, four steps to the doubling, so that an estimate is at most a fifth too high,
and counts of workers can be added.
"""

import asyncio
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import Verdict, outage_suppressed, verdict_on
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS
from pecia_workers.batching.admission import Capacity
from pecia_workers.ledger.workers import WorkerIdentity, memory_left, note_memory, share_output_lengths
from pecia_workers.protocol.base import Budget, Load

STEPS: Final = 69
"""Steps of the grid; the last ends at 131,072 tokens."""
HALF_LIFE: Final = 2_000
"""Number of observations after which an older one counts half."""
ENOUGH: Final = 20
"""Observations needed before an estimate is used."""
_STEPS_PER_DOUBLING: Final = 4
_LENGTHS: Final = tuple(math.floor(2 ** (step / _STEPS_PER_DOUBLING) + 1e-9) for step in range(STEPS))
_NONE: Final = (0.0,) * STEPS
_SOME: Final = 0.5
"""Observations, the oldest of which count less than one."""


def step_of(tokens: int) -> int:
    """Return the step that a length falls into."""
    return min(STEPS - 1, bisect_left(_LENGTHS, tokens))


def length_of(step: int) -> int:
    """Return the longest length of a step."""
    return _LENGTHS[step]


def quantile(sums: Sequence[float], share: float, first: int = 0) -> int:
    """Return the length that `share` of the counted answers do not exceed, among those in `first` or a later step.

    `sums` has for each step the count of all before it, and last the total, which must not be 0.
    """
    wanted = sums[first] + share * (sums[-1] - sums[first])
    return length_of(bisect_left(sums, wanted - 1e-9, lo=first + 1) - 1)


class LearnedLengths:
    """Output lengths known to one worker: the fleet's counts, and its own observations since."""

    def __init__(self, share: float) -> None:
        """Estimate lengths by the quantile `share` of a workload's outputs."""
        self._share = share
        self._known: dict[str, list[float]] = {}
        self._seen: dict[str, list[float]] = {}
        self._expected: dict[str, list[int]] = {}

    def observe(self, workload: str, tokens: int) -> None:
        """Record the length of an output that was not cut off."""
        self._seen.setdefault(workload, [0.0] * STEPS)[step_of(tokens)] += 1
        self._expected.pop(workload, None)

    def expected(self, workload: str, written: int = 0) -> int:
        """Return the estimated length, in tokens, of an output that has `written` tokens already.

        A request longer than any observed one is expected to grow by a quarter of its length.
        """
        lengths = self._expected.get(workload)
        if lengths is None:  # for each step, of an output that falls into it or a later one; 0: none was seen
            pairs = zip(self._known.get(workload, _NONE), self._seen.get(workload, _NONE), strict=True)
            sums = [0.0, *accumulate(sum(pair) for pair in pairs)]
            lengths = [EXPECTED_OUTPUT_TOKENS[workload]] * (STEPS + 1)
            if sums[-1] >= ENOUGH:
                counted = [sums[-1] - start >= _SOME for start in sums]
                lengths = [
                    quantile(sums, self._share, step) if some else 0 for step, some in enumerate(counted)
                ]
            self._expected[workload] = lengths
        expected = lengths[bisect_left(_LENGTHS, written + 1)]  # not `step_of`: calls are many
        return expected if expected > written else written + written // 4

    def take_seen(self) -> dict[str, list[float]]:
        """Return the observations since the last call, to be shared."""
        seen, self._seen = self._seen, {}
        self._expected.clear()
        return seen

    def learn(self, known: Mapping[str, list[float]]) -> None:
        """Replace what the fleet knew of these workloads."""
        self._known.update(known)
        self._expected.clear()

    def put_back(self, seen: Mapping[str, list[float]]) -> None:
        """Keep observations that could not be shared."""
        self._expected.clear()
        for workload, weights in seen.items():
            mine = self._seen.setdefault(workload, [0.0] * STEPS)
            self._seen[workload] = [sum(pair) for pair in zip(mine, weights, strict=True)]


_REGROWTH: Final = 0.002
"""Share of the budget regained in each second since the engine ran out of memory: all of it after eight minutes."""
_BACK_OFF: Final = 0.95
_LEAST: Final = 0.5
_GROWTH: Final = 0.02
"""Share of the budget regained in each second in which the cache is not full."""
_FULL: Final = 0.95


@dataclass(slots=True, kw_only=True)
class _Guest:
    part: UUID | None
    tokens: int
    shortages: int
    """Shortages of memory before it entered."""
    alone: bool


class Headroom:
    """Limits the share of the budget in use, by memory and by the KV cache; both limits recover with time.

    The limit for memory drops to half of the use at which memory ran out; the request waits for capacity again, so that
    its part neither fails nor is decoded again. The limit for the cache drops with each preemption: admission relies on
    expected lengths, and where answers are longer, as in a new fleet, the cache overflows and the engine computes
    preempted requests twice.
    """

    def __init__(self) -> None:
        self.memory = 1.0
        self.cache = 1.0
        self.engine_died = False
        """Whether the engine died with several requests inside, perhaps for lack of memory."""
        self._inside: dict[str, _Guest] = {}
        self._shortages = 0
        self._preempted = 0
        self._looked: float | None = None

    def capacity(self, budget: Budget, load: Load, now: float) -> Capacity:
        """Return the usable budget at `now`, in seconds; never less than one request needs."""
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        self.memory = min(1.0, self.memory + _REGROWTH * passed)
        if budget.tokens is None:
            return Capacity(slots=max(1, math.floor(budget.slots * self.memory)), tokens=None)
        if load.preemptions > self._preempted:
            self.cache = max(_LEAST, self.cache * _BACK_OFF)
        elif (load.kv_used or 0) < _FULL:
            self.cache = min(1.0, self.cache + _GROWTH * passed)
        self._preempted = load.preemptions
        tokens = max(1, math.floor(budget.tokens * min(self.memory, self.cache)))
        return Capacity(
            slots=budget.slots,
            tokens=tokens,
            block=budget.block,
            layers=budget.layers,
            step_tokens=budget.step_tokens,
            written=load.written,
        )

    @property
    def parts(self) -> frozenset[UUID]:
        """Parts whose requests are in the engine."""
        return frozenset(guest.part for guest in self._inside.values() if guest.part)

    def enter(self, request_id: str, tokens: int, part: UUID | None = None) -> None:
        """Record that a part's request entered the engine."""
        for guest in self._inside.values():
            guest.alone = False
        self._inside[request_id] = _Guest(
            part=part, tokens=tokens, shortages=self._shortages, alone=not self._inside
        )

    def leave(self, request_id: str) -> None:
        """Forget a request; an unknown request is ignored."""
        self._inside.pop(request_id, None)

    def ran_out(self, request_id: str, budget: Budget) -> bool:
        """Record that memory ran out for a request inside; return whether it may succeed beside fewer others.

        Requests that were inside together run out together: the share shrinks once for all of them.
        """
        guest = self._inside[request_id]
        if guest.alone:
            return False
        if guest.shortages == self._shortages:
            self._shortages += 1
            guests = self._inside.values()
            used = len(guests) / budget.slots
            if budget.tokens is not None:
                used = sum(one.tokens for one in guests) / budget.tokens
            self.memory = min(self.memory, used) / 2
        return True

    def died(self, request_id: str) -> None:
        """Record that the engine died with a request inside; the smaller share is for the next engine.

        The share is halved whatever was in use, as memory may not be the cause; if the request was alone, its page is.
        """
        guest = self._inside[request_id]
        if not guest.alone and guest.shortages == self._shortages:
            self._shortages += 1
            self.memory /= 2
            self.engine_died = True


@asynccontextmanager
async def shared_lengths(
    database: AsyncEngine, share: float, *, every_s: float = 5.0
) -> AsyncIterator[LearnedLengths]:
    """Yield lengths that start with the fleet's counts; share new observations periodically and at the end.

    `share` is that of `LearnedLengths`. Observations that Postgres cannot store now are shared later.
    """
    lengths = LearnedLengths(share)

    async def publish() -> None:
        seen = lengths.take_seen()
        try:
            lengths.learn(await share_output_lengths(database, seen, half_life=HALF_LIFE))
        except BaseException as error:
            lengths.put_back(seen)
            if verdict_on(error) not in (Verdict.TRANSIENT, Verdict.FAULT):
                raise

    async def keep_publishing() -> None:
        while True:
            await asyncio.sleep(every_s)
            await publish()

    await publish()
    publishing = asyncio.create_task(keep_publishing())
    try:
        yield lengths
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])
        await publish()


@asynccontextmanager
async def inherited_headroom(database: AsyncEngine, worker: WorkerIdentity) -> AsyncIterator[Headroom]:
    """Yield a limit that starts at the share recorded when the last engine died, and record it if this engine dies."""
    headroom = Headroom()
    with outage_suppressed():  # an engine that took minutes to start is not stopped for this
        headroom.memory = await memory_left(database, host=worker.host, engine=worker.engine or "")
    try:
        yield headroom
    finally:
        if headroom.engine_died:
            with outage_suppressed():
                await note_memory(database, worker.name, headroom.memory)
