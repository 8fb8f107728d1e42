"""A character of a PDF page's own text, where it stands on the drawn page."""

import math
import unicodedata
from typing import Final, NamedTuple, TypeAlias

Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""

_ASCENT, _DESCENT = 0.75, 0.2
"""How far a line's box reaches above and below its baseline, by the font's size."""
SLANT: Final = 5.0
"""Degrees from which text stands at an angle, and from which another piece of text begins."""


class Character(NamedTuple):
    """One character where it stands, in pixels of the drawn page."""

    text: str
    """As it is read: more than one letter for a ligature."""
    code: str
    """As the file has it."""
    box: Rectangle
    """Around its ink; around its place if it has no glyph."""
    origin: tuple[float, float]
    """Where it begins on its baseline."""
    size: float
    """Of the font."""
    angle: float
    """Degrees, clockwise, from upright: -180 to 180."""
    font: int
    order: int
    """When it is drawn, among all that is drawn on the page."""
    invisible: bool
    has_glyph: bool
    """Whether its font is there to draw it."""
    unmapped: bool
    """Whether it is not known what it stands for."""

    @property
    def is_turned(self) -> bool:
        """Whether it does not stand upright."""
        return abs(self.angle) > SLANT

    @property
    def is_mark(self) -> bool:
        """Whether it is an accent or a vowel sign that belongs to the letter before it."""
        return unicodedata.category(self.code).startswith("M")

    @property
    def place(self) -> Rectangle:
        """What it takes of its line: the same height for all letters of a font."""
        if self.is_turned:
            return self.box
        left, top, right, bottom = self.box
        baseline = self.origin[1]
        above, below = baseline - _ASCENT * self.size, baseline + _DESCENT * self.size
        return left, min(top, above), right, max(bottom, below)

    def along(self, angle: float) -> tuple[float, float]:
        """Return where it begins and ends on a line of this angle."""
        left, top, right, bottom = self.box
        if not angle:
            return left, right
        cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        middle = (left + right) / 2 * cosine + (top + bottom) / 2 * sine
        half = ((right - left) * abs(cosine) + (bottom - top) * abs(sine)) / 2
        return middle - half, middle + half

    def across(self, angle: float) -> float:
        """Return where its baseline is, below the top of a page that is turned until lines of this angle are level."""
        x, y = self.origin
        if not angle:
            return y
        return y * math.cos(math.radians(angle)) - x * math.sin(math.radians(angle))
