"""Canary pages: drawn pages with a code, read among the worker's pages, that show whether its engine works.

A result is held back until a canary that was sent after its last answer has been read correctly, so that no result
since the last good canary is committed: when a canary fails, the worker requeues its parts and exits.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, NoReturn
from uuid import UUID

import numpy as np
import structlog
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.observability import metrics
from pecia_workers.protocol.base import (
    Capabilities,
    EngineDeadError,
    EngineDistrustedError,
    EngineError,
    EngineRequest,
    Generation,
    Generator,
)
from pecia_workers.protocol.parts import waiting
from pecia_workers.reading.page import page_instruction

log = structlog.get_logger(__name__)

_SIGNS: Final = "ACEFHKLMNPRTWXY3479"
"""Characters of codes, without pairs that readers confuse: 0 O, 1 I, 2 Z, 5 S, 6 G, 8 B, U V."""
_LENGTH: Final = 16
_MISREAD: Final = 5
"""Edits allowed in each occurrence of the code on the page except one."""
_GROUP: Final = 4
_LINES: Final = (
    "This page tests its reader.",
    "Code: {}",
    "Sample {}, tube A",
    "Again the code: {}",
    "End of {}",
)
_SIZE: Final = (784, 560)
_MARGIN: Final = 56
_LINE_HEIGHT: Final = 96
_REMEMBERED: Final = 32
"""Number of latest codes that no other answer may contain."""
_LONGEST_ANSWER: Final = 512
_LONGEST_WAIT_S: Final = 10.0
"""Seconds after which a canary is sent for fewer pages than the setting says; immediately if the engine is idle."""
_MEANWHILE: Final = 4
"""Expected time of a page in canaries."""
_TRIES: Final = 3
_NOT_LETTERS: Final = re.compile(r"[^A-Z0-9]")


def drawn_code(others: Iterable[str] = ()) -> str:
    """Return a random code that no single misreading turns into another code."""
    while True:
        code = "".join(secrets.choice(_SIGNS) for _ in range(_LENGTH))
        if all(distance(code, other) > 2 * _MISREAD for other in others):
            return code


def drawn_page(code: str) -> NDArray[np.uint8]:
    """Return a page with this code on four of its lines."""
    image = Image.new("RGB", _SIZE, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(30)
    shown = "-".join(code[start : start + _GROUP] for start in range(0, _LENGTH, _GROUP))
    for number, line in enumerate(_LINES):
        draw.text((_MARGIN, _MARGIN + number * _LINE_HEIGHT), line.format(shown), fill="black", font=font)
    return np.asarray(image)


def letters(text: str) -> str:
    """Return only the letters and digits of an answer, in capitals."""
    return _NOT_LETTERS.sub("", text.upper())


def distance(code: str, text: str) -> int:
    """Return the least number of edits that make the code appear in the text."""
    if code in text:
        return 0
    row = [0] * (len(text) + 1)
    for place, sign in enumerate(code, 1):
        diagonal, row[0] = row[0], place
        for column, other in enumerate(text, 1):
            changed = diagonal + (sign != other)
            diagonal, row[column] = row[column], min(changed, row[column] + 1, row[column - 1] + 1)
    return min(row)


def is_read_right(text: str, code: str, others: Iterable[str] = ()) -> bool:
    """Return whether the answer to a canary contains its own code and none of the others."""
    read = letters(text)
    return distance(code, read) <= _MISREAD and not any(other in read for other in others)


@dataclass(slots=True)
class _Round:
    """Pages that wait for the same canary."""

    due: asyncio.Event
    read: asyncio.Task[None]
    pages: int = 0


class Canaries:
    """A generator that tests its engine by canary pages. For one loop."""

    def __init__(
        self,
        generator: Generator,
        slots: int,
        settings: WorkerSettings,
        freed: Callable[[UUID], None] = lambda _: None,
    ) -> None:
        """`slots`: requests that the engine holds; `freed` is called with each part that no longer needs the engine."""
        self._generator = generator
        self._every = settings.canary_every
        self.spare = min(self._every, slots) + slots // _MEANWHILE
        """Pages that the worker may hold in addition to its engine's."""
        self._freed = freed
        reader = card_of(generator.capabilities.model, settings.card)
        self._request = EngineRequest(
            id="canary",
            images=(),
            workload="canary",
            instruction=page_instruction(reader, DocumentType.MIXED, None),
            system=reader.system,
            sampling=reader.sampling,
            max_output_tokens=_LONGEST_ANSWER,
        )
        self._codes: deque[str] = deque(maxlen=_REMEMBERED)
        self._numbers = count(1)
        self._inside = 0
        self._gathering: _Round | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._fault = ""

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self._generator.capabilities

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Raises `EngineError`; `EngineDistrustedError` for a text with a canary's code."""
        self._check()
        # The next canary goes where pages go: into their lane, and through the caches of their tenant.
        self._request = replace(self._request, priority=request.priority, tenant=request.tenant)
        self._inside += 1
        try:
            generation = await self._generator.generate(request)
        finally:
            self._inside -= 1
        self._check()
        read = letters(generation.text)
        if any(code in read for code in self._codes):
            self._distrust("leaked", "The answer to a page held the code of a canary page.")
        return generation

    async def vouch(self, part: UUID) -> None:
        """Wait until a canary sent after this call was read correctly. Raises `EngineDistrustedError`."""
        self._check()
        self._freed(part)
        awaited = self._gathering = self._gathering or self._begun()
        awaited.pages += 1
        if awaited.pages >= self._every or not self._inside:
            self._gathering = None
            awaited.due.set()
        with waiting():
            await asyncio.shield(awaited.read)
        self._check()

    async def prove(self) -> None:
        """Read one canary. Raises `EngineDistrustedError` if its code is not read correctly."""
        for _ in range(_TRIES):
            code = drawn_code(self._codes)
            self._codes.append(code)
            pixels = await asyncio.to_thread(drawn_page, code)
            request = replace(self._request, id=f"canary:{next(self._numbers)}", images=(pixels,))
            try:
                generation = await self._generator.generate(request)
            except EngineDeadError:
                raise
            except EngineError as error:
                metrics.CANARIES.labels("unanswered").inc()
                log.warning("canary_unanswered", request=request.id, error=type(error).__name__)
                continue
            if not is_read_right(generation.text, code, (other for other in self._codes if other != code)):
                self._distrust("failed", "The answer to a canary page did not hold that page's code alone.")
            metrics.CANARIES.labels("read").inc()
            return
        self._distrust("failed", f"None of {_TRIES} canary pages had an answer.")

    async def stop(self) -> None:
        """Cancel the running canaries."""
        for task in (tasks := tuple(self._reading)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begun(self) -> _Round:
        """Return a new round; its canary is sent when enough pages wait, or after a while."""
        due = asyncio.Event()
        # A context of its own: a canary is nothing of the part that happens to wait first.
        task = asyncio.create_task(self._send(due), context=Context())
        self._reading.add(task)
        task.add_done_callback(self._ended)
        return _Round(due, task)

    async def _send(self, due: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(due.wait(), _LONGEST_WAIT_S)
        if self._gathering and self._gathering.due is due:
            self._gathering = None
        await self.prove()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio complains where its pages were cancelled

    def _distrust(self, outcome: str, reason: str) -> NoReturn:
        """Distrust all readings of the engine from here on."""
        metrics.CANARIES.labels(outcome).inc()
        log.error("canary_failed", outcome=outcome, canaries=next(self._numbers) - 1)
        self._fault = self._fault or reason
        raise EngineDistrustedError(self._fault)

    def _check(self) -> None:
        if self._fault:
            raise EngineDistrustedError(self._fault)
