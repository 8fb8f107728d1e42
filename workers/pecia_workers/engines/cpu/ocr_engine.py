"""The engines for the CPU: OCR libraries in processes, each page read by one that knows its language."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter

from pecia_schemas.blocks import (
    text_of,
)
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.engines import base
from pecia_workers.engines.cpu.page_reader import PageRead, PageReader, load_readers
from pecia_workers.engines.in_flight import InFlight
from pecia_workers.media.frames import plain
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

_MOST_PIXELS: Final = 9_000_000
"""A4 at 300 dots per inch: neither library reads better what is larger, and both take longer."""
_CHARACTERS_PER_TOKEN: Final = 4
_PAGE_READ: Final = plain(TypeAdapter(PageRead))


class OcrEngine:
    """Reads pages in processes of their own, one page and one thread each.

    It has no tokens: `usage` counts the picture by the fleet's price formula and four characters of text as a token, so
    that the figures compare with those of a language model.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *readers: PageReader,
        name: str | None = None,
        remedies: Mapping[str, str] | None = None,
        nice: int = 0,
    ) -> None:
        """Take the first reader for what names no language, or one that several know. `nice`: of its processes."""
        count = settings.engine_processes or len(os.sched_getaffinity(0))
        self._readers = readers
        self._capabilities = _capabilities(readers, name or readers[0].name, remedies or {})
        self._processes = BoundedProcesses(
            count,
            load_readers,
            tuple(reader.load for reader in readers),
            nice,
            readable=[place for reader in readers for place in reader.data],
        )
        self._timeout = settings.part_timeout.total_seconds()
        self._in_flight = InFlight()

    @property
    def capabilities(self) -> base.Capabilities:
        """Pages in the languages of all its readers."""
        return self._capabilities

    @property
    def budget(self) -> base.Budget:
        """One page for each process and one that is being made ready: an urgent page waits behind no more."""
        return base.Budget(slots=self._processes.processes + 1, tokens=None)

    async def start(self) -> None:
        """Load the models in every process. Raises `EngineDeadError` if one cannot be loaded."""
        try:
            await self._processes.start()
        except (ProcessDiedError, TimeoutError):
            await self._processes.stop()
            raise base.EngineDeadError("The OCR processes did not start: see the worker's log.") from None

    async def stop(self) -> None:
        """End every process; callers get `asyncio.CancelledError`."""
        await self._in_flight.end_all()
        await self._processes.stop()

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request: the engine scales pictures by itself."""
        return request

    def cost(self, request: base.EngineRequest) -> int:
        """Return what the price formula says: the budget counts slots alone."""
        return request.estimated_cost

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        """Read one page. A process that dies takes only this request with it."""
        if len(request.images) != 1:
            raise base.EngineError("This engine reads exactly one page at a time.")
        return await self._in_flight.run(request.id, self._generate(request))

    async def _generate(self, request: base.EngineRequest) -> base.Generation:
        known = (reader for reader in self._readers if request.language in reader.languages)
        reader = next(known, self._readers[0])
        try:
            page = await self._processes.call(
                _PAGE_READ, reader.read, request.images[0], timeout=self._timeout
            )
        except TimeoutError:
            raise base.EngineError(f"Reading did not end within {self._timeout:g} s.") from None
        except ProcessDiedError:
            raise base.EngineError("The OCR process ended in the middle of the page.") from None
        return _generation(request, reader, page)

    async def abort(self, request_id: str) -> None:
        """End one request at the cost of its process, which starts again."""
        self._in_flight.end(request_id)

    def load(self) -> base.Load:
        """Return how many pages are read and how many wait for a process."""
        running = min(len(self._in_flight), self._processes.processes)
        return base.Load(running=running, waiting=len(self._in_flight) - running)


def _capabilities(
    readers: tuple[PageReader, ...], name: str, remedies: Mapping[str, str]
) -> base.Capabilities:
    return base.Capabilities(
        name=name,
        model=", ".join(reader.model for reader in readers),
        stages=frozenset({Stage.READ}),
        languages=frozenset[str]().union(*(reader.languages for reader in readers)),
        remedies=remedies,
        most_pixels=_MOST_PIXELS,
        samples=False,
        device="cpu",
        revision="; ".join(reader.revision for reader in readers),
    )


def _generation(request: base.EngineRequest, reader: PageReader, page: PageRead) -> base.Generation:
    text = text_of(page.blocks)
    without_text = Verdict.BLANK if page.coverage is None else Verdict.UNREADABLE  # blank: without letters
    pictures = request.picture_tokens
    usage = TokenUsage(prompt=pictures, image=pictures, output=math.ceil(len(text) / _CHARACTERS_PER_TOKEN))
    return base.Generation(
        text=text,
        verdict=Verdict.OK if page.blocks else without_text,
        usage=usage,
        blocks=page.blocks,
        coverage=page.coverage,
        doubts=page.doubts,
        engine=reader.name,
    )
