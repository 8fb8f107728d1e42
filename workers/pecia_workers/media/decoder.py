"""Decoding of documents outside of the loop, in bounded processes, and a worker's local copies of documents.

A bad file causes one clear error only. The processes get verified files.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from pecia_schemas.blocks import Block, Box, Doubt, Line
from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges, PayloadRef
from pecia_schemas.payloads import PayloadMissingError, PayloadStore, verify
from pecia_workers.media.decoding import initialize_process, inspect_file, load_clip, load_page, probe_video
from pecia_workers.media.frames import STRICT, Form
from pecia_workers.media.pages import (
    EVERY_STEP,
    Clip,
    FramePlan,
    Limits,
    MediaError,
    PageImage,
    PageInfo,
    Plan,
    Stretch,
    VideoInfo,
)
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError
from pecia_workers.media.turns import ALL_ALIKE, SLOW_S, Turn
from pecia_workers.protocol.parts import waiting

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.protocol.parts import ClaimedPart

T = TypeVar("T")

_OPENED_AT_A_TIME = 64
"""Documents opened at the same time, since the payload store's disk may be a slow network's."""
_opening = ThreadPoolExecutor(_OPENED_AT_A_TIME, thread_name_prefix="documents")

_MOST_PROCESSES = 4
_GROWTH = 4
"""Factor by which a page may exceed its limit: a levelled page grows."""

_Side = Annotated[int, Field(ge=1, le=_GROWTH * MAX_SIDE)]
_Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
_Rate = Annotated[float, Field(gt=0, le=1e6)]


@STRICT
class _Page(TypedDict):
    pixels: tuple[_Side, _Side, Literal[3]]
    rotation: Literal[0, 90, 180, 270]
    skew: Annotated[float, Field(ge=-90, le=90)]
    scale: Annotated[float, Field(gt=0, le=1)]
    blocks: tuple[Block, ...]
    doubts: tuple[Doubt, ...]
    pieces: tuple[Line, ...]
    unread: tuple[Box, ...]
    witness: tuple[Block, ...]
    barcodes: tuple[Block, ...]
    attachments: Annotated[int, Field(ge=0, lt=2**31)]
    blank: bool


@STRICT
class _Frames(TypedDict):
    frames: tuple[_Side, _Side, _Side, Literal[3]]
    times: tuple[_Seconds, ...]
    fps: _Rate
    damaged: bool


def turn_of(part: ClaimedPart, document: PayloadRef) -> Turn:
    """Return the turn in which a part is decoded, by its place in the queue."""
    return Turn(rank=part.lane.rank, flow=part.flow or part.job_id, document=document.sha256)


def decode_processes(settings: WorkerSettings) -> int:
    """Return the number of decoding processes of a worker."""
    return settings.decode_processes or min(_MOST_PROCESSES, os.cpu_count() or 1)


class Decoder:
    """Turns files into pages and clips. Each process decodes one at a time; further callers wait their turn.

    Any call raises `MediaError`, `PayloadMissingError` if the file is gone, `PostponedError`.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._limits = Limits.of(settings)
        self._plan = FramePlan.of(settings)
        self._timeout = settings.decode_timeout.total_seconds()
        most_pixels = 3 * _GROWTH * self._limits.page_pixels
        most_frames = 3 * _GROWTH * self._plan.pixels
        self._processes = BoundedProcesses(
            decode_processes(settings),
            initialize_process,
            self._limits,
            memory_bytes=settings.decode_memory_bytes,
            largest_file=max(most_pixels, most_frames),
            slow_s=SLOW_S,
        )
        self._pages = Form(header=TypeAdapter(tuple[PageInfo, ...]), build=self._checked_pages)
        self._page = Form(
            header=TypeAdapter(_Page), build=lambda page: PageImage(**page), array="pixels", most=most_pixels
        )
        self._video = Form(header=TypeAdapter(VideoInfo), build=self._checked_video)
        self._clip = Form(
            header=TypeAdapter(_Frames), build=lambda clip: Clip(**clip), array="frames", most=most_frames
        )

    @property
    def slots(self) -> int:
        """Number of pages decoded at the same time."""
        return self._processes.processes

    def share(self, slots: int) -> None:
        """Reserve half of a worker's slots, at least one, for parts that decode quickly."""
        self._processes.bound_slow(max(1, min(slots - 1, max(self.slots, slots // 2))))

    async def start(self) -> None:
        """Start the processes; returns when they are ready."""
        await self._processes.start()

    async def stop(self) -> None:
        """End the processes and whatever they are decoding."""
        await self._processes.stop()

    async def inspect(
        self,
        path: Path,
        pages: PageRanges | None = None,
        password: SecretStr | None = None,
        *,
        turn: Turn = ALL_ALIKE,
    ) -> tuple[PageInfo, ...]:
        """Return the sizes of the requested pages of a file, without decoding them."""
        return await self._call(self._pages, turn, path, inspect_file, self._limits, pages, password)

    async def page(
        self,
        path: Path,
        index: int,
        plan: Plan = EVERY_STEP,
        password: SecretStr | None = None,
        *,
        turn: Turn = ALL_ALIKE,
    ) -> PageImage:
        """Return one page, from 0, as planned; cancelling the caller ends the decoding."""
        return await self._call(self._page, turn, path, load_page, index, self._limits, plan, password)

    async def probe(self, path: Path, *, turn: Turn = ALL_ALIKE) -> VideoInfo:
        """Return a video's length and size, without decoding it."""
        return await self._call(self._video, turn, path, probe_video, self._limits)

    async def clip(self, path: Path, stretch: Stretch, *, turn: Turn = ALL_ALIKE) -> Clip:
        """Return frames of a stretch of a video, chosen and scaled by the fleet's settings."""
        return await self._call(self._clip, turn, path, load_clip, stretch, self._plan, self._limits)

    def _checked_pages(self, pages: tuple[PageInfo, ...]) -> tuple[PageInfo, ...]:
        """Check that the process's answer respects the limits."""
        if len(pages) > self._limits.pages:
            raise ValueError
        for page in pages:
            self._limits.check_page(page.width, page.height)
        return pages

    def _checked_video(self, video: VideoInfo) -> VideoInfo:
        self._limits.check_video(video.duration)
        self._limits.check_page(video.width, video.height)
        return video

    async def _call(self, form: Form[T], turn: Turn, path: Path, function: Callable[..., T], *args: Any) -> T:
        try:
            with waiting():  # and no process waits for a store that is slow
                file = await _in_thread(path.open, "rb", 0)
        except FileNotFoundError:
            raise PayloadMissingError(path.name) from None
        call = partial(self._processes.call, form, function, *args, turn=turn, timeout=self._timeout)
        with file:
            try:
                for _ in range(2):  # a file that kills one process kills two, the system only one
                    with suppress(ProcessDiedError):
                        return await call(document=file.fileno())
            except TimeoutError:
                found = f"Decoding did not end within {self._timeout:g} s."
                raise MediaError(FailureCode.DECODE_TIMEOUT, found) from None
        raise MediaError(FailureCode.DAMAGED, "The decoder broke down on this file.")


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a function that reads from the payload store in one of the threads reserved for that."""
    return await asyncio.get_running_loop().run_in_executor(_opening, function, *args)


SPOOL_BYTES = 4 * 1024**3
"""Size of a worker's cache of files from S3, in bytes; files in use stay in any case."""

SWEPT_EVERY = timedelta(seconds=10)
"""How often a worker removes copies of erased documents, and decrypted copies that are no longer read."""

_MOST_COPIES = 1_000
"""Most payloads that are tracked, so that neither memory nor sweeps grow with small documents."""


@dataclass(slots=True)
class _Copy:
    path: Path
    size: int
    owned: bool
    decrypted: bool
    users: int = 0
    idle: bool = False
    """Whether it has not been read since a sweep."""
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)
    verified: bool = False


class Spool:
    """A worker's local payloads. A directory store is read in place, objects in S3 are copied to `directory`.

    Encrypted ones are decrypted into it, and removed by the second sweep after their last use, since a document's pages
    follow each other.
    """

    def __init__(self, store: PayloadStore, directory: Path, *, most_bytes: int = SPOOL_BYTES) -> None:
        self._store = store
        self._directory = directory
        self._most_bytes = most_bytes
        self._copies: OrderedDict[str, _Copy] = OrderedDict()

    @asynccontextmanager
    async def open(self, reference: PayloadRef) -> AsyncIterator[Path]:
        """Yield the path of a verified payload, which stays there until the block ends.

        Raises `PayloadMissingError`, `PayloadCorruptError` or `KeyUnavailableError`.
        """
        key = reference.sha256
        if key not in self._copies:
            here = self._store.path_of(reference)
            path = here or self._directory / key
            self._copies[key] = _Copy(
                path, reference.size, owned=not here, decrypted=reference.key is not None
            )
        self._copies.move_to_end(key)
        copy = self._copies[key]
        copy.users += 1
        copy.idle = False
        try:
            with waiting():
                async with copy.ready:
                    if not copy.verified and copy.owned:
                        await self._store.download(reference, copy.path)
                    elif not copy.verified:
                        await _in_thread(verify, copy.path, reference)
                    copy.verified = True
            yield copy.path
        finally:
            copy.users -= 1
            if not copy.users and not copy.verified:
                self._forget(key)
            excess = sum(one.size for one in self._copies.values()) - self._most_bytes
            for unused in [name for name, one in self._copies.items() if not one.users]:
                if excess <= 0 and len(self._copies) <= _MOST_COPIES:
                    break
                excess -= self._copies[unused].size
                self._forget(unused)

    async def sweep(self, unheld: Callable[[Collection[str]], Awaitable[set[str]]]) -> None:
        """Remove copies that are not in use: decrypted ones, and those returned by `unheld`, which no job holds."""
        for key, copy in list(self._copies.items()):
            if copy.decrypted and not copy.users:
                if copy.idle:
                    self._forget(key)
                copy.idle = True
        idle = [key for key, copy in self._copies.items() if copy.owned and not copy.users]
        for key in await unheld(idle) if idle else ():
            if (idler := self._copies.get(key)) and not idler.users:
                self._forget(key)

    def _forget(self, key: str) -> None:
        copy = self._copies.pop(key)
        if copy.owned:
            copy.path.unlink(missing_ok=True)


async def keep_swept(spool: Spool, unheld: Callable[[Collection[str]], Awaitable[set[str]]]) -> None:
    """Sweep the spool periodically. Waits while Postgres is unavailable, since the files in use are unknown then."""
    while True:
        await asyncio.sleep(SWEPT_EVERY.total_seconds())
        with outage_suppressed():
            await spool.sweep(unheld)
