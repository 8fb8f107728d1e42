"""Characters that a recogniser confuses with each other, and the edit distance of two words."""

from typing import Final

_SHAPES: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_SHAPE: Final = str.maketrans("01ij|58μß$", "olllls8ubs")


def shape_of(key: str) -> str:
    """Return a key with all characters of a confusable group replaced by the same one."""
    key = key.translate(_SHAPE)
    for signs, one in _SHAPES:
        key = key.replace(signs, one)
    return key


def at_least(one: str, other: str) -> int:
    """Return a lower bound of the edit distance, by the characters that both words have."""
    return max(len(one), len(other)) - sum(min(one.count(sign), other.count(sign)) for sign in set(one))


def distance(one: str, other: str) -> int:
    """Return the edit distance: the number of characters to insert, delete or replace."""
    row = list(range(len(other) + 1))
    for number, sign in enumerate(one, 1):
        before, row[0] = row[0], number
        for place, against in enumerate(other, 1):
            least = min(row[place] + 1, row[place - 1] + 1, before + (sign != against))
            before, row[place] = row[place], least
    return row[-1]
