"""The language-model engine: vLLM in this worker's process, its scheduler and model in processes of their own."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from pecia_workers.engines.base import (
    Budget,
    Capabilities,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
    Load,
)
from pecia_workers.engines.fingerprint import vllm_revision
from pecia_workers.engines.gpus import gpus_per_worker, visible_gpus
from pecia_workers.engines.in_flight import InFlight, Turns
from pecia_workers.engines.pricing import bounded, expected_output, prompt_tokens
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.stages import LANGUAGE_MODEL
from pecia_workers.engines.start_failures import start_failure
from pecia_workers.engines.vllm_fitting import fits, fitted
from pecia_workers.engines.vllm_processes import cores_last_words, kill_cores, prepare_environment

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import EngineRequest, Generation
    from pecia_workers.engines.vllm_pricing import PromptPrice
    from pecia_workers.engines.vllm_session import Rendered, VllmSession

log = structlog.get_logger(__name__)

_LOOK_S = 0.2
_REMEMBERED_SIZES = 4096


class VllmEngine:
    """One request a part, batched continuously by vLLM; pictures go in as they are in memory."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[VllmSession] | None = None
        self._session: VllmSession | None = None
        self._price: PromptPrice | None = None
        self._device: str | None = None
        self._revision: str | None = None
        self._in_flight = InFlight()
        self._preparing = Turns()
        self._seen: dict[Hashable, int] = {}
        self._drifted = 0

    @property
    def capabilities(self) -> Capabilities:
        """Pages and clips, in whatever language the model knows."""
        card = card_of(self._settings.model, self._settings.card)
        return Capabilities(
            name="vllm",
            model=self._settings.model,
            stages=LANGUAGE_MODEL,
            fields=card.fields,
            instructions=card.instructions,
            adapters=frozenset(self._settings.adapters),
            device=self._device,
            revision=self._revision,
        )

    @property
    def budget(self) -> Budget:
        """The engine's own sequences and KV cache; only slots are known before it has started."""
        if self._session is None:
            return Budget(slots=self._settings.max_num_seqs or 1, tokens=None)
        return self._session.budget

    async def start(self) -> None:
        """Load the model in a thread, for it takes up to minutes; then hold the prices against its own count.

        Raises `EngineDeadError`, `EngineUnavailableError`. `stop` cleans up even after a start that failed or was
        cancelled.
        """
        self._opening = asyncio.create_task(asyncio.to_thread(_open, self._settings))
        try:
            session = await asyncio.shield(self._opening)
            self._price = await session.price()
            self._device = await asyncio.to_thread(_device, session, self._settings)
            self._revision = await asyncio.to_thread(vllm_revision, self._settings)
        except EngineUnavailableError:
            raise
        except Exception as error:
            raise start_failure(error, self._settings) from error
        self._session = session

    async def stop(self) -> None:
        """End every request and every process; callers get `asyncio.CancelledError`."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        while not opening.done():
            kill_cores()
            await asyncio.wait([opening], timeout=_LOOK_S)
        await self._in_flight.end_all()
        self._session = None
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result().close)

    async def fit(self, request: EngineRequest) -> EngineRequest:
        """Return the request, its pictures shrunk if they are more than the context or the encoder takes.

        Raises `EngineRefusedError`.
        """
        session, price = self._session, self._price_of(request)
        if session is None or price is None or fits(request, price, session.room):
            return request
        return await asyncio.to_thread(fitted, request, price, session.room)

    def cost(self, request: EngineRequest) -> int:
        """Return the prompt's exact length plus the expected output.

        Where nothing counts it before, the length that the engine counted for the last request of this size; for the
        first of a size the fleet's asking price.
        """
        return self._prompt(request) + expected_output(self._bounded(request))

    def _prompt(self, request: EngineRequest) -> int:
        if price := self._price_of(request):
            return price.tokens(request)
        return self._seen.get(_size_of(request)) or prompt_tokens(request)

    def _price_of(self, request: EngineRequest) -> PromptPrice | None:
        """Return the exact price; None without one, or for a clip if only pictures are counted."""
        price, session = self._price, self._session
        if price and request.clip and session and session.takes_clips and not price.counter.takes_video:
            return None
        return price

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Raises `EngineRefusedError` for what can never fit."""
        if self._session is None:
            raise EngineError("The engine has not started.")
        return await self._in_flight.run(request.id, self._fit_and_generate(self._session, request))

    async def _fit_and_generate(self, session: VllmSession, asked: EngineRequest) -> Generation:
        request = await self.fit(asked)
        generation = await self._generate(session, request)
        return generation if request is asked else replace(generation, shrunk_to=request.size)

    async def _generate(self, session: VllmSession, request: EngineRequest) -> Generation:
        # vLLM's renderer has one thread, and no order of its own.
        async with self._preparing.turn(request.priority):
            rendered = await session.render(request)
        self._compare(request, rendered)
        room = session.context - rendered.tokens
        if room < 1:
            raise EngineRefusedError(
                f"The request's prompt is {rendered.tokens} tokens, the engine's context is {session.context}."
            )
        most = min(self._bounded(request).max_output_tokens or room, room)
        return await session.generate(request, rendered, most)

    def _compare(self, request: EngineRequest, rendered: Rendered) -> None:
        """Hold the price against the engine's count: a difference is an alarm, for the budget rests on it."""
        price = self._price_of(request)
        if price is None:
            self._see(request, rendered.tokens)
        elif (predicted := price.tokens(request)) != rendered.tokens:
            self._drifted += 1
            log.error(
                "cost_drifted",
                request=request.id,
                predicted=predicted,
                counted=rendered.tokens,
                drifted=self._drifted,
            )

    def _see(self, request: EngineRequest, tokens: int) -> None:
        size = _size_of(request)
        self._seen.pop(size, None)
        self._seen[size] = tokens
        if len(self._seen) > _REMEMBERED_SIZES:
            del self._seen[next(iter(self._seen))]

    def _bounded(self, request: EngineRequest) -> EngineRequest:
        return bounded(request, self._settings.max_output_tokens)

    async def abort(self, request_id: str) -> None:
        """End one request, in the engine too."""
        self._in_flight.end(request_id)

    def load(self) -> Load:
        """Return what the engine ran after its last step; the rest of what is in flight waits or is being prepared.

        Raises `EngineDeadError`.
        """
        if self._session is None:
            return Load(running=0, waiting=0)
        told = replace(self._session.load, drifted=self._drifted)
        if not self._in_flight:  # the last step's figures are those of requests that were aborted since
            return replace(told, running=0, waiting=0, kv_used=0.0)
        running = min(told.running, len(self._in_flight))
        return replace(
            told,
            running=running,
            waiting=len(self._in_flight) - running,
            written=self._session.written,
        )


def _size_of(request: EngineRequest) -> Hashable:
    """Return what the length of a prompt depends on."""
    shapes = tuple(image.shape for image in request.images)
    return shapes, request.clip, request.instruction


def _device(session: VllmSession, settings: WorkerSettings) -> str:
    names = [gpu.name for gpu in visible_gpus()[: gpus_per_worker(settings)]]
    return ", ".join(names) if names and session.device == "cuda" else session.device


def _open(settings: WorkerSettings) -> VllmSession:
    on_cpu = not visible_gpus() and gpus_per_worker(settings) == 1
    prepare_environment(settings.log_level, on_cpu=on_cpu)
    gc.disable()  # a sixth of the time of the import is collections that find nothing
    try:
        from pecia_workers.engines.vllm_session import VllmSession  # noqa: PLC0415  imports vLLM, for seconds
    finally:
        gc.enable()
    gc.freeze()  # or each later collection goes through all that was imported, and holds the loop up meanwhile
    with cores_last_words():
        return VllmSession.open(settings)
