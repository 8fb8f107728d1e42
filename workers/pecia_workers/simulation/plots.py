"""Plots of simulations. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pecia_workers.simulation.scenarios import Result

_SIZE: Final = (8.0, 4.5)
_DPI: Final = 120
_STRETCHES: Final = 100
"""Stretches into which a run's time is divided: single iterations would fill the plot."""

Point = tuple[float, float]


def write_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write latency against throughput of all runs, and utilisation over time of each policy's last; return both."""
    folder.mkdir(parents=True, exist_ok=True)
    points: dict[str, list[Point]] = {}
    mean: dict[str, list[Point]] = {}
    use: dict[str, list[Point]] = {}
    for result in results:
        found = result.figures
        points.setdefault(f"{result.policy}, p95", []).append((found.requests_per_s, found.in_system.p95))
        mean.setdefault(f"{result.policy}, mean", []).append((found.requests_per_s, found.in_system.mean))
        use[result.policy] = _use_over_time(result)
    latency, busy = folder / "latency_throughput.png", folder / "utilisation.png"
    _draw(latency, mean | points, across="pages per second", up="seconds in system", marker="o")
    _draw(busy, use, across="seconds", up="share of the slots that computed", top=1.05)
    return [latency, busy]


def write_experiment(cells: Sequence[Mapping[str, float]], folder: Path) -> Path:
    """Write latency against tokens a second, a line for each batch size over its windows; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    series: dict[str, list[Point]] = {}
    for cell in cells:
        for figure in ("mean", "p95"):
            points = series.setdefault(f"size {cell['size']:.0f}, {figure}", [])
            points.append((cell["tokens_per_s"], cell[figure]))
    path = folder / "wait_window.png"
    _draw(path, series, across="tokens per second", up="seconds from arrival to end", marker="o")
    return path


def _draw(
    path: Path,
    series: Mapping[str, Sequence[Point]],
    *,
    across: str,
    up: str,
    marker: str = "",
    top: float | None = None,
) -> None:
    """Write a drawing with one line for each name as PNG."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes: Axes = figure.subplots()
    for name, points in series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, label=name)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(0, top)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=_DPI)


def _use_over_time(result: Result) -> list[Point]:
    """Return the mean share of busy slots in even stretches of the run's time."""
    end = result.run.use[-1].until
    stretch = end / _STRETCHES
    busy = [0.0] * _STRETCHES
    for use in result.run.use:
        for number in range(int(use.since / stretch), min(_STRETCHES, int(use.until / stretch) + 1)):
            inside = min(use.until, (number + 1) * stretch) - max(use.since, number * stretch)
            busy[number] += use.busy * max(0.0, inside) / stretch
    return [((number + 0.5) * stretch, share) for number, share in enumerate(busy)]
