"""The CPU engines: OCR libraries in processes; each page is read by a library for its language.

Imports no OCR library and no OpenCV, so that GPU workers do not need them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pecia_schemas.blocks import (
    Block,
    Box,
    Confidence,
    Doubt,
    DoubtReason,
    Line,
    Source,
    Stored,
    Word,
    text_of,
)
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_schemas.tasks import image_tokens, languages_of
from pecia_workers.engines.models import VISIBLE
from pecia_workers.layout.lines import is_value, shifted
from pecia_workers.media.frames import plain
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError
from pecia_workers.protocol import base

if TYPE_CHECKING:
    from pecia_workers.layout.blocks import Layout
    from pecia_workers.layout.coverage import Letters

_MOST_PIXELS: Final = 9_000_000
"""A4 at 300 dots per inch: larger pages are slower to read, without any gain in accuracy."""
_CHARACTERS_PER_TOKEN: Final = 4


class PageRead(Stored):
    """The reading of a page."""

    blocks: tuple[Block, ...]
    """In reading order; empty if no text was found."""
    coverage: Confidence | None
    """Share of the page's letters inside areas that were read; None: it has no letters."""
    doubts: tuple[Doubt, ...]
    glanced: tuple[base.Piece, ...] = ()
    """The page's pieces of text, if it was read quickly."""
    reader: str | None = None
    """Name of the library that read it, if several were available."""


class Read(Protocol):
    """Reads an RGB page, or a part of one."""

    def __call__(self, pixels: NDArray[np.uint8], tallest: float | None = None) -> PageRead:
        """`tallest`: greatest height of letters, in pixels, in a part of a page."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReader:
    """One OCR library with its models. Its functions run in a separate process, one page at a time."""

    name: str
    model: str
    languages: frozenset[str]
    """ISO 639-1 codes that it reads."""
    revision: str
    """Identifies its model and version."""
    load: Callable[[], None]
    """Loads the model into the calling process."""
    read: Read
    glance: Callable[[NDArray[np.uint8]], PageRead] | None = None
    """Reads a page quickly, at a third of the cost; None: not available."""
    read_pieces: Callable[[NDArray[np.uint8], Sequence[base.Piece]], PageRead] | None = None
    """Reads pieces again that a quick reading may have misread: a line for each."""
    data: tuple[Path, ...] = ()
    """Files that `load` opens outside of Python's packages."""


def load_readers(loads: tuple[Callable[[], None], ...], nice: int = 0) -> None:
    """Prepare a new process for reading, with this increment of niceness."""
    os.nice(nice)
    for load in loads:
        load()


_PAGE_READ: Final = plain(TypeAdapter(PageRead))


