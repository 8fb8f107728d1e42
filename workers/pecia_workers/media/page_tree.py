"""A PDF's page tree, parsed from its bytes: pdfium trusts /Count and exposes neither /UserUnit nor /Collection.

Objects are found by their markers and not by cross-references, also in object streams. Where the tree cannot be
followed, as in encrypted files, pdfium's values are used.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from mmap import ACCESS_READ, mmap
from typing import BinaryIO, Final, Self, TypeAlias

_Content: TypeAlias = bytes | mmap

_MARK: Final = re.compile(rb"/(?:Kids|UserUnit|Catalog|ObjStm|Contents|OFF)(?![A-Za-z0-9])")
_OBJECT: Final = re.compile(rb"(\d+)\s+\d+\s+obj\b")
_END: Final = re.compile(rb"\bendobj|\bstream\r?\n")
_REFERENCE: Final = re.compile(rb"(\d+)\s+\d+\s+R\b")
_KIDS: Final = re.compile(rb"/Kids\s*\[([^\]]*)\]")
_COUNT: Final = re.compile(rb"/Count\s+(\d+)")
_IS_NODE: Final = re.compile(rb"/Type\s*/Pages\b")
_ROOT: Final = re.compile(rb"/Pages\s+(\d+)\s+\d+\s+R\b")
_UNIT: Final = re.compile(rb"/UserUnit\s+(\d*\.?\d+)")
_PORTFOLIO: Final = re.compile(rb"/Collection(?![A-Za-z0-9])(?!.*/View\s*/H\b)", re.DOTALL)
_CONTENTS: Final = re.compile(rb"/Contents\s*(?:\[\s*)?\d+\s+\d+\s+R\b")
_OFF: Final = re.compile(rb"/OFF\s*\[\s*\d|/BaseState\s*/OFF")
_FIRST: Final = re.compile(rb"/First\s+(\d+)")
_BEFORE: Final = 4_096
_LONGEST: Final = 2**22
"""Bytes searched before a marker for an object's start, and after it for its end; most bytes of an unpacked stream."""
_MOST_UNPACKED: Final = 2**25
_MOST_MARKS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTree:
    """The pages of a document, by the numbers of their objects, in order."""

    pages: tuple[int, ...] = ()
    units: dict[int, float]
    """User space units in 1/72 inch, by the number of the page's object, where they are stated."""
    filled: frozenset[int]
    """Objects of pages with content."""
    is_portfolio: bool = False
    is_cut: bool = False
    """Whether objects follow the last end marker: an update lost its end, and the pages are those before it."""
    counts: tuple[tuple[int, int], ...] | None = None
    """First and last byte of each /Count of the tree; None if one is in an object stream."""
    hides_layers: bool = False
    """Whether layers are off at first (PDF 32000-1, 8.11.4.3)."""

    @classmethod
    def of(cls, content: BinaryIO | bytes) -> Self:
        """Return the tree of a document, empty if it cannot be followed."""
        if isinstance(content, bytes):
            return cls._of(content)
        with suppress(OSError), mmap(content.fileno(), 0, access=ACCESS_READ) as mapped:
            return cls._of(mapped)
        return cls(units={}, filled=frozenset())  # larger than what memory is allowed

    @classmethod
    def _of(cls, content: _Content) -> Self:
        bodies = {
            number: (at, body) for number, at, body in _objects(content)
        }  # the last one of a number counts
        catalogues = [body for _, body in bodies.values() if b"/Catalog" in body]
        root = _ROOT.search(catalogues[-1]) if catalogues else None
        nodes = {number: place for number, place in bodies.items() if _IS_NODE.search(place[1])}
        pages: list[int] = []
        waiting = [int(root[1])] if root and int(root[1]) in nodes else []
        seen, counts = set[int](), list[tuple[int, int] | None]()
        while waiting:
            number = waiting.pop()
            if number not in nodes:
                pages.append(number)
            elif number not in seen:
                seen.add(number)
                at, body = nodes[number]
                kids = _KIDS.search(body)
                if kids is None:  # written elsewhere
                    pages, waiting = [], []
                    break
                waiting += [int(kid) for kid in reversed(_REFERENCE.findall(kids[1]))]
                count = _COUNT.search(body)
                counts.append((at + count.start(1), at + count.end(1)) if count and at >= 0 else None)
        return cls(
            pages=tuple(pages),
            units={
                number: float(unit[1]) for number, (_, body) in bodies.items() if (unit := _UNIT.search(body))
            },
            filled=frozenset(
                number for number in pages if number in bodies and _CONTENTS.search(bodies[number][1])
            ),
            is_portfolio=any(_PORTFOLIO.search(body) for body in catalogues[-1:]),
            is_cut=(end := content.rfind(b"%%EOF")) >= 0 and bool(_OBJECT.search(content, end)),
            counts=tuple(count for count in counts if count) if all(counts) else None,
            hides_layers=any(_OFF.search(body) for _, body in bodies.values()),
        )

    def unit(self, index: int, pages: int) -> float:
        """Return a page's unit in 1/72 inch; `pages`: number of the document's pages."""
        return self.units.get(self.pages[index], 1.0) if self.units and len(self.pages) == pages else 1.0

    def has_content(self, index: int, pages: int) -> bool:
        """Return whether a page has content; `pages`: number of the document's pages."""
        return len(self.pages) == pages and self.pages[index] in self.filled

    def uncounted(self, content: bytes) -> bytes:
        """Return a document without its /Count values, so that pdfium counts the pages."""
        changed = bytearray(content)
        for first, end in self.counts or ():
            changed[first:end] = b"0" * (end - first)
        return bytes(changed)


def _objects(content: _Content) -> Iterator[tuple[int, int, bytes]]:
    """Yield objects with a marker: number, offset in the file (-1: in an object stream), and content."""
    unpacked, done = 0, 0
    for mark in islice(_MARK.finditer(content), _MOST_MARKS):
        if mark.start() < done:
            continue
        before = max(0, mark.start() - _BEFORE)
        head = max(_OBJECT.finditer(content[before : mark.start()]), key=re.Match.start, default=None)
        if head is None or _END.search(content, before + head.end(), mark.start()):
            continue  # within a stream
        end = _END.search(content, mark.end(), mark.end() + _LONGEST)
        if end is None:  # of a file that was cut
            done = mark.end() + _LONGEST
            continue
        start, done = before + head.end(), end.start()
        body = bytes(content[start:done])
        if b"/ObjStm" not in body:
            yield int(head[1]), start, body
        elif unpacked < _MOST_UNPACKED:
            for number, inner in _within(body, content[end.end() : end.end() + _LONGEST]):
                unpacked += len(inner)
                if _MARK.search(inner):
                    yield number, -1, inner


def _within(about: bytes, packed: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the objects of an object stream with their numbers (PDF 32000-1, 7.5.7)."""
    content = packed
    with suppress(zlib.error):
        if b"/FlateDecode" in about:
            content = zlib.decompressobj().decompress(packed, _LONGEST)
    first = _FIRST.search(about)
    if first is None or not _MARK.search(content):
        return
    numbers = [int(number) for number in re.findall(rb"\d+", content[: int(first[1])])]
    starts = [int(first[1]) + start for start in numbers[1::2]]
    for number, start, end in zip(numbers[::2], starts, [*starts[1:], len(content)], strict=False):
        yield number, content[start:end]
