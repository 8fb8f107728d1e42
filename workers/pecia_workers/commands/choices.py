"""What several verbs take as text: weights by name, such as `prescription=2,chart=1`."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import typer

_Name = TypeVar("_Name", bound=StrEnum)


def weights(text: str, names: type[_Name], option: str) -> dict[_Name, float]:
    """Return the weights that an option gives; a name without one counts 1. Raises `typer.BadParameter`."""
    found = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if name not in set(names):
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}.", param_hint=option)
        try:
            found[names(name)] = float(weight or 1)
        except ValueError:
            raise typer.BadParameter(f"{weight!r} is no weight.", param_hint=option) from None
    if min(found.values()) < 0 or not sum(found.values()):
        raise typer.BadParameter("Weights are not negative, and one is more than 0.", param_hint=option)
    return found
