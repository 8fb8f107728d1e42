"""`pecia simulate`: the worker's policies beside each other, in simulated time."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import BatchLimits, PolicyName
from pecia_workers.commands.settings import MixOption, settings_or_exit, weights
from pecia_workers.commands.showing import USAGE, aligned, drawing_or_exit, refused
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.profiles import speed_in
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel
from pecia_workers.simulation.requests import (
    Mix,
    Request,
    TraceError,
    all_at_once,
    bursts,
    drawn,
    poisson,
    read_trace,
)
from pecia_workers.simulation.scenarios import Result, simulated, simulated_seed

_OF_PRESETS: Final = frozenset({"preset", "policy", "ahead", "plot", "as_json"})
"""Options that a preset does not bring itself."""
_AHEAD: Final = 16
"""Two pages for each of eight decoding processes: what a worker claims beside what its engine runs."""


class PresetName(StrEnum):
    """Workloads with a name."""

    SEED = "seed"


class Preemption(StrEnum):
    """What becomes of a sequence that gives way."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


Arrivals = Annotated[str, typer.Option(help="all, poisson, bursts, or a file: CSV, or a JSON object a line.")]
Rates = Annotated[list[float] | None, typer.Option(help="Pages a second; several: one run each.", min=0.001)]
Ahead = Annotated[
    int | None,
    typer.Option(help="Pages that wait at the worker, where policies choose. Default: all, or 16.", min=1),
]