class OcrEngine(base.Engine):
    """Reads pages in separate processes, with one page and one thread each.

    It has no tokens: `usage` counts the picture by the fleet's price formula, and four characters of text as a token,
    for comparison with language models.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *readers: PageReader,
        name: str | None = None,
        remedies: Mapping[str, str] | None = None,
        nice: int = 0,
    ) -> None:
        """Prefer the first reader for a language unknown or known to several. `nice`: niceness of processes."""
        processes = settings.engine_processes or len(os.sched_getaffinity(0))
        capabilities = base.Capabilities(
            name=name or readers[0].name,
            model=", ".join(reader.model for reader in readers),
            stages=frozenset({Stage.READ}),
            languages=frozenset[str]().union(*(reader.languages for reader in readers)),
            remedies=remedies or {},
            most_pixels=_MOST_PIXELS,
            completes=True,
            samples=False,
            device="cpu",
            revision="; ".join(reader.revision for reader in readers),
        )
        # A page for each process and one in preparation: an urgent page waits behind no more.
        super().__init__(capabilities, base.Budget(slots=processes + 1, tokens=None))
        self._readers = readers
        self._processes = BoundedProcesses(
            processes,
            load_readers,
            tuple(reader.load for reader in readers),
            nice,
            readable=[place for reader in readers for place in reader.data],
            environment={name: os.environ[name] for name in (VISIBLE,) if name in os.environ},
        )
        self._timeout = settings.part_timeout.total_seconds()

    async def start(self) -> None:
        """Load the models in every process. Raises `EngineDeadError` if one cannot be loaded."""
        try:
            await self._processes.start()
        except (ProcessDiedError, TimeoutError):
            await self._processes.stop()
            raise base.EngineDeadError("The OCR processes did not start: see the worker's log.") from None

    async def stop(self) -> None:
        """End every process; callers get `asyncio.CancelledError`."""
        await self._end_all()
        await self._processes.stop()

    async def _answer(self, request: base.EngineRequest) -> base.Generation:
        """Read one page. The death of its process fails only this request."""
        if len(request.images) != 1:
            raise base.EngineError("This engine reads exactly one page at a time.")
        languages, pixels = languages_of(request.language), request.images[0]
        known = [one for one in self._readers if not languages or one.languages.intersection(languages)]
        reader, *others = known or self._readers
        choice = (
            [reader] if len(languages) == 1 else [reader, *others]
        )  # which of them, the page's script decides
        call: tuple[Any, ...] = (read_page, choice, pixels)
        if request.unread:
            call = (read_rest, reader.read, pixels, request.known, request.unread)
        if request.again:
            call = (reader.read_pieces, pixels, request.again)
        try:
            page = await self._processes.call(_PAGE_READ, *call, timeout=self._timeout)
        except TimeoutError:
            raise base.EngineError(f"Reading did not end within {self._timeout:g} s.") from None
        except ProcessDiedError:
            raise base.EngineError("The OCR process ended in the middle of the page.") from None
        text = text_of(page.blocks)
        is_unread = any(doubt.reason is DoubtReason.LANGUAGE_UNREAD for doubt in page.doubts)
        without_text = Verdict.BLANK if page.coverage is None else Verdict.UNREADABLE
        sizes = [(box.right - box.left, box.bottom - box.top) for box in request.unread] or [request.size]
        pictures, tokens = sum(starmap(image_tokens, sizes)), math.ceil(len(text) / _CHARACTERS_PER_TOKEN)
        return base.Generation(
            text=text,
            verdict=Verdict.OK if page.blocks and not is_unread else without_text,
            usage=TokenUsage(prompt=pictures, image=pictures, output=tokens),
            blocks=page.blocks,
            coverage=page.coverage,
            doubts=page.doubts,
            engine=page.reader or reader.name,
            glanced=page.glanced,
        )

    def load(self) -> base.Load:
        """Return how many pages are being read, and how many wait for a process."""
        return self._load_of(self._processes.processes)


def read_page(readers: Sequence[PageReader], pixels: NDArray[np.uint8]) -> PageRead:
    """Read a page by the first reader, or by another that knows its script; doubts name a script that none knows."""
    from pecia_workers.engines.cpu.scripts import HANGUL, is_korean, unread_script  # noqa: PLC0415  OpenCV, as below

    first, *others = readers
    page = (first.glance or first.read)(pixels).model_copy(update={"reader": first.name})
    script = None if "ko" in first.languages else unread_script(pixels, page.coverage)
    if script is None:
        return page
    for other in others:
        if script == HANGUL and "ko" in other.languages and is_korean((again := other.read(pixels)).blocks):
            return again.model_copy(update={"reader": other.name})
    doubt = Doubt(reason=DoubtReason.LANGUAGE_UNREAD, other=script)
    return page.model_copy(update={"doubts": (doubt, *page.doubts)})


_LEAST_SHARE, _LEAST_LETTERS = 0.02, 12
"""Share and number of unread letters from which a page is incomplete: pictures have shapes that resemble letters."""


def read_rest(
    read: Read, pixels: NDArray[np.uint8], known: Sequence[Line], unread: Sequence[Box]
) -> PageRead:
    """Read some areas of a page whose other text is known, and return all text, each line with its source."""
    from pecia_workers.layout.blocks import layout  # noqa: PLC0415  OpenCV comes with pecia[cpu]
    from pecia_workers.layout.coverage import TALLEST  # noqa: PLC0415  as above
    from pecia_workers.layout.marks import SIGNS  # noqa: PLC0415  as above

    rest = pixels.copy()
    for box in (word.box for line in known for word in line.words):
        word = rest[max(0, box.top) : box.bottom, max(0, box.left) : box.right]
        if word.size:
            word[:] = np.median(word, axis=(0, 1))
    pieces, doubts = [*known], list[Doubt]()
    for box in unread:
        part = read(rest[box.top : box.bottom, box.left : box.right], TALLEST * max(pixels.shape))
        for line in (line for block in part.blocks for line in block.lines):
            # Marks are looked for once more on the whole page; by itself a digit may look like one.
            words = tuple(word for word in line.words if word.text not in SIGNS)
            if words != line.words:
                text = " ".join(word.text for word in words)
                line = line.model_copy(update={"text": text, "words": words})  # noqa: PLW2901
            pieces += [shifted(line, box.left, box.top)] if line.text else []
        doubts += [_shifted(doubt, box) for doubt in part.doubts if doubt.reason in _OF_A_PART]
        if part.coverage == 0 and not part.doubts:
            doubts.append(Doubt(reason=DoubtReason.UNCOVERED, box=box))
    found = layout(pieces, pixels, source=Source.LAYER)
    blocks = tuple(map(_with_sources, found.blocks))
    return PageRead(blocks=blocks, coverage=None, doubts=(*found.doubts, *doubts))


_OF_A_PART: Final = (DoubtReason.LOW_CONFIDENCE, DoubtReason.UNCOVERED)
"""Doubts that are independent of the page's layout."""


