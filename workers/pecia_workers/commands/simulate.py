"""`pecia simulate`, `experiment` and `plan`: compare policies in simulated time, and size a fleet."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from rich.table import Table

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import BatchLimits, PolicyName
from pecia_workers.commands import common
from pecia_workers.engines.plan import EnginePlan
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel
from pecia_workers.engines.speed import PageLoad, Speed
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix, Request, TraceError, bursts, drawn, poisson, read_trace
from pecia_workers.simulation.scenarios import (
    CapacityPlan,
    Result,
    load_of_mix,
    plan_capacity,
    planned_model,
    simulated,
    simulated_batches,
    simulated_seed,
)
from pecia_workers.witness.witnesses import TOO_FEW_CORES, witness_cpu_s

_SIZES: Final = (1, 4, 8)
_WINDOWS_MS: Final = (0, 10, 50)
_OF_PRESETS: Final = frozenset({"preset", "policy", "ahead", "plot", "as_json"})
"""Options that may accompany a preset."""
_AHEAD: Final = 16
"""Pages that a worker claims beyond those in its engine: two for each of eight decoding processes."""


Preset = Annotated[
    Literal["seed"] | None, typer.Option(help="seed: 200 requests on 8 slots, by their times.")
]
Policies = Annotated[list[PolicyName] | None, typer.Option(help="Default: all of them.")]
Arrivals = Annotated[str, typer.Option(help="all, poisson, bursts, or a file: CSV, or a JSON object a line.")]
Rates = Annotated[list[float] | None, typer.Option(help="Pages a second; several: one run each.", min=0.001)]
Pages = Annotated[int, typer.Option(help="How many arrive.", min=1)]
Lanes = Annotated[str, typer.Option(help="Lanes by weight: urgent=1,bulk=9.")]
Ahead = Annotated[
    int | None,
    typer.Option(help="Pages that wait at the worker, where policies choose. Default: all, or 16.", min=1),
]
Slots = Annotated[int | None, typer.Option(help="Requests in the engine at a time. Default: 32.", min=1)]
KvTokens = Annotated[
    int | None, typer.Option(help="Tokens of its KV cache. Default: 131,072.", min=BLOCK_TOKENS)
]
BatchedTokens = Annotated[
    int | None, typer.Option(help="Most tokens of an iteration. Default: 16,384.", min=1)
]
Chunk = Annotated[int, typer.Option(help="Most tokens of prompts in an iteration. 0: no limit.", min=0)]
PrefillShare = Annotated[float, typer.Option(help="Most that prompts take of an iteration.", min=0.01, max=1)]
Preemption = Annotated[
    Literal["recompute", "swap"], typer.Option(help="What gives way is computed again, or swapped.")
]
Gpu = Annotated[
    str,
    typer.Option(
        help="The engine that is planned for h200 and the like, or a file of `engine tune`: its defaults."
    ),
]
Seed = Annotated[int, typer.Option(help="Another draw of the same workload.")]
Plots = Annotated[
    Path | None, typer.Option(help="Folder for pictures: latency against throughput, use over time.")
]
LinePerRun = Annotated[bool, typer.Option("--json", help="One JSON object for each run.")]


def simulate(
    context: typer.Context,
    *,
    preset: Preset = None,
    policy: Policies = None,
    arrivals: Arrivals = "poisson",
    rate: Rates = None,
    pages: Pages = 500,
    mix: common.MixOption = DocumentType.MIXED,
    lanes: Lanes = Lane.NORMAL,
    ahead: Ahead = None,
    gpu: Gpu = "",
    slots: Slots = None,
    kv_tokens: KvTokens = None,
    batched_tokens: BatchedTokens = None,
    chunk: Chunk = 0,
    prefill_share: PrefillShare = 1.0,
    preemption: Preemption = "recompute",
    seed: Seed = 0,
    plot: Plots = None,
    as_json: LinePerRun = False,
) -> None:
    """Run the worker's admission policies over a simulated engine; show the waiting times and the engine's use.

    PECIA_BATCH_* settings count as they would for a worker.

    Example: `pecia simulate --preset seed`
    """
    names = list(policy or PolicyName)
    if plot:
        common.drawing_or_exit()
    if preset:
        _refuse_ignored(context)
        _show([(None, simulated_seed(name, ahead=ahead)) for name in names], plot, as_json=as_json)
        return
    settings = common.settings_or_exit()
    with common.refusing(EngineUnavailableError):
        planned = common.chosen_engine(settings, model="", quality=False)
        model = planned_model(common.planned_engine(planned, gpu))[0] if gpu else IterationModel()
    model = replace(
        model,
        max_num_seqs=slots or model.max_num_seqs,
        kv_blocks=kv_tokens // BLOCK_TOKENS if kv_tokens else model.kv_blocks,
        max_num_batched_tokens=batched_tokens or model.max_num_batched_tokens,
        chunk_tokens=chunk or None,
        prefill_share=prefill_share,
        preemption=preemption,
    )
    drawn_from = Mix(
        types=common.weights(mix, DocumentType, "--mix"), lanes=common.weights(lanes, Lane, "--lanes")
    )
    limits = BatchLimits.of(settings)
    results: list[tuple[float | None, Result]] = []
    for each in rate or [2.0]:
        requests, load = _requests(arrivals, pages, each, drawn_from, seed)
        with common.refusing(ValueError, add=" Give it more --kv-tokens."):
            results += [
                (load, simulated(name, requests, model, limits=limits, ahead=ahead or _AHEAD))
                for name in names
            ]
        if load is None:
            break
    _show(results, plot, as_json=as_json)


def _refuse_ignored(context: typer.Context) -> None:
    """Refuse options without effect."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _OF_PRESETS and source and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            sentence = f"{option} changes nothing: a preset has its own workload and its own engine."
            raise common.refused(sentence, common.USAGE)


