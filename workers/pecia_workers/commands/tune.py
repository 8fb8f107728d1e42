"""`pecia engine tune`: the sizes with which this machine's engine reads most, measured and written as a profile."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from pecia_schemas.tasks import DocumentType
from pecia_workers.commands.choices import weights
from pecia_workers.commands.machines import machine_named
from pecia_workers.commands.settings import settings_or_exit
from pecia_workers.commands.tables import aligned
from pecia_workers.engines.base import EngineDeadError, EngineError, EngineUnavailableError
from pecia_workers.engines.profiles import OF_A_PROFILE, Profile, profile_toml, with_profile
from pecia_workers.simulation.requests import Mix

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import Engine
    from pecia_workers.simulation.tuning import Point, Tuned

_FAILED, _USAGE, _UNAVAILABLE = 1, 2, 4
_TUNED: Final = frozenset({"vllm", "simulated"})


def tune(
    *,
    output: Annotated[Path, typer.Option(help="Where to write the profile.")] = Path("tuned.toml"),
    most: Annotated[
        int, typer.Option(help="Most sequences to try. 0: twice what the profile says.", min=0)
    ] = 0,
    mix: Annotated[
        str, typer.Option(help="Document types by weight: prescription=2,chart=1.")
    ] = DocumentType.MIXED,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure with how many sequences, and tokens in a step, the engine of the settings reads most pages a second.

    Starts it three times or a few more; once, if PECIA_MAX_NUM_BATCHED_TOKENS says how many tokens. Writes a profile
    that PECIA_PROFILE takes by its path, and `pecia plan` with --speed. Exit 1 if nothing is read, 4 if the engine does
    not start.

    Example: `pecia engine tune --mix prescription=3,chart=1 --output l4.toml`
    """
    settings = settings_or_exit()
    if settings.engine not in _TUNED:
        typer.echo(f"PECIA_ENGINE={settings.engine} has no sizes to tune: vllm has.", err=True)
        raise typer.Exit(_USAGE)
    pages = Mix(types=weights(mix, DocumentType, "--mix"))
    from pecia_workers.logs import configure_logs  # noqa: PLC0415  heavy: help must not wait for it

    configure_logs(settings)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is the answer's
    try:
        machine, _ = machine_named(settings.profile)
        chosen = with_profile(settings)
        steps = "max_num_batched_tokens" not in settings.model_fields_set
        tuned = asyncio.run(_tuned(chosen, pages, most, steps=steps))
    except (EngineUnavailableError, EngineDeadError) as error:
        raise _refused(error, _UNAVAILABLE) from None
    except EngineError as error:
        raise _refused(error, _FAILED) from None
    output.write_text(_profile(machine, chosen, tuned), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(asdict(tuned) | {"speed": tuned.speed and tuned.speed.model_dump()}))
    else:
        Console(highlight=False).print(aligned([_row(point, tuned.best) for point in tuned.points]))
    typer.echo(f"Wrote {output}. To use it: PECIA_PROFILE={output.absolute()}", err=True)


async def _tuned(settings: WorkerSettings, mix: Mix, most: int, *, steps: bool) -> Tuned:
    from pecia_workers.engines.registry import create_engine  # noqa: PLC0415  heavy
    from pecia_workers.simulation.tuning import tune as search  # noqa: PLC0415

    @asynccontextmanager
    async def opened(sizes: dict[str, int]) -> AsyncIterator[Engine]:
        typer.echo(
            f"Starting the engine: {', '.join(f'{name}={size}' for name, size in sizes.items())}", err=True
        )
        engine = create_engine(settings.model_copy(update=sizes))
        try:
            await engine.start()
            yield engine
        finally:
            await engine.stop()

    return await search(
        opened,
        mix,
        lambda point: typer.echo(_line(point), err=True),
        most=most or 2 * settings.max_num_seqs or 256,
        batched_tokens=settings.max_num_batched_tokens,
        steps=steps,
    )


def _line(point: Point) -> str:
    found = f"{point.pages_per_s:.2f} pages/s" if not point.failed else point.failed
    return f"  {point.sequences} sequences: {found}"


def _row(point: Point, best: Point) -> dict[str, str]:
    return {
        "sequences": str(point.sequences),
        "tokens in a step": str(point.batched_tokens or ""),
        "pages/s": f"{point.pages_per_s:.2f}",
        "p95 s": f"{point.p95_s:.2f}",
        "put back": str(point.preemptions or ""),
        "best": "<" if point == best else "",
        "failed": point.failed,
    }


def _profile(machine: Profile, settings: WorkerSettings, tuned: Tuned) -> str:
    """Return the machine's profile with what was found, and what else the engine was measured with."""
    sizes = {"max_num_seqs": tuned.best.sequences, "max_num_batched_tokens": tuned.best.batched_tokens}
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in sorted(OF_A_PROFILE)} | sizes
    return profile_toml(
        machine.model_copy(
            update={
                "title": f"{machine.title}, tuned: {tuned.best.pages_per_s:.3g} pages/s",
                "settings": {name: value for name, value in chosen.items() if value},
                "engine_options": settings.engine_options,
                "speed": tuned.speed,
            }
        )
    )


def _refused(error: Exception, code: int) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(code)