def _shifted(doubt: Doubt, part: Box) -> Doubt:
    if doubt.box is None:
        return doubt
    line = shifted(Line(text="", box=doubt.box), part.left, part.top)
    return doubt.model_copy(update={"box": line.box})


def _with_sources(block: Block) -> Block:
    """Return a block with the source of each line; only recognised words have a confidence."""
    exact = [[word.confidence is None for word in line.words or (line,)] for line in block.lines]
    lines = (
        line.model_copy(update={"source": _source(words)})
        for line, words in zip(block.lines, exact, strict=True)
    )
    return block.model_copy(update={"lines": tuple(lines), "source": _source(chain.from_iterable(exact))})


def _source(exact: Iterable[bool]) -> Source:
    are = set(exact)
    return Source.BOTH if len(are) > 1 else Source.OCR if are == {False} else Source.LAYER


def page_read(
    found: Layout,
    pieces: Sequence[Line],
    letters: Letters,
    doubtful: float,
    *,
    beneath: Letters,
    left_out: Sequence[Line] = (),
    others: Mapping[Box, str] | None = None,
) -> PageRead:
    """Return the reading of a page, from recognised pieces of text in any order, and their layout.

    `doubtful`: confidence below which a word is a doubt. `beneath`: letters under a figure. `left_out`: pieces that may
    be text or specks, which become doubts and are not in the text. `others`: alternative readings of words, by box;
    None where confidences were not measured.
    """
    missed, hidden = letters.unread(pieces), beneath.unread(pieces)
    doubts = list(found.doubts)
    if len(missed) >= _LEAST_LETTERS and missed.share_of(letters) >= _LEAST_SHARE:
        doubts += [Doubt(reason=DoubtReason.UNCOVERED, box=box) for box in missed.rows()]
    doubts += [Doubt(reason=DoubtReason.UNCOVERED, box=box) for box in hidden.pairs()]
    for line in (line for block in found.blocks for line in block.lines):
        words: Sequence[Word | Line] = line.words or (line,)
        for number, word in enumerate(words):
            is_text = any(map(str.isalnum, word.text))
            if is_text and word.confidence is not None and word.confidence <= doubtful:
                other = others.get(word.box) if others else None
                before = " ".join(earlier.text for earlier in words[:number])
                on_value = any(is_value(part, before) for part in f"{word.text} {other or ''}".split())
                doubt = _low(word, on_value=on_value)
                measured = None if others is None else 1 - word.confidence
                doubts.append(doubt.model_copy(update={"other": other, "probability": measured}))
    doubts += [_low(piece, on_value=any(map(is_value, piece.text.split()))) for piece in left_out]
    every = len(letters) + len(beneath)
    coverage = 1 - (len(missed) + len(hidden)) / every if every else None
    return PageRead(blocks=found.blocks, coverage=coverage, doubts=tuple(doubts))


def _low(piece: Word | Line, *, on_value: bool) -> Doubt:
    return Doubt(reason=DoubtReason.LOW_CONFIDENCE, box=piece.box, text=piece.text, on_value=on_value)
