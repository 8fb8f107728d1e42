"""Every side in turn, round after round."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

from harness.servers import Servers, servers
from harness.sides import Side

M = TypeVar("M")


def measured_in_turn(
    sides: Sequence[Side], rounds: int, measure: Callable[[Servers, Side], M]
) -> dict[str, list[M]]:
    """Measure each side once a round, on the same servers; return what was found of each, by its name."""
    found: dict[str, list[M]] = {side.name: [] for side in sides}
    with servers() as shared, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=rounds * len(sides))
        for number in range(rounds):
            for side in sides:
                progress.update(task, description=f"round {number + 1}: {side.name}")
                found[side.name].append(measure(shared, side))
                progress.advance(task)
    return found
