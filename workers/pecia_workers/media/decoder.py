"""Decoding away from the loop: bounded processes, so that a bad file costs one clear error and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from pecia_schemas.failures import FailureCode
from pecia_workers.media.clips import FramePlan
from pecia_workers.media.decoding import initialize_process, inspect_file, load_clip, load_page, probe_video
from pecia_workers.media.errors import MediaError
from pecia_workers.media.limits import Limits
from pecia_workers.media.preparation import EVERY_STEP, Plan
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic import SecretStr

    from pecia_schemas.page_ranges import PageRanges
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.media.clips import Clip, Stretch, VideoInfo
    from pecia_workers.media.pages import PageImage, PageInfo

T = TypeVar("T")

_MOST_PROCESSES = 4


class Decoder:
    """Turns files into pages and clips. At most one per process is being decoded; further callers wait their turn."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._limits = Limits.of(settings)
        self._plan = FramePlan.of(settings)
        self._timeout = settings.decode_timeout.total_seconds()
        self._processes = BoundedProcesses(
            settings.decode_processes or min(_MOST_PROCESSES, os.cpu_count() or 1),
            initialize_process,
            self._limits,
            memory_bytes=settings.decode_memory_bytes,
        )

    @property
    def slots(self) -> int:
        """How many pages it decodes at a time."""
        return self._processes.processes

    async def start(self) -> None:
        """Start the processes; returns when they are ready."""
        await self._processes.start()

    async def stop(self) -> None:
        """End the processes and whatever they are decoding."""
        await self._processes.stop()

    async def inspect(
        self, path: Path, pages: PageRanges | None = None, password: SecretStr | None = None
    ) -> tuple[PageInfo, ...]:
        """Return the file's pages, those asked for, by size, without decoding them. Raises `MediaError`."""
        return await self._call(inspect_file, path, self._limits, pages, password)

    async def page(
        self, path: Path, index: int, plan: Plan = EVERY_STEP, password: SecretStr | None = None
    ) -> PageImage:
        """Return one page, counted from 0, prepared as planned. Raises `MediaError`.

        Cancelling the caller ends the decoding and frees its place.
        """
        return await self._call(load_page, path, index, self._limits, plan, password)

    async def probe(self, path: Path) -> VideoInfo:
        """Return a video's length and size, without decoding it. Raises `MediaError`."""
        return await self._call(probe_video, path, self._limits)

    async def clip(self, path: Path, stretch: Stretch) -> Clip:
        """Return frames of a stretch of a video, as the fleet's settings choose and scale them. Raises `MediaError`."""
        return await self._call(load_clip, path, stretch, self._plan, self._limits)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._outlive(function, *args)
        except TimeoutError:
            found = f"Decoding did not end within {self._timeout:g} s."
            raise MediaError(FailureCode.DAMAGED, found) from None
        except ProcessDiedError:
            raise MediaError(FailureCode.DAMAGED, "The decoder broke down on this file.") from None

    async def _outlive(self, function: Callable[..., T], *args: Any) -> T:
        """Call it in another process if the first one dies: a file that kills one kills two, the system only one."""
        try:
            return await self._processes.call(function, *args, timeout=self._timeout)
        except ProcessDiedError:
            return await self._processes.call(function, *args, timeout=self._timeout)
