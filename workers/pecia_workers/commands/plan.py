"""`pecia plan`: how many GPUs a load needs, and what a million pages cost."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from pecia_schemas.tasks import DocumentType
from pecia_workers.commands import common
from pecia_workers.engines.plan import EnginePlan
from pecia_workers.engines.speed import PageLoad, Speed
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation import capacity
from pecia_workers.simulation.requests import Mix
from pecia_workers.witness.witnesses import TOO_FEW_CORES, witness_cpu_s

_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    engine: EnginePlan
    speed: Speed
    load: PageLoad
    fleet: capacity.CapacityPlan
    price: float

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        return self.fleet.engines * self.engine.memory.gpus

    @property
    def witness_cores(self) -> float:
        """CPU cores that are busy if the CPU engine reads every page as a witness; text layers take none."""
        return self.fleet.rate * witness_cpu_s()

    @property
    def cost(self) -> float | None:
        """The cost of a million pages, in the currency of the price; None without one."""
        return self.gpus * self.price / (self.fleet.rate * 3600) * 1e6 if self.price else None


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

    `pecia engine plan` says what one GPU runs, how fast, and with how many pages at a time. Exit 1 if no number of
    GPUs is enough.

    Example: `pecia plan --rate 5 --mix prescription=3,chart=1 --latency 40 --gpu h100 --price 2.5`
    """
    settings = common.chosen_engine(common.settings_or_exit(), model=model, quality=quality)
    pages = Mix(types=common.weights(mix, DocumentType, "--mix"))
    load = capacity.load_of_mix(pages)
    with common.refusing(EngineUnavailableError):
        engine = common.planned_engine(settings, gpu)
        simulated, speed = capacity.planned_model(engine)
    fleet = capacity.plan_capacity(simulated, speed, pages, rate=rate, latency=latency)
    if fleet is None:
        raise common.refused(
            f"No number of these GPUs reads such a page in {latency:g} s on average.", common.FAILED
        )
    planned = _Planned(engine=engine, speed=speed, load=load, fleet=fleet, price=price)
    common.show(_record(planned), common.described(_rows(planned)), as_json=as_json)


def _record(planned: _Planned) -> dict[str, Any]:
    return {
        "gpu": planned.engine.profile,
        "gpus": planned.gpus,
        "model": planned.engine.model,
        "in_flight": planned.fleet.in_flight,
        **asdict(planned.fleet),
        "load": asdict(planned.load),
        "speed": planned.speed.model_dump(),
        "speed_by": planned.engine.speed_by,
        "witness_cores": planned.witness_cores,
        "cost_per_million_pages": planned.cost,
    }


def _rows(planned: _Planned) -> list[tuple[str, str]]:
    engine, fleet, load, speed = planned.engine, planned.fleet, planned.load, planned.speed
    times, each = fleet.simulated, fleet.rate / fleet.engines
    steps = (
        f"{1e3 * speed.base_s:.1f} ms a step, {1e3 * speed.decode_sequence_s:.2f} ms for each page in it, "
        f"{load.prompt * speed.prefill_token_s:.2f} s for a page's picture: {engine.speed_by}"
    )
    cache, cores = engine.memory.kv_cache / _GIB, planned.witness_cores
    rows = [
        ("GPUs", f"{planned.gpus} x {engine.profile}"),
        ("model", engine.model),
        ("a page", f"{load.prompt:,.0f} tokens in, {load.output:,.0f} out"),
        ("speed", steps),
        (
            "one engine",
            f"{each * times.service.mean:.1f} pages at a time of {engine.pages_at_a_time}, {each:.2f}/s",
        ),
        (
            "a page takes",
            f"{times.service.mean:.1f} s and waits {times.waiting.mean:.1f} s, simulated",
        ),
        (
            "together",
            f"{times.in_system.mean:.1f} s on average, of {fleet.latency:g} s; {times.in_system.p95:.1f} s at p95",
        ),
        ("in flight", f"{fleet.rate:g}/s x {times.in_system.mean:.1f} s = {fleet.in_flight:.0f} pages"),
        ("KV cache", f"{(times.kv_used or 0) * cache:.1f} of {cache:.1f} GiB, each engine"),
        (
            "witness",
            (
                f"{cores:.1f} CPU cores, {cores / planned.gpus:.1f} for each GPU, "
                f"if the CPU engine reads every page too: an estimate; {TOO_FEW_CORES}"
            ),
        ),
    ]
    if (cost := planned.cost) is not None:
        rows.append(("a million pages", f"{cost:,.0f}"))
    return rows
