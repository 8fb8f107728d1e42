"""The language-model engine: vLLM in this worker's process, its scheduler and model in processes of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pecia_schemas.states import Stage
from pecia_workers.engines.base import (
    Budget,
    Capabilities,
    EngineDeadError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
    Load,
)
from pecia_workers.engines.pricing import expected_output, prompt_tokens
from pecia_workers.engines.vllm_processes import kill_cores, prepare_environment

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import EngineRequest, Generation
    from pecia_workers.engines.vllm_session import VllmSession

_LOOK_S = 0.2


class VllmEngine:
    """One request a part, batched continuously by vLLM; pictures go in as they are in memory."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[VllmSession] | None = None
        self._session: VllmSession | None = None
        self._in_flight: dict[str, asyncio.Task[Generation]] = {}
        self._prompts: dict[str, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Pages, in whatever language the model knows."""
        return Capabilities(name="vllm", model=self._settings.model, stages=frozenset({Stage.READ}))

    @property
    def budget(self) -> Budget:
        """The engine's own sequences and KV cache; only slots are known before it has started."""
        if self._session is None:
            return Budget(slots=self._settings.max_num_seqs or 1, tokens=None)
        return self._session.budget

    async def start(self) -> None:
        """Load the model in a thread, for it takes up to minutes. Raises `EngineDeadError`, `EngineUnavailableError`.

        `stop` cleans up even after a start that failed or was cancelled.
        """
        self._opening = asyncio.create_task(asyncio.to_thread(_open, self._settings))
        try:
            self._session = await asyncio.shield(self._opening)
        except EngineUnavailableError:
            raise
        except Exception as error:
            raise EngineDeadError(f"vLLM did not start: {error}") from error

    async def stop(self) -> None:
        """End every request and every process; callers get `asyncio.CancelledError`."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        while not opening.done():
            kill_cores()
            await asyncio.wait([opening], timeout=_LOOK_S)
        await self._end_requests()
        self._session = None
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result().close)

    async def _end_requests(self) -> None:
        reading = list(self._in_flight.values())
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)

    async def fit(self, request: EngineRequest) -> EngineRequest:
        """Return the request as it is."""
        return request

    def cost(self, request: EngineRequest) -> int:
        """Return the prompt's length, which the engine tells once it holds the request, plus the expected output."""
        prompt = self._prompts.get(request.id) or prompt_tokens(request)
        expected = expected_output(request)
        return prompt + min(expected, self._asked_output(request) or expected)

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the page's text, greedy. Raises `EngineRefusedError` for a picture that can never fit."""
        if request.id in self._in_flight:
            raise EngineError("A request with this id is in flight already.")
        if self._session is None:
            raise EngineError("The engine has not started.")
        reading = asyncio.create_task(self._generate(self._session, request))
        self._in_flight[request.id] = reading
        try:
            return await reading
        finally:
            del self._in_flight[request.id]
            self._prompts.pop(request.id, None)

    async def _generate(self, session: VllmSession, request: EngineRequest) -> Generation:
        rendered = await session.render(request)
        self._prompts[request.id] = rendered.tokens
        room = session.context - rendered.tokens
        if room < 1:
            raise EngineRefusedError(
                f"The picture and its prompt are {rendered.tokens} tokens, the engine's context is {session.context}."
            )
        return await session.generate(request.id, rendered, min(self._asked_output(request) or room, room))

    def _asked_output(self, request: EngineRequest) -> int | None:
        return request.max_output_tokens or self._settings.max_output_tokens or None

    async def abort(self, request_id: str) -> None:
        """End one request, in the engine too."""
        if reading := self._in_flight.get(request_id):
            reading.cancel()

    def load(self) -> Load:
        """Return what the engine ran after its last step; the rest of what is in flight waits or is being prepared.

        Raises `EngineDeadError`.
        """
        if self._session is None:
            return Load(running=0, waiting=0)
        told = self._session.load
        if not self._in_flight:  # the last step's figures are those of requests that were aborted since
            return Load(running=0, waiting=0)
        running = min(told.running, len(self._in_flight))
        return Load(running=running, waiting=len(self._in_flight) - running, kv_used=told.kv_used)


def _open(settings: WorkerSettings) -> VllmSession:
    prepare_environment(settings.log_level)
    from pecia_workers.engines.vllm_session import VllmSession  # noqa: PLC0415  imports vLLM, for seconds

    return VllmSession.open(settings)
