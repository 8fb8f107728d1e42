"""Shared code of the operators' commands: settings or an exit, the chosen machine, tables or JSON."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from pecia_schemas import running
from pecia_schemas.installing import install_command
from pecia_schemas.settings import SettingsError, WorkerSettings, read_settings
from pecia_workers.engines.models import visible_gpus
from pecia_workers.engines.plan import EnginePlan, plan_engine
from pecia_workers.engines.profiles import NO_PROFILE, Profile, memory_of, profile_named, profile_of
from pecia_workers.protocol.base import EngineDeadError, EngineError, EngineUnavailableError, only_captions

FAILED, USAGE, UNAVAILABLE = 1, 2, 4
"""Exit codes."""

Name = TypeVar("Name", bound=StrEnum)

MixOption = Annotated[str, typer.Option(help="Document types by weight: prescription=2,chart=1.")]
Quality = Annotated[bool, typer.Option("--quality", help="The model that reads best, not the fastest.")]
ModelName = Annotated[str, typer.Option(help="Plan with this one: a directory, or a name on the Hub.")]
Gpu = Annotated[
    str,
    typer.Option(
        help="t4, l4, a10, a100, a100-80, l40s, h100, h200, b200, or a file of `engine tune`. Default: the GPU here."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def refused(why: str | Exception, code: int) -> typer.Exit:
    """Print why a command ends; return the exception that ends it."""
    typer.echo(str(why), err=True)
    return typer.Exit(code)


def show(record: Any, shown: RenderableType, *, as_json: bool) -> None:
    """Print an object as a line of JSON, or its text for people."""
    if as_json:
        typer.echo(json.dumps(record))
    else:
        Console(highlight=False).print(shown)


@contextmanager
def refusing(*kinds: type[Exception], add: str = "") -> Iterator[None]:
    """Turn these errors into exit code 2 with their message."""
    try:
        yield
    except kinds as error:
        raise refused(f"{error}{add}", USAGE) from None


@contextmanager
def engine_at_work(settings: WorkerSettings) -> Iterator[None]:
    """Log an engine's work, and turn its failures into an exit code."""
    from pecia_workers.observability.tracing import configure_logs  # noqa: PLC0415  heavy: help must not wait for it

    configure_logs(settings)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is the answer's
    try:
        yield
    except (EngineUnavailableError, EngineDeadError) as error:
        raise refused(error, UNAVAILABLE) from None
    except EngineError as error:
        raise refused(error, FAILED) from None


def settings_or_exit() -> WorkerSettings:
    """Return the settings from the environment; exit 2 with a message if one is wrong."""
    with refusing(SettingsError):
        return read_settings(WorkerSettings)


def require(needs: str, wanted: Mapping[str, object], otherwise: str) -> None:
    """Exit 2 with a message that names the empty setting."""
    if missing := [name for name, value in wanted.items() if not value]:
        raise refused(f"{needs} {', '.join(missing)}{otherwise}", USAGE)


def urls_or_exit(settings: WorkerSettings) -> None:
    """Exit 2 if a URL is malformed, without quoting it, as it may hold a password."""
    from redis.connection import parse_url  # noqa: PLC0415  heavy, as all that opens stores: help must not wait for it

    from pecia_schemas.connecting import sqlalchemy_url  # noqa: PLC0415  as above

    database = "a database: it reads postgresql://user:password@host/database."
    for name, url, parse, reads in (
        ("DATABASE", settings.database_url, sqlalchemy_url, database),
        ("REDIS", settings.redis_url, parse_url, "a Redis: it reads redis://, rediss:// or unix://."),
    ):
        if text := url.get_secret_value():
            try:
                parse(text)
            except Exception:  # noqa: BLE001  each library has its own, and nothing else is done here
                raise refused(f"PECIA_{name}_URL is no URL of {reads}", USAGE) from None


def settings_of_fleet() -> WorkerSettings:
    """Return the settings, with the stores of the fleet on this machine if they name none.

    Without such a fleet the stores stay unset. Exits 2 if there are several such fleets.
    """
    settings = settings_or_exit()
    urls_or_exit(settings)
    if settings.database_url.get_secret_value() or not (settings.home or running.running_fleets()):
        return settings
    with refusing(running.NoFleetError):
        fleet = running.find(settings.home)
    return settings.with_stores(
        database_url=fleet.database_url, redis_url=fleet.redis_url, payload_url=fleet.payload_url
    )


def chosen_engine(settings: WorkerSettings, *, model: str, quality: bool) -> WorkerSettings:
    """Return the settings of a vLLM worker with the given options."""
    chosen = {"model": model, "prefer_quality": quality}
    return settings.model_copy(
        update={"engine": "vllm"} | {name: value for name, value in chosen.items() if value}
    )


def machine_named(name: str) -> tuple[Profile, int]:
    """Return the profile of this name, by default of this machine's GPU, and the GPU's memory.

    Raises `EngineUnavailableError` for an unknown profile.
    """
    if name and name != NO_PROFILE:
        profile = profile_named(name)
        return profile, profile.memory_bytes
    gpus = visible_gpus()
    profile = profile_of(gpus)
    return profile, memory_of(profile, gpus)


def planned_engine(settings: WorkerSettings, gpu: str, *, captions: bool = False) -> EnginePlan:
    """Return the plan for the GPU of this name, else of the settings' profile, else of this machine.

    `captions`: for a worker that only captions videos. Raises `EngineUnavailableError`.
    """
    profile, memory = machine_named(gpu or settings.profile)
    return plan_engine(settings, profile, memory, captions=captions or only_captions(settings))


def weights(text: str, names: type[Name], option: str) -> dict[Name, float]:
    """Parse the weights of an option; a name without a weight counts 1. Raises `typer.BadParameter`."""
    found = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if name not in set(names):
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}.", param_hint=option)
        try:
            found[names(name)] = float(weight or 1)
        except ValueError:
            raise typer.BadParameter(f"{weight!r} is no weight.", param_hint=option) from None
    if not (min(found.values()) >= 0 and 0 < sum(found.values()) < math.inf):
        raise typer.BadParameter("Weights are not negative, and one is more than 0.", param_hint=option)
    return found


def described(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names with their descriptions, one a line."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"[bold]{name}[/]", value)
    return table


def aligned(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows with the same columns, without empty columns.

    Figures are never truncated, however narrow the screen; words of headings wrap.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in columns:
        widest = max(len(row[name]) for row in rows)
        left = rows[0][name].isalpha()
        table.add_column(name.strip(), justify="left" if left else "right", min_width=widest)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def drawing_or_exit() -> None:
    """Exit 4 with the package to install if plots cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise refused(f"Nothing here draws: {install_command('plot')}", UNAVAILABLE)
