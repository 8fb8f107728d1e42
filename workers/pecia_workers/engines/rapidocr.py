"""The CPU engine for English and Chinese: PP-OCR through rapidocr, its models out of the wheel."""

from __future__ import annotations

import asyncio
import math
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.states import Stage
from pecia_workers.engines.base import Budget, Capabilities, EngineDeadError, EngineError, Generation, Load
from pecia_workers.engines.pricing import picture_tokens, request_cost
from pecia_workers.engines.rapidocr_process import load_model, read_page
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

if TYPE_CHECKING:
    from pecia_schemas.results import Line
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import EngineRequest

_CAPABILITIES: Final = Capabilities(
    name="rapidocr",
    model="PP-OCRv6-small",
    stages=frozenset({Stage.READ}),
    languages=frozenset({"en", "zh"}),
    samples=False,
    device="cpu",
    revision=" ".join(f"{name} {version(name)}" for name in ("rapidocr", "onnxruntime")),
)
_CHARACTERS_PER_TOKEN: Final = 4


class RapidOcrEngine:
    """Reads pages in processes of their own, one page and one thread each.

    It has no tokens: `usage` counts the picture by the fleet's price formula and four characters of text as a token, so
    that the figures compare with those of a language model.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        count = settings.engine_processes or len(os.sched_getaffinity(0))
        self._processes = BoundedProcesses(count, load_model)
        self._timeout = settings.part_timeout.total_seconds()
        self._in_flight: dict[str, asyncio.Task[tuple[Line, ...]]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """English and Chinese pages."""
        return _CAPABILITIES

    @property
    def budget(self) -> Budget:
        """One page for each process and one that is being made ready: an urgent page waits behind no more."""
        return Budget(slots=self._processes.processes + 1, tokens=None)

    async def start(self) -> None:
        """Load the model in every process. Raises `EngineDeadError` if it cannot be loaded."""
        try:
            await self._processes.start()
        except (ProcessDiedError, TimeoutError):
            await self._processes.stop()
            raise EngineDeadError("The OCR processes did not start: see the worker's log.") from None

    async def stop(self) -> None:
        """End every process; callers get `asyncio.CancelledError`."""
        for reading in self._in_flight.values():
            reading.cancel()
        await self._processes.stop()

    async def fit(self, request: EngineRequest) -> EngineRequest:
        """Return the request: the engine scales pictures by itself."""
        return request

    def cost(self, request: EngineRequest) -> int:
        """Return what the price formula says: the budget counts slots alone."""
        return request_cost(request)

    async def generate(self, request: EngineRequest) -> Generation:
        """Read one page. A process that dies takes only this request with it."""
        if len(request.images) != 1:
            raise EngineError("This engine reads exactly one page at a time.")
        if request.id in self._in_flight:
            raise EngineError("A request with this id is in flight already.")
        reading = asyncio.create_task(
            self._processes.call(read_page, request.images[0], timeout=self._timeout)
        )
        self._in_flight[request.id] = reading
        try:
            return _generation(request, await reading)
        except TimeoutError:
            raise EngineError(f"Reading did not end within {self._timeout:g} s.") from None
        except ProcessDiedError:
            raise EngineError("The OCR process ended in the middle of the page.") from None
        finally:
            del self._in_flight[request.id]

    async def abort(self, request_id: str) -> None:
        """End one request at the cost of its process, which starts again."""
        reading = self._in_flight.get(request_id)
        if reading is not None:
            reading.cancel()

    def load(self) -> Load:
        """Return how many pages are read and how many wait for a process."""
        running = min(len(self._in_flight), self._processes.processes)
        return Load(running=running, waiting=len(self._in_flight) - running)


def _generation(request: EngineRequest, lines: tuple[Line, ...]) -> Generation:
    text = "\n".join(line.text for line in lines)
    pictures = picture_tokens(request)
    usage = TokenUsage(prompt=pictures, image=pictures, output=math.ceil(len(text) / _CHARACTERS_PER_TOKEN))
    verdict = Verdict.OK if lines else Verdict.UNREADABLE
    return Generation(text=text, verdict=verdict, usage=usage, lines=lines)