def simulate(
    context: typer.Context,
    *,
    preset: Annotated[
        PresetName | None, typer.Option(help="seed: 200 requests on 8 slots, by their times.")
    ] = None,
    policy: Annotated[list[PolicyName] | None, typer.Option(help="Default: all of them.")] = None,
    arrivals: Arrivals = "poisson",
    rate: Rates = None,
    pages: Annotated[int, typer.Option(help="How many arrive.", min=1)] = 500,
    mix: MixOption = DocumentType.MIXED,
    lanes: Annotated[str, typer.Option(help="Lanes by weight: urgent=1,bulk=9.")] = Lane.NORMAL,
    ahead: Ahead = None,
    slots: Annotated[int, typer.Option(help="Requests in the engine at a time.", min=1)] = 32,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of its KV cache.", min=BLOCK_TOKENS)] = 131_072,
    batched_tokens: Annotated[int, typer.Option(help="Most tokens of an iteration.", min=1)] = 16_384,
    chunk: Annotated[
        int, typer.Option(help="Most tokens of prompts in an iteration. 0: no limit.", min=0)
    ] = 0,
    prefill_share: Annotated[
        float, typer.Option(help="Most that prompts take of an iteration.", min=0.01, max=1)
    ] = 1.0,
    preemption: Annotated[
        Preemption, typer.Option(help="What gives way is computed again, or swapped.")
    ] = Preemption.RECOMPUTE,
    speed: Annotated[
        Path | None,
        typer.Option(help="Of an engine: what `engine tune` or `experiment --real --speed` wrote."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another draw of the same workload.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for pictures: latency against throughput, use over time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each run.")] = False,
) -> None:
    """Run the worker's own admission policies over a simulated engine, in seconds: who waits, and how full it is.

    PECIA_BATCH_* settings count as they would for a worker.

    Example: `pecia simulate --preset seed`
    """
    names = list(policy or PolicyName)
    if plot:
        drawing_or_exit()
    if preset is PresetName.SEED:
        _refuse_ignored(context)
        _show([(None, simulated_seed(name, ahead=ahead)) for name in names], plot, as_json=as_json)
        return
    model = IterationModel(
        max_num_seqs=slots,
        kv_blocks=kv_tokens // BLOCK_TOKENS,
        max_num_batched_tokens=batched_tokens,
        chunk_tokens=chunk or None,
        prefill_share=prefill_share,
        preemption=preemption.value,
    )
    if speed:
        model = _as_fast(model, speed)
    drawn_from = Mix(types=weights(mix, DocumentType, "--mix"), lanes=weights(lanes, Lane, "--lanes"))
    limits = BatchLimits.of(settings_or_exit())
    results: list[tuple[float | None, Result]] = []
    for each in rate or [2.0]:
        requests, load = _requests(arrivals, pages, each, drawn_from, seed)
        results += [(load, _run(name, requests, model, limits, ahead or _AHEAD)) for name in names]
        if load is None:
            break
    _show(results, plot, as_json=as_json)


def _refuse_ignored(context: typer.Context) -> None:
    """Refuse what was typed and would change nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _OF_PRESETS and source and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            sentence = f"{option} changes nothing: a preset has its own workload and its own engine."
            raise refused(sentence, USAGE)


def _as_fast(model: IterationModel, path: Path) -> IterationModel:
    try:
        speed = speed_in(path)
    except EngineUnavailableError as error:
        raise refused(error, USAGE) from None
    return replace(
        model,
        base_s=speed.base_s,
        prefill_token_s=speed.prefill_token_s,
        decode_sequence_s=speed.decode_sequence_s,
    )


def _requests(
    arrivals: str, pages: int, rate: float, mix: Mix, seed: int
) -> tuple[list[Request], float | None]:
    """Return what arrives, and the rate; None where no rate counts."""
    match arrivals:
        case "all":
            return drawn(all_at_once(pages), mix, seed), None
        case "poisson":
            return drawn(poisson(pages, rate, seed), mix, seed), rate
        case "bursts":
            return drawn(bursts(pages, rate), mix, seed), rate
    try:
        return read_trace(Path(arrivals), seed), None
    except TraceError as error:
        raise refused(error, USAGE) from None
    except OSError:
        raise refused("--arrivals is all, poisson, bursts, or a file that can be read.", USAGE) from None


def _run(
    name: PolicyName, requests: list[Request], model: IterationModel, limits: BatchLimits, ahead: int
) -> Result:
    try:
        return simulated(name, requests, model, limits=limits, ahead=ahead)
    except ValueError as error:
        raise refused(f"{error} Give it more --kv-tokens.", USAGE) from None


def _show(results: list[tuple[float | None, Result]], plot: Path | None, *, as_json: bool) -> None:
    if plot:
        from pecia_workers.simulation.plots import write_plots  # noqa: PLC0415  heavy, and not always installed

        for picture in write_plots([result for _, result in results], plot):
            typer.echo(f"Wrote {picture}.", err=True)
    if as_json:
        for rate, result in results:
            typer.echo(json.dumps({"policy": result.policy, "rate": rate} | asdict(result.figures)))
        return
    console = Console(highlight=False)
    console.print(_table(results))
    if len(results[0][1].figures.lanes) > 1:
        console.print(_lanes(results))


def _table(results: list[tuple[float | None, Result]]) -> Table:
    static = {rate: result for rate, result in results if result.policy is PolicyName.STATIC}
    rows = [
        {
            "policy": result.policy,
            "rate/s": _number(rate),
            "total s": f"{result.figures.total:.2f}",
            "pages/s": f"{result.figures.requests_per_s:.2f}",
            "gain": _gain(result, static.get(rate)),
            "in engine": f"{result.figures.service.mean:.3f}",
            "p95 ": f"{result.figures.service.p95:.2f}",
            "in system": f"{result.figures.in_system.mean:.2f}",
            "p95": f"{result.figures.in_system.p95:.2f}",
            "busy": f"{result.figures.utilisation:.1%}",
            "padding": "" if result.figures.padding is None else f"{result.figures.padding:.1%}",
            "put back": str(result.figures.preemptions or ""),
        }
        for rate, result in results
    ]
    return aligned(rows)


def _gain(result: Result, static: Result | None) -> str:
    """Return what it does more in a second than static batches, by the rates as they are shown."""
    if static is None or result is static:
        return ""
    return f"{round(result.figures.requests_per_s, 2) / round(static.figures.requests_per_s, 2) - 1:+.1%}"


def _lanes(results: list[tuple[float | None, Result]]) -> Table:
    rows = [
        {
            "policy": result.policy,
            "rate/s": _number(rate),
            "lane": lane,
            "in system": f"{times.mean:.2f}",
            "p95": f"{times.p95:.2f}",
        }
        for rate, result in results
        for lane, times in result.figures.lanes.items()
    ]
    return aligned(rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
