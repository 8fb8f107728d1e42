"""What happens to a page before it is admitted to vLLM: it is rendered, urgent ones first, and made to fit.

By preparers, processes forked from one that has loaded the renderer, or in the worker where there are none. A preparer
gets pixels and words in a sealed memory and gives back the engine's input in another; neither is pickled.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog
from pydantic import TypeAdapter

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import ClipTimes, EngineError, EngineRefusedError, EngineRequest
from pecia_workers.engines.fitting import TRIES, UNCHANGED, Room, shrunk, too_large
from pecia_workers.engines.in_flight import Turns
from pecia_workers.media.frames import CallFailedError, Form
from pecia_workers.media.limits import MediaError
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

if TYPE_CHECKING:
    from pecia_workers.engines.vllm.rendering import Rendered
    from pecia_workers.engines.vllm.session import VllmSession

log = structlog.get_logger(__name__)

_MOST_PROCESSES: Final = 4
_CORES_OF_A_PROCESS: Final = 4
_LARGEST_PROMPT: Final = 2**30
_ADMITTED: Final = 1_000
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

Render = Callable[[EngineRequest], Awaitable["Rendered"]]
"""Returns the request's prompt. Raises `EngineError`."""


def preparers(settings: WorkerSettings) -> int:
    """Return how many processes a worker with these settings shall have."""
    if settings.preparers is not None:
        return settings.preparers
    return min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) // _CORES_OF_A_PROCESS)


class PreparersDifferError(Exception):
    """The preparers make of a picture what the engine's own renderer does not."""


class Prepared(AbstractContextManager["Prepared"]):
    """A request's prompt, until the engine has taken it or the block is left."""

    def __init__(self, rendered: Rendered, free: Callable[[], None]) -> None:
        self.tokens = rendered.tokens
        """Length of the prompt."""
        self._rendered: Rendered | None = rendered
        self._free = free

    def take(self) -> Rendered | None:
        """Return the prompt, once; then None."""
        rendered, self._rendered = self._rendered, None
        if rendered is not None:
            self._free()
        return rendered

    def __exit__(self, *_: object) -> None:
        self.take()


class Preparation:
    """Renders requests, so many at a time, and lets no more wait than its budget of bytes has room for."""

    def __init__(self, render: Render, places: int, most_bytes: int) -> None:
        self._render = render
        self._most = most_bytes
        self._ready: Counter[int] = Counter()
        self._turns = Turns(places, self._has_room)

    @property
    def ready_bytes(self) -> int:
        """What the prompts take that no engine has taken yet."""
        return self._ready.total()

    def _has_room(self, rank: int) -> bool:
        """Return whether a page of this rank may be prepared: none waits for room that less urgent pages take."""
        return sum(size for other, size in self._ready.items() if other <= rank) < self._most

    async def prepare(self, request: EngineRequest, room: Room, *, admitted: bool = False) -> EngineRequest:
        """Return the request with its prompt, its pictures shrunk until they fit. Raises `EngineError`.

        One that is `admitted` comes before all that are not, and waits for no bytes: they may wait for its room.
        """
        rank = request.priority - (_ADMITTED if admitted else 0)
        former: int | None = None
        async with self._turns.turn(rank):
            for _ in range(TRIES):
                rendered = await self._render(request)
                pictures = rendered.image_tokens
                share = room.share(request, rendered.tokens - pictures, pictures, rendered.largest_item)
                if share >= 1:
                    return replace(request, prepared=self._kept(rank, rendered))
                share, former = min(share, UNCHANGED if pictures == former else 1), pictures
                request = await asyncio.to_thread(shrunk, request, share)
        raise too_large(room)

    def _kept(self, rank: int, rendered: Rendered) -> Prepared:
        size = rendered.size
        self._ready[rank] += size

        def free() -> None:
            self._ready[rank] -= size
            self._turns.look()

        return Prepared(rendered, free)


class Preparers:
    """The processes. A page on which two of them die is not rendered."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._timeout = settings.part_timeout.total_seconds()
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_KEPT) and not any(word in name for word in _SECRET)
        }
        self._processes = BoundedProcesses(
            preparers(settings), nothing, largest_file=_LARGEST_PROMPT, environment=kept | _ENVIRONMENT
        )
        self._importing: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return self._processes.processes

    def begin(self) -> None:
        """Begin with what takes longest, the import of vLLM, while the engine loads its model."""
        self._importing = asyncio.create_task(self._processes.load(_import_renderer))

    async def start(self, session: VllmSession) -> None:
        """Start them for an engine that is loaded.

        Raises `PreparersDifferError` if they render otherwise than it does, and whatever else stands in the way.
        """
        from pecia_workers.engines.vllm.rendering import load_renderer  # noqa: PLC0415  imports vLLM

        if self._importing:
            await self._importing
        await self._processes.load(load_renderer, session.config, session.takes_clips)
        await self._processes.start()
        for request in _probes(session.takes_clips):
            if name := (await self.render(request)).differs_in(await session.render(request)):
                raise PreparersDifferError(name)

    async def stop(self) -> None:
        """End them."""
        await self._processes.stop()
        if self._importing:
            self._importing.cancel()
            await asyncio.wait([self._importing])

    async def render(self, request: EngineRequest) -> Rendered:
        """Return the request's prompt, rendered in one of them. Raises `EngineError`."""
        try:
            return await self._rendered(request)
        except MediaError as error:
            raise EngineRefusedError(error.found, error.code) from None
        except TimeoutError:
            raise EngineError(f"Rendering did not end within {self._timeout:g} s.") from None
        except (CallFailedError, ProcessDiedError) as error:
            raise EngineError(f"The picture could not be rendered: {error}") from None

    async def _rendered(self, request: EngineRequest) -> Rendered:
        from pecia_workers.engines.vllm import rendering as vllm  # noqa: PLC0415  imports vLLM

        form = Form(header=_DONE, build=vllm.unpacked, most=_LARGEST_PROMPT)
        name = await asyncio.to_thread(vllm.name_of, request)
        shown = replace(request, schema=None, prepared=None)
        call = partial(self._processes.call, form, vllm.render, shown, name, timeout=self._timeout)
        try:
            prompt = await call()
        except ProcessDiedError:  # perhaps it was not the page
            log.warning("preparer_died", request=request.id)
            prompt = await call()
        return vllm.named(prompt, name)


def _probes(takes_clips: bool) -> list[EngineRequest]:
    """Return small requests of every kind that an engine takes."""
    side = _PROBE_SIDE
    picture = np.linspace(0, 255, side * side * 3).astype(np.uint8).reshape(side, side, 3)
    page = EngineRequest(id="probe", images=(picture,), workload="mixed", instruction="Read this.")
    if not takes_clips:
        return [page]
    times = ClipTimes(fps=2.0, indices=tuple(range(_PROBE_FRAMES)), duration=_PROBE_FRAMES / 2)
    return [page, replace(page, images=(picture,) * _PROBE_FRAMES, clip=times)]


def _import_renderer() -> None:
    from pecia_workers.engines.vllm import rendering  # noqa: F401, PLC0415  imports vLLM


def nothing() -> None:
    """Do nothing: a preparer has all it needs of the process that it was forked from."""
