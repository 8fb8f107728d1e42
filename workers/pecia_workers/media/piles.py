"""Pages of several files that a client has joined into one document."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges, Pile
from pecia_workers.media.joined import Part, PartFile
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource

_A4: Final = (1240, 1754)


class PilePages:
    """The files' pages one after the other. One file is open at a time; a file that cannot be opened is one page."""

    damage: tuple[tuple[float, float, float, float], ...] = ()  # each file says so of its own pages

    def __init__(self, file: BinaryIO, limits: Limits, opening: Callable[[BinaryIO], PageSource]) -> None:
        """Find the files in an open one; `opening` opens each of them. Raises `MediaError`."""
        self._file, self._limits, self._opening = file, limits, opening
        try:
            self._parts = [Part(start, end) for start, end in Pile.members(file)]
        except ValueError:
            raise MediaError(FailureCode.DAMAGED, "The joined files in it cannot be found.") from None
        limits.choose(len(self._parts), None)
        self._open: tuple[int, PageSource] | None = None
        self._infos = [self._infos_of(number) for number in range(len(self._parts))]
        self._ends = [*accumulate(map(len, self._infos))]

    def _infos_of(self, number: int) -> tuple[PageInfo, ...]:
        try:
            return self._source(number).infos()
        except MediaError:  # it fails alone, when it is decoded
            return (PageInfo(index=0, width=_A4[0], height=_A4[1]),)

    def _source(self, number: int) -> PageSource:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._opening(cast("BinaryIO", PartFile(self._file, self._parts[number])))
        return self._open[1]

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each requested page, all if None."""
        sizes = [info for infos in self._infos for info in infos]
        chosen = [replace(sizes[index], index=index) for index in self._limits.choose(len(sizes), pages)]
        self._limits.check_total(sum(page.width * page.height for page in chosen))
        return tuple(chosen)

    def page(self, index: int) -> tuple[PageSource, int]:
        """Return the file with a page, and the page's index in it. Raises `MediaError`."""
        number = bisect_right(self._ends, index)
        if number == len(self._parts):
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        return self._source(number), index - self._ends[number] + len(self._infos[number])

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one page."""
        source, own = self.page(index)
        return source.pixels(own)

    def close(self) -> None:
        """Close the file that is open."""
        if self._open:
            self._open[1].close()
            self._open = None
