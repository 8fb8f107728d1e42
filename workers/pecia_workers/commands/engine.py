"""`pecia engine plan`, `check` and `tune`: plan an engine for a GPU, check it, and measure its best sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group
from rich.markup import escape

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.commands import common
from pecia_workers.engines import profiles
from pecia_workers.engines.plan import EnginePlan, FormatPlan
from pecia_workers.engines.speed import pace
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.simulation.requests import Mix

if TYPE_CHECKING:
    from pecia_workers.simulation.tuning import Point, Tuned

_TUNED: Final = frozenset({"vllm", "simulated"})
_GIB: Final = 2**30
_DERIVED: Final = ("starts", "kv_share", "worker_pages_per_s")
_REMEDY: Final = "Take a smaller model, or a smaller PECIA_MAX_MODEL_LEN."

engine = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Plan which model a GPU can run, check that it reads, and find its sizes.",
)


@engine.command()
def tune(
    *,
    output: Annotated[Path, typer.Option(help="Where to write the profile.")] = Path("tuned.toml"),
    most: Annotated[
        int, typer.Option(help="Most pages at a time to try. 0: twice what the profile says.", min=0)
    ] = 0,
    mix: common.MixOption = DocumentType.MIXED,
    as_json: common.AsJson = False,
) -> None:
    """Measure the speed of the configured engine, and how many concurrent pages are worth their wait.

    Reads sample pages one by one and 8, 32 and 128 at a time, fits the time of an engine's step, and reads once more
    with the fewest concurrent pages that reach 95 % of the highest rate. Takes minutes. Writes a profile for
    PECIA_PROFILE and for `pecia plan --gpu`, by its path. Exit 1 if no page is read, 4 if the engine does not start.

    Example: `pecia engine tune --mix prescription=3,chart=1 --output l4.toml`
    """
    settings = common.settings_or_exit()
    if settings.engine not in _TUNED:
        raise common.refused(f"PECIA_ENGINE={settings.engine} has no sizes to tune: vllm has.", common.USAGE)
    pages = Mix(types=common.weights(mix, DocumentType, "--mix"))
    with common.engine_at_work(settings):
        machine, _ = common.machine_named(settings.profile)
        chosen = profiles.with_profile(settings)
        tuned = asyncio.run(_tuned(chosen, pages, most))
    profile = _profile(machine, chosen, tuned)
    record = asdict(tuned) | {"speed": tuned.speed and tuned.speed.model_dump()}
    rows = [
        {
            "pages at a time": str(point.sequences),
            "pages/s": f"{point.pages_per_s:.2f}",
            "as fitted": f"{pace(tuned.speed, tuned.load, point.sequences).pages_per_s:.2f}"
            if tuned.speed
            else "",
            "p95 s": f"{point.p95_s:.2f}",
            "put back": str(point.preemptions or ""),
            "best": "<" if point == tuned.best else "",
            "failed": point.failed,
        }
        for point in tuned.points
    ]
    common.show(record, common.aligned(rows), as_json=as_json)
    with common.refusing(OSError):
        output.write_text(profile, encoding="utf-8")
    typer.echo(f"Wrote {output}. To use it: PECIA_PROFILE={output.absolute()}", err=True)


@engine.command()
def plan(
    *,
    gpu: Annotated[
        str,
        typer.Option(
            help="t4, l4, a10, a100, a100-80, l40s, h100, h200, b200, gpu-16 to gpu-80, cpu. Default: the GPU here."
        ),
    ] = "",
    quality: common.Quality = False,
    captions: Annotated[
        bool, typer.Option("--captions", help="For a worker that captions videos and reads nothing.")
    ] = False,
    model: common.ModelName = "",
    as_json: common.AsJson = False,
) -> None:
    """Choose model and sizes for a GPU, and compute how many pages it reads at a time. Loads nothing.

    PECIA_* settings count as they would for a worker. Exit 1 if it does not fit.

    Example: `pecia engine plan --gpu l4 --quality`
    """
    settings = common.chosen_engine(common.settings_or_exit(), model=model, quality=quality)
    with common.refusing(EngineUnavailableError):
        planned = common.planned_engine(settings, gpu, captions=captions)
    record = asdict(planned) | {name: getattr(planned, name) for name in _DERIVED}
    record["speed"] = planned.speed and planned.speed.model_dump()
    tables = [common.described((name, escape(value)) for name, value in _plan_rows(planned))]
    if planned.paces:
        tables += [common.aligned(_pace_rows(planned)), common.aligned(_format_rows(planned.formats))]
    common.show(record, Group(*(part for table in tables for part in (table, ""))), as_json=as_json)
    if not planned.starts:
        raise typer.Exit(common.FAILED)


@engine.command()
def check(*, as_json: common.AsJson = False) -> None:
    """Start the engine that the settings name, and compare its reading of one built-in page with the drawn text.

    Exit 1 if less than 95 % of its characters were read, or the count of its tokens was wrong; 4 if the engine does
    not start.

    Example: `PECIA_ENGINE=rapidocr pecia engine check`
    """
    settings = common.settings_or_exit()
    from pecia_workers.commands.checking import check_engine  # noqa: PLC0415  heavy: help must not wait for it

    with common.engine_at_work(settings):
        checked = asyncio.run(check_engine(settings))
    tokens = f", {checked.budget_tokens:,} tokens" if checked.budget_tokens else ""
    rows = [
        ("engine", f"{checked.engine}, {checked.model}"),
        ("ready after", f"{checked.ready_s:.1f} s"),
        ("budget", f"{checked.slots} requests{tokens}"),
        ("page", f"{checked.verdict} in {checked.read_s:.1f} s, {checked.output_tokens} tokens out"),
    ]
    if checked.kv_used is not None:
        cache = f"{100 * checked.kv_used:.1f} % for this page, {checked.preemptions} put back"
        if checked.acceptance is not None:
            cache += f", {100 * checked.acceptance:.1f} % of the drafts accepted"
        rows.append(("KV cache", cache))
    if checked.predicted_tokens is not None:
        mark = "by an estimate"
        if checked.drifted:
            mark = "[red]not equal, though exact[/]"
        elif checked.predicted_tokens == checked.counted_tokens:
            mark = "[green]equal[/]"
        counts = f"{checked.predicted_tokens} tokens predicted, {checked.counted_tokens} counted"
        rows.append(("prompt", f"{counts}: {mark}"))
    share = f"{100 * checked.accuracy:.1f} % of its characters as they were drawn"
    rows.append(("text", share if checked.ok else f"[red]{share}[/]"))
    if checked.misread:
        rows.append(("misread", f"first of its lines: {escape(checked.misread)}"))
    common.show(asdict(checked) | {"ok": checked.ok}, common.described(rows), as_json=as_json)
    if not checked.ok:
        raise typer.Exit(common.FAILED)


async def _tuned(settings: WorkerSettings, mix: Mix, most: int) -> Tuned:
    from pecia_workers.engines.registry import create_engine  # noqa: PLC0415  heavy
    from pecia_workers.simulation.tuning import tune as measure  # noqa: PLC0415

    def report(point: Point) -> None:
        result = f"{point.pages_per_s:.2f} pages/s" if not point.failed else point.failed
        typer.echo(f"  {point.sequences} at a time: {result}", err=True)

    most = most or 2 * settings.max_num_seqs or 256
    engine = create_engine(settings.model_copy(update={"max_num_seqs": most}))
    typer.echo(f"Starting the engine for up to {most} pages at a time.", err=True)
    try:
        await engine.start()
        return await measure(engine, mix, report, most=most, page_seconds=settings.page_seconds)
    finally:
        await engine.stop()


def _profile(machine: profiles.Profile, settings: WorkerSettings, tuned: Tuned) -> str:
    """Return the machine's profile with the measured figures and their settings."""
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in sorted(profiles.OF_A_PROFILE)}
    chosen["max_num_seqs"] = tuned.best.sequences
    return profiles.profile_toml(
        machine.model_copy(
            update={
                "title": f"{machine.title}, tuned: {tuned.best.pages_per_s:.3g} pages/s",
                "settings": {name: value for name, value in chosen.items() if value},
                "engine_options": settings.engine_options,
                "speed": tuned.speed,
            }
        )
    )


