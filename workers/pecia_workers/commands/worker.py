"""`pecia worker ROLE`: one process of the fleet."""

from __future__ import annotations

import sys
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated

import typer

from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands.settings import require, settings_or_exit
from pecia_workers.commands.showing import USAGE, refused
from pecia_workers.confinement import forbid_core_files
from pecia_workers.engines.base import stages_served


class Role(StrEnum):
    """What a process of the fleet does."""

    INGEST = "ingest"
    ENGINE = "engine"
    WEBHOOKS = "webhooks"
    UPKEEP = "upkeep"


class Kind(StrEnum):
    """What an engine worker can be kept to."""

    READ = "read"
    CAPTION = "caption"


def worker(
    role: Annotated[
        Role,
        typer.Argument(
            help="ingest cuts documents, engine reads and captions, webhooks calls, upkeep repairs."
        ),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(help="Name in Flower; two workers on one machine need two. Default: the role."),
    ] = None,
    stages: Annotated[
        Kind | None,
        typer.Option(help="What an engine worker does. Default: PECIA_STAGES, else all that its engine can."),
    ] = None,
) -> None:
    """Run one process of the fleet until SIGTERM or Ctrl-C; it finishes what it has begun.

    Example: `pecia worker engine`
    """
    settings = settings_or_exit()
    if stages:
        settings = settings.model_copy(update={"stages": stages.value})
    stores = {
        "PECIA_DATABASE_URL": settings.database_url.get_secret_value(),
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": settings.payload_url,
    }
    require("A worker needs its stores: set", stores, ", or run `pecia up`.")
    from pecia_workers.commands import starting  # noqa: PLC0415  heavy: help must not wait for it
    from pecia_workers.logs import configure_logs  # noqa: PLC0415
    from pecia_workers.service import termination_heard, within_notice  # noqa: PLC0415

    starting.admitted_or_exit(settings)
    configure_logs(settings)
    forbid_core_files()
    settings = within_notice(settings)
    with starting.traced_or_exit(settings, role), termination_heard(settings):
        if role in (Role.INGEST, Role.ENGINE):
            _run_stages(role, _stages(role, settings), settings, name or role)
        else:
            _run_service(role, settings)


def _stages(role: Role, settings: WorkerSettings) -> Collection[Stage]:
    if role is Role.INGEST:
        return (Stage.INGEST,)
    served = stages_served(settings)
    if not served:
        sentence = f"The engine {settings.engine!r} cannot {settings.stages}: choose another PECIA_ENGINE."
        raise refused(sentence, USAGE)
    return served


def _run_stages(role: Role, stages: Collection[Stage], settings: WorkerSettings, name: str) -> None:
    from pecia_workers.app import app, queues_of, worker_argv  # noqa: PLC0415
    from pecia_workers.metrics.serving import worker_page  # noqa: PLC0415

    app.use(settings)
    with worker_page(settings, role, app.keeper, queues_of(stages)):
        app.worker_main(worker_argv(stages, settings, name=name))
    sys.exit(0)


def _run_service(role: Role, settings: WorkerSettings) -> None:
    from pecia_workers.metrics.serving import service_page  # noqa: PLC0415

    with service_page(settings, role, fleet=role is Role.UPKEEP):
        if role is Role.WEBHOOKS:
            from pecia_workers.webhooks.delivery import run_webhooks  # noqa: PLC0415

            run_webhooks(settings)
        else:
            from pecia_workers.upkeep.loop import run_upkeep  # noqa: PLC0415

            run_upkeep(settings)