def _requests(
    arrivals: str, pages: int, rate: float, mix: Mix, seed: int
) -> tuple[list[Request], float | None]:
    """Return the requests and their rate, None where no rate applies."""
    match arrivals:
        case "all":
            return drawn([0.0] * pages, mix, seed), None
        case "poisson":
            return drawn(poisson(pages, rate, seed), mix, seed), rate
        case "bursts":
            return drawn(bursts(pages, rate), mix, seed), rate
    try:
        with common.refusing(TraceError):
            return read_trace(Path(arrivals), seed), None
    except (OSError, UnicodeDecodeError):
        sentence = "--arrivals is all, poisson, bursts, or a file that can be read."
        raise common.refused(sentence, common.USAGE) from None


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
        console.print(common.aligned(rows))


def _table(results: list[tuple[float | None, Result]]) -> Table:
    static = {rate: result.figures for rate, result in results if result.policy is PolicyName.STATIC}
    rows = []
    for rate, result in results:
        found, beside = result.figures, static.get(rate)
        gain = ""
        # By the rates as they are shown.
        if result.policy is not PolicyName.STATIC and beside and (least := round(beside.requests_per_s, 2)):
            gain = f"{round(found.requests_per_s, 2) / least - 1:+.1%}"
        row = {
            "policy": result.policy,
            "rate/s": _number(rate),
            "total s": f"{found.total:.2f}",
            "pages/s": f"{found.requests_per_s:.2f}",
            "gain": gain,
            "in engine": f"{found.service.mean:.3f}",
            "p95 ": f"{found.service.p95:.2f}",
            "in system": f"{found.in_system.mean:.2f}",
            "p95": f"{found.in_system.p95:.2f}",
            "busy": f"{found.utilisation:.1%}",
            "padding": "" if found.padding is None else f"{found.padding:.1%}",
            "put back": str(found.preemptions or ""),
        }
        rows.append(row)
    return common.aligned(rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


Sizes = Annotated[list[int] | None, typer.Option(help="Most pages of a batch. Default: 1, 4, 8.", min=1)]
Windows = Annotated[
    list[int] | None,
    typer.Option(help="Milliseconds that a batch waits for others. Default: 0, 10, 50.", min=0),
]
Concurrent = Annotated[int, typer.Option(help="Batches in the engine at a time.", min=1)]
DrawnRate = Annotated[float, typer.Option(help="Pages a second, at random.", min=0.001)]
PagesOfCell = Annotated[int, typer.Option(help="For each size and window.", min=1)]
Plot = Annotated[Path | None, typer.Option(help="Folder for a picture.")]
LinePerCell = Annotated[bool, typer.Option("--json", help="A JSON object for each size and window.")]


def experiment(
    *,
    size: Sizes = None,
    window: Windows = None,
    concurrent: Concurrent = 1,
    rate: DrawnRate = 2.0,
    pages: PagesOfCell = 200,
    mix: common.MixOption = DocumentType.PRESCRIPTION,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: LinePerCell = False,
) -> None:
    """Send the same pages in batches of each size, after each wait, and compare latency, tokens and use.

    Simulated in no time, on the engine that `pecia simulate` has without --gpu.

    Example: `pecia experiment --size 1 --size 8 --window 0 --window 50`
    """
    if plot:
        common.drawing_or_exit()
    requests = drawn(poisson(pages, rate, seed), Mix(types=common.weights(mix, DocumentType, "--mix")), seed)
    cells = [
        _cell(requests, most, wait / 1e3, concurrent)
        for most in size or _SIZES
        for wait in window or _WINDOWS_MS
    ]
    if as_json:
        for cell in cells:
            typer.echo(json.dumps(cell))
    else:
        Console(highlight=False).print(common.aligned([_cell_row(cell) for cell in cells]))
    if plot:
        from pecia_workers.simulation.plots import write_experiment  # noqa: PLC0415  heavy, and not always installed

        with common.refusing(OSError):
            typer.echo(f"Wrote {write_experiment(cells, plot)}.", err=True)


def _cell(requests: list[Request], size: int, window: float, concurrent: int) -> dict[str, float]:
    """Return the result of one size and one window; times in seconds."""
    model = IterationModel()
    found = simulated_batches(requests, model, size=size, window=window, concurrent=concurrent)
    return {
        "size": size,
        "window": window,
        "mean": found.in_system.mean,
        "p95": found.in_system.p95,
        "waiting": found.waiting.mean,
        "tokens_per_s": found.output_tokens_per_s,
        "utilisation": found.requests_per_s * found.service.mean / model.max_num_seqs,  # Little's law
    }


def _cell_row(cell: dict[str, float]) -> dict[str, str]:
    return {
        "size": f"{cell['size']:.0f}",
        "window ms": f"{1e3 * cell['window']:.0f}",
        "mean s": f"{cell['mean']:.3f}",
        "p95 s": f"{cell['p95']:.3f}",
        "waits s": f"{cell['waiting']:.3f}",
        "tokens/s": f"{cell['tokens_per_s']:.1f}",
        "use": f"{cell['utilisation']:.1%}",
    }


_GIB: Final = 2**30


Rate = Annotated[float, typer.Option(help="Pages that arrive in a second.", min=0.0001)]
Latency = Annotated[
    float, typer.Option(help="Seconds that a page may take on average, waiting included.", min=0.1)
]
Price = Annotated[float, typer.Option(help="Of one GPU for an hour, in any currency.", min=0)]


def plan(
    *,
    rate: Rate,
    mix: common.MixOption = DocumentType.MIXED,
    latency: Latency = 120.0,
    gpu: common.Gpu = "",
    price: Price = 0.0,
    quality: common.Quality = False,
    model: common.ModelName = "",
    as_json: common.AsJson = False,
) -> None:
    """Compute how many GPUs read a load in time, and their cost, by simulating one of them.

    `pecia engine plan` shows what one GPU runs, how fast, and with how many pages at a time. Exit 1 if no number of
    GPUs suffices.

    Example: `pecia plan --rate 5 --mix prescription=3,chart=1 --latency 40 --gpu h100 --price 2.5`
    """
    settings = common.chosen_engine(common.settings_or_exit(), model=model, quality=quality)
    pages = Mix(types=common.weights(mix, DocumentType, "--mix"))
    load = load_of_mix(pages)
    with common.refusing(EngineUnavailableError):
        engine = common.planned_engine(settings, gpu)
        capacity, speed = planned_model(engine)
    fleet = plan_capacity(capacity, speed, pages, rate=rate, latency=latency)
    if fleet is None:
        raise common.refused(
            f"No number of these GPUs reads such a page in {latency:g} s on average.", common.FAILED
        )
    gpus, cores = fleet.engines * engine.memory.gpus, fleet.rate * witness_cpu_s()
    cost = gpus * price / (fleet.rate * 3600) * 1e6 if price else None
    record = {
        "gpu": engine.profile,
        "gpus": gpus,
        "model": engine.model,
        "in_flight": fleet.in_flight,
        **asdict(fleet),
        "load": asdict(load),
        "speed": speed.model_dump(),
        "speed_by": engine.speed_by,
        "witness_cores": cores,
        "cost_per_million_pages": cost,
    }
    rows = [("GPUs", f"{gpus} x {engine.profile}"), *_rows(engine, speed, load, fleet)]
    witness = (
        f"{cores:.1f} CPU cores, {cores / gpus:.1f} for each GPU, "
        f"if the CPU engine reads every page too: an estimate; {TOO_FEW_CORES}"
    )
    rows.append(("witness", witness))
    if cost is not None:
        rows.append(("a million pages", f"{cost:,.0f}"))
    common.show(record, common.described(rows), as_json=as_json)


def _rows(engine: EnginePlan, speed: Speed, load: PageLoad, fleet: CapacityPlan) -> list[tuple[str, str]]:
    times, each, cache = fleet.simulated, fleet.rate / fleet.engines, engine.memory.kv_cache / _GIB
    steps = (
        f"{1e3 * speed.base_s:.1f} ms a step, {1e3 * speed.decode_sequence_s:.2f} ms for each page in it, "
        f"{load.prompt * speed.prefill_token_s:.2f} s for a page's picture: {engine.speed_by}"
    )
    busy = f"{each * times.service.mean:.1f} pages at a time of {engine.pages_at_a_time}, {each:.2f}/s"
    whole = (
        f"{times.in_system.mean:.1f} s on average, of {fleet.latency:g} s; {times.in_system.p95:.1f} s at p95"
    )
    return [
        ("model", engine.model),
        ("a page", f"{load.prompt:,.0f} tokens in, {load.output:,.0f} out"),
        ("speed", steps),
        ("one engine", busy),
        ("a page takes", f"{times.service.mean:.1f} s and waits {times.waiting.mean:.1f} s, simulated"),
        ("together", whole),
        ("in flight", f"{fleet.rate:g}/s x {times.in_system.mean:.1f} s = {fleet.in_flight:.0f} pages"),
        ("KV cache", f"{(times.kv_used or 0) * cache:.1f} of {cache:.1f} GiB, each engine"),
    ]
