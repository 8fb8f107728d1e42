"""The language-model engine: vLLM in this worker's process, its scheduler and model in processes of their own."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import (
    Budget,
    Capabilities,
    EngineError,
    EngineRequest,
    EngineUnavailableError,
    Generation,
    Load,
)
from pecia_workers.engines.gpus import gpus_per_worker, visible_gpus
from pecia_workers.engines.in_flight import InFlight
from pecia_workers.engines.models import vllm_revision
from pecia_workers.engines.preparing import Preparation, Prepared, Preparers, Render, preparers
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import LANGUAGE_MODEL
from pecia_workers.engines.start_failures import start_failure
from pecia_workers.engines.vllm.processes import cores_last_words, kill_cores, prepare_environment

if TYPE_CHECKING:
    from pecia_workers.engines.vllm.rendering import Rendered
    from pecia_workers.engines.vllm.session import VllmSession

log = structlog.get_logger(__name__)

_LOOK_S = 0.2


class VllmEngine:
    """One request a part, batched continuously by vLLM; pictures go in as they are in memory."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[VllmSession] | None = None
        self._session: VllmSession | None = None
        self._budget = Budget(slots=settings.max_num_seqs or 1, tokens=None)
        self._preparers = Preparers(settings) if preparers(settings) else None
        self._preparation: Preparation | None = None
        self._device: str | None = None
        self._revision: str | None = None
        self._in_flight = InFlight()
        self._fitting = 0

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
            preparers=self._preparers.count if self._preparers else 0,
            revision=self._revision,
        )

    @property
    def budget(self) -> Budget:
        """The engine's own sequences and KV cache; only slots are known before it has started."""
        return self._budget

    async def start(self) -> None:
        """Load the model in a thread, for it takes up to minutes; then start what prepares its pages.

        Raises `EngineDeadError`, `EngineUnavailableError`. `stop` cleans up even after a start that failed or was
        cancelled.
        """
        if self._preparers:
            self._preparers.begin()
        self._opening = asyncio.create_task(asyncio.to_thread(_open, self._settings))
        try:
            session = await asyncio.shield(self._opening)
            self._budget = await session.budget()
            self._device = await asyncio.to_thread(_device, session, self._settings)
            self._revision = await asyncio.to_thread(vllm_revision, self._settings)
        except EngineUnavailableError:
            raise
        except Exception as error:
            raise start_failure(error, self._settings) from error
        render, places = await self._renderers(session)
        self._preparation = Preparation(render, places, self._settings.prepared_bytes)
        self._session = session

    async def _renderers(self, session: VllmSession) -> tuple[Render, int]:
        """Return what renders, and how many requests at a time: the preparers if they do it as the engine would."""
        if self._preparers:
            try:
                await self._preparers.start(session)
            except Exception as error:  # noqa: BLE001  whatever it is, the worker can do it
                log.warning("preparers_left_out", because=f"{type(error).__name__}: {error}")
                await self._preparers.stop()
                self._preparers = None
            else:
                return self._preparers.render, self._preparers.count
        return session.render, 1

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
        if self._preparers:
            await self._preparers.stop()
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result().close)

    async def fit(self, request: EngineRequest) -> EngineRequest:
        """Return the request with its prompt, its pictures shrunk if they are more than it takes.

        Raises `EngineRefusedError`.
        """
        session, preparation = self._session, self._preparation
        if session is None or preparation is None:
            return request
        self._fitting += 1
        try:
            return await preparation.prepare(request, session.room)
        finally:
            self._fitting -= 1

    def cost(self, request: EngineRequest) -> int:
        """Return the length of the prompt that `fit` made, or the asking price, plus the expected output."""
        ready = request.prepared
        prompt = ready.tokens if isinstance(ready, Prepared) else request.prompt_tokens
        return prompt + request.bounded(self._settings.max_output_tokens).output_tokens

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Raises `EngineRefusedError` for what can never fit."""
        if self._session is None or self._preparation is None:
            raise EngineError("The engine has not started.")
        return await self._in_flight.run(
            request.id, self._generate(self._session, self._preparation, request)
        )

    async def _generate(
        self, session: VllmSession, preparation: Preparation, asked: EngineRequest
    ) -> Generation:
        ready = asked.prepared
        if isinstance(ready, Prepared) and (rendered := ready.take()):
            return await self._answer(session, asked, rendered)
        # It comes past `fit`, or once more.
        request = await preparation.prepare(replace(asked, prepared=None), session.room, admitted=True)
        generation = await self._generate(session, preparation, request)
        return generation if request.images is asked.images else replace(generation, shrunk_to=request.size)

    async def _answer(self, session: VllmSession, request: EngineRequest, rendered: Rendered) -> Generation:
        left = session.room.context - rendered.tokens
        most = min(request.bounded(self._settings.max_output_tokens).max_output_tokens or left, left)
        return await session.generate(request, rendered, most)

    async def abort(self, request_id: str) -> None:
        """End one request, in the engine too."""
        self._in_flight.end(request_id)

    def load(self) -> Load:
        """Return what the engine ran after its last step; the rest of what is in flight waits or is being prepared.

        Raises `EngineDeadError`.
        """
        if self._session is None:
            return Load(running=0, waiting=0)
        told = self._session.load
        if not self._in_flight:  # the last step's figures are those of requests that were aborted since
            return replace(told, running=0, waiting=0, kv_used=0.0, preparing=self._fitting)
        running = min(told.running, len(self._in_flight))
        return replace(
            told,
            running=running,
            waiting=len(self._in_flight) - running,
            preparing=self._fitting,
            written=self._session.written,
        )


def _device(session: VllmSession, settings: WorkerSettings) -> str:
    names = [gpu.name for gpu in visible_gpus()[: gpus_per_worker(settings)]]
    return ", ".join(names) if names and session.device == "cuda" else session.device


def _open(settings: WorkerSettings) -> VllmSession:
    on_cpu = not visible_gpus() and gpus_per_worker(settings) == 1
    prepare_environment(settings.log_level, on_cpu=on_cpu)
    gc.disable()  # a sixth of the time of the import is collections that find nothing
    try:
        from pecia_workers.engines.vllm.session import VllmSession  # noqa: PLC0415  imports vLLM, for seconds
    finally:
        gc.enable()
    gc.freeze()  # or each later collection goes through all that was imported, and holds the loop up meanwhile
    with cores_last_words():
        return VllmSession.open(settings)