def _plan_rows(planned: EnginePlan) -> list[tuple[str, str]]:
    memory, kv = planned.memory, planned.kv
    model = f"{planned.model}  ({planned.quantization}{f', {planned.license}' if planned.license else ''})"
    cache = _gib(memory.kv_cache)
    if "kv_cache_bytes" in planned.sizes:
        cache += ", as set"
    else:
        loaded = f"{_gib(memory.weights)} of weights" if memory.weights else "weights of unknown size"
        cache += f" = {_gib(memory.usable)} usable - {loaded} - {_gib(memory.reserve)} in reserve"
    token = f"2 x {kv.layers} layers x {kv.kv_heads} KV heads x {kv.head_dim} x {kv.dtype_bytes} bytes"
    windows = f"{kv.windowed} of {kv.layers} layers keep no more than the last {kv.window:,} tokens"
    kept = f", of which the layers keep as much as of {planned.page_kept:,}" if kv.windowed else ""
    share = f"{planned.kv_share:.0%}".replace("%", " %")
    remedy = f"One request may take {planned.context:,} tokens: it does not start. {_REMEDY}"
    rows = [
        ("for", planned.profile + (f", {memory.gpus} of them" if memory.gpus > 1 else "")),
        ("model", model),
        ("because", planned.why),
        ("read as", planned.card),
        ("[red]licence[/]", planned.warning or None),
        ("needs", planned.needs or None),
        ("or", ", ".join(planned.readers) or None),
        ("sizes", _pairs(planned.sizes)),
        ("options", _pairs(planned.engine_options)),
        ("KV cache", cache),
        ("one token", f"{token} = {planned.kv_bytes_per_token:,} bytes"),
        ("windows", windows if kv.windowed else None),
        ("not known", planned.unclear or None),
        ("budget", f"{planned.kv_tokens:,} tokens{' that every layer keeps' if kv.windowed else ''}"),
        ("one page", f"{planned.page_tokens:,} tokens: A4, its prompt and the text that is expected{kept}"),
        (
            "at a time",
            f"{planned.pages_at_a_time} pages, {share} of the KV cache; bound by {planned.bound_by}",
        ),
        ("speed", planned.speed_by),
        ("worker", f"its process serves about {planned.worker_pages_per_s:.0f} such pages/s"),
        ("[red]no[/]", None if planned.starts else remedy),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _pace_rows(planned: EnginePlan) -> list[dict[str, str]]:
    """Return an engine's figures for rising numbers of concurrent pages, with the planned number marked."""
    return [
        {
            "pages at a time": f"{pace.pages:,}{' <' if pace.pages == planned.pages_at_a_time else '  '}",
            "pages/s": f"{pace.pages_per_s:.2f}",
            "s a page": f"{pace.page_s:.1f}",
        }
        for pace in planned.paces
    ]


def _format_rows(formats: Sequence[FormatPlan]) -> list[dict[str, str]]:
    """Return the formats, the fastest first."""
    return [
        {
            "the model in": plan.format,
            "weights": _gib(plan.weights),
            "at a time": str(plan.pace.pages) if plan.pace else "no room",
            "pages/s": f"{plan.pace.pages_per_s:.2f}" if plan.pace else "",
            "why": plan.why,
        }
        for plan in formats
    ]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
