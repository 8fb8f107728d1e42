"""`pecia experiment`: what size and wait window of a batch do, simulated or on the engine of the settings."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.commands.settings import MixOption, settings_or_exit, weights
from pecia_workers.commands.showing import FAILED, UNAVAILABLE, USAGE, aligned, drawing_or_exit, refused
from pecia_workers.engines.base import EngineError, EngineUnavailableError
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.requests import Mix, Request, drawn, poisson

if TYPE_CHECKING:
    from pecia_workers.batching.policies import BatchLimits
    from pecia_workers.engines.profiles import Speed
    from pecia_workers.simulation.experiment import Cell

    _Found = tuple[list[Cell], Speed | None]

_SIZES: Final = (1, 4, 8)
_WINDOWS_MS: Final = (0, 10, 50)


def experiment(
    *,
    size: Annotated[
        list[int] | None, typer.Option(help="Most pages of a batch. Default: 1, 4, 8.", min=1)
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(help="Milliseconds that a batch waits for others. Default: 0, 10, 50.", min=0),
    ] = None,
    concurrent: Annotated[int, typer.Option(help="Batches in the engine at a time.", min=1)] = 1,
    rate: Annotated[float, typer.Option(help="Pages a second, at random.", min=0.001)] = 2.0,
    pages: Annotated[int, typer.Option(help="For each size and window.", min=1)] = 200,
    mix: MixOption = DocumentType.PRESCRIPTION,
    seed: Annotated[int, typer.Option(help="Another draw of the same workload.")] = 0,
    real: Annotated[
        bool, typer.Option("--real", help="On the engine that PECIA_ENGINE names, in real time.")
    ] = False,
    speed: Annotated[
        Path | None, typer.Option(help="With --real: file for the engine's speed, that `plan --speed` takes.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each size and window.")] = False,
) -> None:
    """Send the same pages in batches of each size, after each wait, and compare latency, tokens and use.

    Simulated in no time, or with --real read by an engine. Exit 1 if that reads nothing, 4 if it does not start.

    Example: `pecia experiment --size 1 --size 8 --window 0 --window 50`
    """
    if plot:
        drawing_or_exit()
    from pecia_workers.simulation.experiment import limits_of  # noqa: PLC0415  heavy: help must not wait for it

    requests = drawn(poisson(pages, rate, seed), Mix(types=weights(mix, DocumentType, "--mix")), seed)
    grid = [
        limits_of(most, wait / 1e3, concurrent) for most in size or _SIZES for wait in window or _WINDOWS_MS
    ]
    if speed and not real:
        raise refused("--speed is measured: it needs --real.", USAGE)
    if real:
        cells, found = _measured(settings_or_exit(), requests, grid)
        if speed:
            _write_speed(found, speed)
    else:
        cells = _simulated(requests, grid)
    if plot:
        from pecia_workers.simulation.plots import write_experiment  # noqa: PLC0415  heavy, and not always installed

        typer.echo(f"Wrote {write_experiment(cells, plot)}.", err=True)
    if as_json:
        for cell in cells:
            typer.echo(json.dumps(asdict(cell)))
    else:
        Console(highlight=False).print(aligned([_row(cell) for cell in cells]))


def _simulated(requests: list[Request], grid: list[BatchLimits]) -> list[Cell]:
    from pecia_workers.simulation.experiment import simulated_cell  # noqa: PLC0415  heavy

    return [simulated_cell(requests, IterationModel(), limits) for limits in grid]


def _measured(settings: WorkerSettings, requests: list[Request], grid: list[BatchLimits]) -> _Found:
    from pecia_workers.logs import configure_logs  # noqa: PLC0415

    configure_logs(settings)
    try:
        return asyncio.run(_on_engine(settings, requests, grid))
    except EngineUnavailableError as error:
        raise refused(error, UNAVAILABLE) from None
    except EngineError as error:
        raise refused(error, FAILED) from None


async def _on_engine(settings: WorkerSettings, requests: list[Request], grid: list[BatchLimits]) -> _Found:
    from pecia_workers.engines.profiles import with_profile  # noqa: PLC0415  heavy
    from pecia_workers.engines.registry import create_engine  # noqa: PLC0415
    from pecia_workers.simulation.experiment import (  # noqa: PLC0415
        fitted_speed,
        limits_of,
        measured_cell,
    )

    engine = create_engine(await asyncio.to_thread(with_profile, settings))
    try:
        await engine.start()
        by_itself = limits_of(1, 0, 1)
        await measured_cell(requests[:1], engine, by_itself, first=0)  # the first page warms it up
        _, alone = await measured_cell(requests[:1], engine, by_itself, first=1)
        found = [
            await measured_cell(requests, engine, limits, first=2 + turn * len(requests))
            for turn, limits in enumerate(grid)
        ]
        return [cell for cell, _ in found], fitted_speed(alone, [run for _, run in found])
    finally:
        await engine.stop()


def _write_speed(speed: Speed | None, path: Path) -> None:
    if speed is None:
        raise refused("This engine does not tell when it wrote its first token: no speed is known.", FAILED)
    from pecia_workers.engines.profiles import speed_toml  # noqa: PLC0415

    path.write_text(speed_toml(speed), encoding="utf-8")
    typer.echo(f"Wrote {path}.", err=True)


def _row(cell: Cell) -> dict[str, str]:
    return {
        "size": str(cell.size),
        "window ms": f"{1e3 * cell.window:.0f}",
        "mean s": f"{cell.mean:.3f}",
        "p95 s": f"{cell.p95:.3f}",
        "waits s": f"{cell.waiting:.3f}",
        "tokens/s": f"{cell.tokens_per_s:.1f}",
        "use": f"{cell.utilisation:.1%}",
        "failed": str(cell.failed or ""),
    }
