"""The vLLM engine: its front end in this worker's process, its scheduler and model in separate processes.

A page is rendered before it is admitted, by preparers, which are processes forked from a template with the renderer, or
in the worker if there are none. A preparer gets pixels and text in sealed memory and returns the engine's input in
another; neither is pickled.
"""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog
from pydantic import TypeAdapter

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import Gpu, gpus_per_worker, visible_gpus, vllm_revision
from pecia_workers.engines.reader_cards import language_model
from pecia_workers.engines.requests import Preparation, Prepared, probe
from pecia_workers.engines.vllm.processes import (
    cores_last_words,
    engine_environment,
    kill_cores,
    start_failure,
)
from pecia_workers.media.frames import CallFailedError, Form
from pecia_workers.media.pages import MediaError
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError
from pecia_workers.processes.template import imported
from pecia_workers.protocol import base

if TYPE_CHECKING:
    from pecia_workers.engines.vllm.rendering import Rendered
    from pecia_workers.engines.vllm.session import VllmSession

log = structlog.get_logger(__name__)

_MOST_PROCESSES: Final = 4
_CORES_OF_A_PROCESS: Final = 4
_LARGEST_PROMPT: Final = 2**30
_PROBE_SIDE, _PROBE_FRAMES = 112, 4
_ENVIRONMENT: Final = {
    "CUDA_VISIBLE_DEVICES": "",  # or a library might open the GPU, and a fork of that is broken
    "HF_HUB_OFFLINE": "1",  # the engine has fetched what there is to be fetched
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_KEPT: Final = ("VLLM_", "HF_", "TRANSFORMERS_", "XDG_CACHE_HOME", "HOME", "LOGNAME", "USER")
_SECRET: Final = ("TOKEN", "KEY")

_DONE: Final = TypeAdapter(bool)

_KILL_AGAIN_S = 0.2


def preparers(settings: WorkerSettings) -> int:
    """Return the number of preparers of a worker with these settings."""
    if settings.preparers is not None:
        return settings.preparers
    return min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) // _CORES_OF_A_PROCESS)


class PreparersDifferError(Exception):
    """The preparers render a picture differently from the engine's own renderer."""


