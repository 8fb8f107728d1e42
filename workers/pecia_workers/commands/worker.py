"""`pecia worker ROLE`: one process of the fleet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands.settings import settings_or_exit


class Role(StrEnum):
    """What a process of the fleet does."""

    INGEST = "ingest"
    ENGINE = "engine"
    WEBHOOKS = "webhooks"
    UPKEEP = "upkeep"


_STAGES = {Role.INGEST: (Stage.INGEST,), Role.ENGINE: (Stage.READ,)}


def worker(
    role: Annotated[
        Role, typer.Argument(help="ingest cuts documents, engine reads, webhooks calls back, upkeep repairs.")
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(help="Name in Flower; two workers on one machine need two. Default: the role."),
    ] = None,
) -> None:
    """Run one process of the fleet until SIGTERM or Ctrl-C; it finishes what it has begun.

    Example: `pecia worker engine`
    """
    settings = settings_or_exit()
    _check(settings)
    from pecia_workers.logs import configure_logs  # noqa: PLC0415  heavy: help must not wait for it

    configure_logs(settings)
    if role in _STAGES:
        _run_stages(role, settings, name or role)
    else:
        _service(role)(settings)


def _check(settings: WorkerSettings) -> None:
    wanted = {
        "PECIA_DATABASE_URL": settings.database_url.get_secret_value(),
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": settings.payload_url,
    }
    missing = [name for name, value in wanted.items() if not value]
    if missing:
        typer.echo(f"A worker needs its stores: set {', '.join(missing)}, or run `pecia up`.", err=True)
        raise typer.Exit(2)


def _run_stages(role: Role, settings: WorkerSettings, name: str) -> None:
    from pecia_workers.app import app, worker_argv  # noqa: PLC0415

    app.use(settings)
    app.worker_main(worker_argv(_STAGES[role], settings, name=name))
    sys.exit(0)


def _service(role: Role) -> Callable[[WorkerSettings], None]:
    if role is Role.WEBHOOKS:
        from pecia_workers.webhooks.delivery import run_webhooks  # noqa: PLC0415

        return run_webhooks
    from pecia_workers.upkeep.loop import run_upkeep  # noqa: PLC0415

    return run_upkeep
