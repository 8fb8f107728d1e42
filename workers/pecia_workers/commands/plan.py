"""`pecia plan`: how many GPUs a load needs, and what a million pages cost."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from pecia_schemas.tasks import DocumentType
from pecia_workers.commands import common
from pecia_workers.engines.profiles import EnginePlan, plan_engine, speed_in
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation import capacity
from pecia_workers.simulation.requests import Mix, all_at_once, drawn
from pecia_workers.simulation.scenarios import Figures
from pecia_workers.witness.witnesses import TOO_FEW_CORES, witness_cpu_s

_SAMPLE: Final = 4_000
"""Pages that the mix is known by."""
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    engine: EnginePlan
    model: IterationModel
    measured: bool
    """Whether its speed is; else it is an estimate."""
    load: capacity.Demand
    fleet: capacity.CapacityPlan
    checked: Figures
    choices: tuple[capacity.Choice, ...]
    price: float

    def gpus(self, engines: int) -> int:
        """Return how many GPUs so many engines take."""
        return engines * self.engine.memory.gpus

    @property
    def witness_cores(self) -> float:
        """CPU cores that are busy if the CPU engine reads every page as a witness; text layers take none."""
        return self.fleet.rate * witness_cpu_s()

    def cost(self, engines: int) -> float | None:
        """Return what a million pages cost with so many engines; None without a price."""
        gpus = self.gpus(engines)
        return capacity.cost_per_million(gpus, self.fleet.rate, self.price) if self.price else None


Rate = Annotated[float, typer.Option(help="Pages that arrive in a second.", min=0.0001)]
Latency = Annotated[
    float, typer.Option(help="Seconds that a page may take on average, waiting included.", min=0.1)
]
Gpu = Annotated[
    str, typer.Option(help="t4, l4, a10, a100, a100-80, l40s, h100, h200 or b200. Default: what is here.")
]
MeasuredSpeed = Annotated[
    Path | None,
    typer.Option(help="Measured, not estimated: what `engine tune` or `experiment --real --speed` wrote."),
]
Service = Annotated[
    float,
    typer.Option(help="Seconds that your pages take in a full engine: GPUs by Little's law alone.", min=0),
]
Price = Annotated[float, typer.Option(help="Of one GPU for an hour, in any currency.", min=0)]


def plan(
    *,
    rate: Rate,
    mix: common.MixOption = DocumentType.MIXED,
    latency: Latency = 120.0,
    gpu: Gpu = "",
    speed: MeasuredSpeed = None,
    service: Service = 0.0,
    price: Price = 0.0,
    quality: common.Quality = False,
    model: common.ModelName = "",
    as_json: common.AsJson = False,
) -> None:
    """Work out how many GPUs read a load in time, their memory and cost; checked by simulating one of them.

    A second table has what more sequences in an engine, or more time for a page, would save, by the formulas.
    Speeds are estimated from data sheets, or measured with --speed; with --service Little's law alone counts. What one
    GPU runs is `pecia engine plan`'s. Exit 1 if no number is enough.

    Example: `pecia plan --rate 5 --mix prescription=3,chart=1 --latency 40 --gpu l4 --price 0.8`
    """
    settings = common.chosen_engine(common.settings_or_exit(), model=model, quality=quality)
    pages = Mix(types=common.weights(mix, DocumentType, "--mix"))
    load = capacity.load_of(drawn(all_at_once(_SAMPLE), pages, 0))
    with common.refusing(EngineUnavailableError):
        profile, memory = common.machine_named(gpu or settings.profile)
        engine = plan_engine(settings, profile, memory)
        if service:
            _show_little(engine, load, rate=rate, service=service, price=price, as_json=as_json)
            return
        measured = speed_in(speed) if speed else profile.speed
        model_of_time = capacity.speed_of(engine, profile, load, measured)
    fleet = capacity.plan_capacity(
        model_of_time, load, pages, rate=rate, latency=latency, kv_cache=engine.memory.kv_cache
    )
    if fleet is None:
        raise common.refused(
            f"No number of these GPUs reads such a page in {latency:g} s on average.", common.FAILED
        )
    planned = _Planned(
        engine=engine,
        model=model_of_time,
        measured=bool(measured),
        load=load,
        fleet=fleet[0],
        checked=fleet[1],
        choices=capacity.choices(model_of_time, load, rate, latency),
        price=price,
    )
    common.show(
        _record(planned), Group(common.described(_rows(planned)), "", _choices(planned)), as_json=as_json
    )


def _show_little(
    engine: EnginePlan, load: capacity.Demand, *, rate: float, service: float, price: float, as_json: bool
) -> None:
    """Show what L = lambda W comes to: no wait is in it, so it is the least."""
    sequences = engine.sizes.get("max_num_seqs") or engine.pages_in_cache
    model = IterationModel(max_num_seqs=sequences, kv_blocks=engine.kv_blocks)
    held, places = rate * service, capacity.places_in(model, load)
    gpus = capacity.engines_for(held, places) * engine.memory.gpus
    cost = capacity.cost_per_million(gpus, rate, price) if price else None
    record = {"gpu": engine.profile, "gpus": gpus, "in_flight": held, "places": places}
    rows = [
        ("GPUs", f"{gpus} x {engine.profile}, without a wait"),
        ("in flight", f"{rate:g}/s x {service:g} s = {held:.0f} pages"),
        ("one engine", f"{places} pages at a time, with {engine.model}"),
    ]
    if cost is not None:
        rows.append(("a million pages", f"{cost:,.0f}"))
    common.show(
        record | {"model": engine.model, "cost_per_million_pages": cost},
        common.described(rows),
        as_json=as_json,
    )


def _record(planned: _Planned) -> dict[str, Any]:
    return {
        "gpu": planned.engine.profile,
        "gpus": planned.gpus(planned.fleet.engines),
        "model": planned.engine.model,
        **asdict(planned.fleet),
        "load": asdict(planned.load),
        "speed": asdict(planned.model),
        "measured": planned.measured,
        "simulated": asdict(planned.checked),
        "witness_cores": planned.witness_cores,
        "cost_per_million_pages": planned.cost(planned.fleet.engines),
        "choices": [
            {
                **asdict(one),
                "gpus": planned.gpus(one.engines),
                "cost_per_million_pages": planned.cost(one.engines),
            }
            for one in planned.choices
        ],
    }


def _rows(planned: _Planned) -> list[tuple[str, str]]:
    fleet, one, load, model = planned.fleet, planned.fleet.one, planned.load, planned.model
    gpus = planned.gpus(fleet.engines)
    found = planned.checked.in_system
    known = "measured" if planned.measured else "an estimate"
    speed = (
        f"{1e3 * model.base_s:.1f} ms an iteration, {1e3 * model.decode_sequence_s:.2f} ms for each page in it, "
        f"{load.prompt * model.prefill_token_s:.2f} s for a page's picture: {known}"
    )
    rows = [
        ("GPUs", f"{gpus} x {planned.engine.profile}"),
        ("model", planned.engine.model),
        (
            "a page",
            f"{load.prompt:,.0f} tokens in, {load.output:,.0f} out, deviation {load.spread:.2f} of it",
        ),
        ("speed", speed),
        (
            "one engine",
            f"{one.in_engine:.1f} pages at a time of {one.places}, {fleet.rate / fleet.engines:.2f}/s",
        ),
        ("a page takes", f"{one.service:.1f} s and waits {one.waiting:.1f} s, by the formulas"),
        ("in flight", f"{fleet.rate:g}/s x {one.in_system:.1f} s = {fleet.in_flight:.0f} pages"),
        ("KV cache", f"{fleet.kv_bytes / _GIB:.1f} of {fleet.kv_budget / _GIB:.1f} GiB, each engine"),
        ("simulated", f"{found.mean:.1f} s on average, of {fleet.latency:g} s; {found.p95:.1f} s at p95"),
        (
            "witness",
            (
                f"{planned.witness_cores:.1f} CPU cores, {planned.witness_cores / gpus:.1f} for each GPU, "
                f"if the CPU engine reads every page too: an estimate; {TOO_FEW_CORES}"
            ),
        ),
    ]
    if (cost := planned.cost(fleet.engines)) is not None:
        rows.append(("a million pages", f"{cost:,.0f}"))
    return rows


def _choices(planned: _Planned) -> Table:
    """Return the cheapest with each number of sequences, and what was asked for, each by the formulas."""
    table = Table(title="By the formulas", title_justify="left", box=SIMPLE)
    for name in ("GPUs", "sequences", "seconds a page", "a million pages"):
        table.add_column(name, justify="right")
    seen = set[int]()
    chosen = (planned.model.max_num_seqs, planned.fleet.latency)
    for one in planned.choices:
        is_chosen = (one.sequences, one.latency) == chosen
        if one.sequences in seen and not is_chosen:
            continue
        seen.add(one.sequences)
        cost = planned.cost(one.engines)
        table.add_row(
            str(planned.gpus(one.engines)),
            f"{one.sequences}{' (as chosen)' if is_chosen else ''}",
            f"{one.latency:g}",
            "" if cost is None else f"{cost:,.0f}",
        )
    return table