class Preparers:
    """The preparers of a worker. A page on which two of them die is not rendered."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._timeout = settings.part_timeout.total_seconds()
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_KEPT) and not any(word in name for word in _SECRET)
        }
        self._processes = BoundedProcesses(
            preparers(settings),
            imported,  # nothing else is to be done: it has the renderer of the process that it is forked from
            largest_file=_LARGEST_PROMPT,
            environment=kept | _ENVIRONMENT,
        )
        self._loading: asyncio.Task[None] | None = None

    def begin(self, configuring: asyncio.Future[Any]) -> None:
        """Start them concurrently with the engine, once its configuration is available."""
        self._loading = asyncio.create_task(self._load(configuring))

    async def _load(self, configuring: asyncio.Future[Any]) -> None:
        await self._processes.load(_import_renderer)
        _, config, _ = await asyncio.shield(configuring)
        from pecia_workers.engines.vllm.rendering import load_renderer  # noqa: PLC0415  imported by then

        await self._processes.load(load_renderer, config)
        await self._processes.start()

    async def start(self, session: VllmSession) -> None:
        """Wait until they are ready for the loaded engine.

        Raises `PreparersDifferError` if they render differently, and any error of their start.
        """
        assert self._loading is not None  # noqa: S101  `begin` comes first
        await self._loading
        side = _PROBE_SIDE
        picture = np.linspace(0, 255, side * side * 3).astype(np.uint8).reshape(side, side, 3)
        times = base.ClipTimes(fps=2.0, indices=tuple(range(_PROBE_FRAMES)), duration=_PROBE_FRAMES / 2)
        clip = replace(probe(*[picture] * _PROBE_FRAMES), clip=times)
        for request in [probe(picture), clip] if session.takes_clips else [probe(picture)]:
            if name := (await self.render(request)).differs_in(await session.render(request)):
                raise PreparersDifferError(name)

    async def stop(self) -> None:
        """End them."""
        await self._processes.stop()
        if self._loading:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def render(self, request: base.EngineRequest) -> Rendered:
        """Render a request in one of them and return its prompt. Raises `EngineError`."""
        from pecia_workers.engines.vllm import rendering as vllm  # noqa: PLC0415  imports vLLM

        form = Form(header=_DONE, build=vllm.unpacked, most=_LARGEST_PROMPT)
        name = await asyncio.to_thread(vllm.name_of, request)
        shown = replace(request, schema=None, prepared=None)
        call = partial(self._processes.call, form, vllm.render, shown, name, timeout=self._timeout)
        try:
            try:
                prompt = await call()
            except ProcessDiedError:  # perhaps it was not the page
                log.warning("preparer_died", request=request.id)
                prompt = await call()
        except MediaError as error:
            raise base.EngineRefusedError(error.found, error.code) from None
        except TimeoutError:
            raise base.EngineError(f"Rendering did not end within {self._timeout:g} s.") from None
        except (CallFailedError, ProcessDiedError) as error:
            raise base.EngineError(f"The picture could not be rendered: {error}") from None
        return vllm.named(prompt, name)


def _import_renderer() -> None:
    from pecia_workers.engines.vllm import rendering  # noqa: F401, PLC0415  imports vLLM


class VllmEngine(base.Engine):
    """One request for each part, batched continuously by vLLM; pictures are passed in memory."""

    def __init__(self, settings: WorkerSettings) -> None:
        count = preparers(settings)
        self._preparers = Preparers(settings) if count else None
        capabilities = replace(language_model("vllm", settings, settings.model), preparers=count)
        budget = base.Budget(slots=settings.max_num_seqs or 1, tokens=None)
        super().__init__(capabilities, budget, settings.max_output_tokens)
        self._settings = settings
        self._is_here = Path(settings.model).is_dir()
        """Whether the model's files are on this machine before the engine starts."""
        self._opening: asyncio.Task[VllmSession] | None = None
        self._session: VllmSession | None = None
        self._preparation: Preparation | None = None
        self._fitting = 0

    async def start(self) -> None:
        """Load the model in threads, since it takes up to minutes, and the preparers concurrently."""
        settings = self._settings
        configuring = asyncio.create_task(asyncio.to_thread(_configure, settings))
        if self._preparers:
            self._preparers.begin(configuring)
        self._opening = asyncio.create_task(self._open(configuring))
        identifying = asyncio.create_task(self._identify(configuring if self._is_here else self._opening))
        try:
            session = await asyncio.shield(self._opening)
            self.budget = await session.budget()
            _, _, gpus = configuring.result()
            revision = await identifying
        except base.EngineUnavailableError:
            raise
        except Exception as error:
            raise start_failure(error, settings) from error
        if self._preparers:
            try:
                await self._preparers.start(session)
            except Exception as error:  # noqa: BLE001  whatever it is, the worker can do it
                log.warning("preparers_left_out", because=f"{type(error).__name__}: {error}")
                await self._preparers.stop()
                self._preparers = None
        count = self.capabilities.preparers if self._preparers else 0
        device = session.config.device_config.device_type  # such as `cpu` or `cuda`
        if device == "cuda" and gpus:
            device = ", ".join(gpu.name for gpu in gpus[: gpus_per_worker(settings)])
        known = language_model("vllm", settings, settings.model)  # by its files, which are here now
        self.capabilities = replace(known, device=device, revision=revision, preparers=count)
        render = self._preparers.render if self._preparers else session.render
        self._preparation = Preparation(render, count or 1, settings.prepared_bytes)
        self._session = session

    async def _open(self, configuring: asyncio.Future[Any]) -> VllmSession:
        arguments, config, _ = await configuring
        return await asyncio.to_thread(_open, self._settings, arguments, config, warm=not self._preparers)

    async def _identify(self, after: asyncio.Future[Any]) -> str | None:
        """Return the revision, after the download; hashes files of many gigabytes."""
        await asyncio.wait([after])
        is_void = after.cancelled() or after.exception()
        return None if is_void else await asyncio.to_thread(vllm_revision, self._settings)

    async def stop(self) -> None:
        """End every request and every process; callers get `asyncio.CancelledError`."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        while not opening.done():
            kill_cores()
            await asyncio.wait([opening], timeout=_KILL_AGAIN_S)
        await self._end_all()
        self._session = None
        if self._preparers:
            await self._preparers.stop()
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result().close)

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request with its prompt, its pictures reduced if they exceed the limits."""
        session, preparation = self._session, self._preparation
        if session is None or preparation is None:
            return request
        self._fitting += 1
        try:
            return await preparation.prepare(request, session.limits)
        finally:
            self._fitting -= 1

    def _prompt_tokens(self, request: base.EngineRequest) -> int:
        ready = request.prepared
        return ready.tokens if isinstance(ready, Prepared) else request.prompt_tokens

    async def _answer(self, request: base.EngineRequest) -> base.Generation:
        session, preparation, images = self._session, self._preparation, request.images
        if session is None or preparation is None:
            raise base.EngineError("The engine has not started.")
        while not (isinstance(ready := request.prepared, Prepared) and (rendered := ready.take())):
            # It comes past `fit`, or once more.
            unprepared = replace(request, prepared=None)
            request = await preparation.prepare(unprepared, session.limits, admitted=True)
        left = session.limits.context - rendered.tokens
        most = min(request.bounded(self._most_output).max_output_tokens or left, left)
        generation = await session.generate(request, rendered, most)
        return generation if request.images is images else replace(generation, shrunk_to=request.size)

    def load(self) -> base.Load:
        """Return the requests that the engine ran after its last step; others in flight wait or are being prepared."""
        if self._session is None:
            return base.Load(running=0, waiting=0)
        load = replace(self._session.load, preparing=self._fitting)
        if not self._in_flight:  # the last step's figures are those of requests that were given up since
            return replace(load, running=0, waiting=0, kv_used=0.0)
        now = self._load_of(load.running)
        return replace(load, running=now.running, waiting=now.waiting, written=self._session.written)


def _configure(settings: WorkerSettings) -> tuple[Any, Any, tuple[Gpu, ...]]:
    """Return vLLM's arguments, its configuration, and the GPUs. Imports it."""
    gpus = visible_gpus()
    on_cpu = not gpus and gpus_per_worker(settings) == 1
    os.environ.update(engine_environment(settings.log_level, on_cpu=on_cpu))
    gc.disable()  # a sixth of the time of the import is collections that find nothing
    try:
        from pecia_workers.engines.vllm import session  # noqa: PLC0415  imports vLLM, for seconds
    finally:
        gc.enable()
    gc.freeze()  # or each later collection goes through all that was imported, and holds the loop up meanwhile
    return *session.configured(settings), gpus


def _open(settings: WorkerSettings, arguments: Any, config: Any, *, warm: bool) -> VllmSession:
    from pecia_workers.engines.vllm.session import VllmSession  # noqa: PLC0415  imports vLLM

    with cores_last_words():
        return VllmSession.open(settings, arguments, config, warm=warm)
