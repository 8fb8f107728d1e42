"""Engines that read nothing: one that takes the time a language model would, and one that answers at once."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from pecia_schemas.results import TokenUsage, Verdict
from pecia_workers.engines import base
from pecia_workers.engines.iteration import (
    Iteration,
    IterationModel,
    IterationScheduler,
    OutOfMemoryError,
    Sequence,
)
from pecia_workers.engines.output_lengths import DrawnLengths, OutputLengths
from pecia_workers.engines.registry import LANGUAGE_MODEL

_INSTANT_SLOTS: Final = 1024


class Clock:
    """The loop's own time, in which a simulation passes its own; one late wake-up is made good by the next."""

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


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    sequence: Sequence
    arrived: float
    answer: asyncio.Future[None]
    first_token_s: float | None = None


class SimulatedEngine:
    """Follows `IterationScheduler` in real or virtual time: true token counts and times, but no text."""

    def __init__(
        self,
        model: IterationModel | None = None,
        lengths: OutputLengths | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._scheduler = IterationScheduler(model or IterationModel())
        self._lengths = lengths or DrawnLengths()
        self._clock = clock or Clock()
        self._in_flight: dict[str, _Running] = {}
        self._work = asyncio.Event()
        self._iterations: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> base.Capabilities:
        """Everything, but no text comes out."""
        return base.Capabilities(
            name="simulated", model="iteration-level", stages=LANGUAGE_MODEL, samples=False
        )

    @property
    def budget(self) -> base.Budget:
        """The model's sequences and its KV cache in tokens."""
        return self._scheduler.model.budget

    async def start(self) -> None:
        """Begin to iterate."""
        self._iterations = asyncio.create_task(self._iterate())

    async def stop(self) -> None:
        """End every request; callers get `asyncio.CancelledError`."""
        for request_id in tuple(self._in_flight):
            await self.abort(request_id)
        if self._iterations is not None:
            self._iterations.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._iterations

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request as it is: the simulation takes any size."""
        return request

    def cost(self, request: base.EngineRequest) -> int:
        """Return input tokens plus the expected output, not the drawn one."""
        return request.estimated_cost

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        """Return when the simulated engine has written its last token."""
        if request.id in self._in_flight:
            raise base.EngineError("A request with this id is in flight already.")
        running = self._admit(request)
        try:
            await running.answer
        finally:
            del self._in_flight[request.id]
            self._scheduler.remove(running.sequence)
        return self._generation(request, running)

    async def abort(self, request_id: str) -> None:
        """End one request and free its KV blocks."""
        running = self._in_flight.get(request_id)
        if running is not None:
            running.answer.cancel()

    def load(self) -> base.Load:
        """Return what the scheduler holds."""
        return self._scheduler.load

    def _admit(self, request: base.EngineRequest) -> _Running:
        output = self._lengths(request.id, request.workload)
        sequence = Sequence(
            id=request.id,
            prompt=request.prompt_tokens,
            output=min(output, request.max_output_tokens or output),
        )
        try:
            self._scheduler.add(sequence)
        except ValueError as error:
            raise base.EngineError(str(error)) from None
        running = _Running(
            sequence=sequence, arrived=self._clock.now, answer=asyncio.get_running_loop().create_future()
        )
        self._in_flight[request.id] = running
        self._work.set()
        return running

    def _generation(self, request: base.EngineRequest, running: _Running) -> base.Generation:
        written = running.sequence.generated
        truncated = written < self._lengths(request.id, request.workload)
        return base.Generation(
            text="",
            verdict=Verdict.TRUNCATED if truncated else Verdict.OK,
            usage=TokenUsage(prompt=running.sequence.prompt, image=request.picture_tokens, output=written),
            first_token_s=running.first_token_s,
        )

    async def _iterate(self) -> None:
        while True:
            if not self._in_flight:
                self._work.clear()
                await self._work.wait()
            try:
                iteration = self._scheduler.step()
            except OutOfMemoryError:
                self._fail_running()
                await self._clock.sleep(self._scheduler.model.base_s)
            else:
                await self._clock.sleep(iteration.duration)
                self._tell(iteration)

    def _fail_running(self) -> None:
        for sequence in tuple(self._scheduler.running):
            self._scheduler.remove(sequence)
            if answer := self._awaited(sequence):
                answer.set_exception(base.EngineOverloadedError("The engine ran out of memory."))

    def _tell(self, iteration: Iteration) -> None:
        for sequence in iteration.started:
            if (running := self._in_flight.get(sequence.id)) is not None:
                running.first_token_s = self._clock.now - running.arrived
        for sequence in iteration.finished:
            if answer := self._awaited(sequence):
                answer.set_result(None)

    def _awaited(self, sequence: Sequence) -> asyncio.Future[None] | None:
        running = self._in_flight.get(sequence.id)
        if running is None or running.sequence is not sequence or running.answer.done():
            return None
        return running.answer


class InstantEngine(SimulatedEngine):
    """Answers at once with no text: what is left is the cost of everything around an engine."""

    _ANSWER: Final = base.Generation(text="", verdict=Verdict.OK, usage=TokenUsage())

    @property
    def capabilities(self) -> base.Capabilities:
        """Everything, but no text comes out."""
        return base.Capabilities(name="simulated", model="instant", stages=LANGUAGE_MODEL, samples=False)

    @property
    def budget(self) -> base.Budget:
        """Many slots, no token limit."""
        return base.Budget(slots=_INSTANT_SLOTS, tokens=None)

    async def start(self) -> None:
        """Nothing is loaded."""

    async def generate(self, request: base.EngineRequest) -> base.Generation:  # noqa: ARG002  nothing is read
        """Return at once."""
        return self._ANSWER

    def load(self) -> base.Load:
        """Return an idle engine's load."""
        return base.Load(running=0, waiting=0)
