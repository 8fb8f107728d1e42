"""`pecia worker ROLE` and `pecia flower`: one process of the fleet, until it is stopped."""

import sys
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated, Literal

import typer

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import ENGINELESS
from pecia_workers.commands.common import UNAVAILABLE, USAGE, refused, require, settings_or_exit, urls_or_exit
from pecia_workers.processes.confinement import forbid_core_files
from pecia_workers.protocol.base import stages_served


class Role(StrEnum):
    """What a process of the fleet does."""

    INGEST = "ingest"
    ENGINE = "engine"
    WEBHOOKS = "webhooks"
    UPKEEP = "upkeep"


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
        Literal["read", "caption"] | None,
        typer.Option(help="What an engine worker does. Default: PECIA_STAGES, else all that its engine can."),
    ] = None,
) -> None:
    """Run one process of the fleet until SIGTERM or Ctrl-C, which lets it finish its work.

    Example: `pecia worker engine`
    """
    settings = settings_or_exit()
    if stages:
        settings = settings.model_copy(update={"stages": stages})
    stores = {
        "PECIA_DATABASE_URL": settings.database_url.get_secret_value(),
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": settings.payload_url,
    }
    require("A worker needs its stores: set", stores, ", or run `pecia up`.")
    from pecia_schemas.tracing import TracingUnavailableError, exported  # noqa: PLC0415  heavy: help must not wait
    from pecia_workers.processes.service import termination_heard  # noqa: PLC0415

    _begin(settings)
    with ExitStack() as stack:
        try:
            stack.enter_context(exported(settings, f"pecia-{role}"))
        except TracingUnavailableError as error:
            raise refused(f"PECIA_TRACING {error}", UNAVAILABLE) from None
        stack.enter_context(termination_heard(settings.termination_notice))
        if role in (Role.INGEST, Role.ENGINE):
            _run_stages(role, settings, name or role)
            return
        from pecia_workers.observability.metrics_page import service_page  # noqa: PLC0415

        stack.enter_context(service_page(settings, role, fleet=role is Role.UPKEEP))
        if role is Role.WEBHOOKS:
            from pecia_workers.outgoing.webhooks import run_webhooks  # noqa: PLC0415

            run_webhooks(settings)
        else:
            from pecia_workers.upkeep.loop import run_upkeep  # noqa: PLC0415

            run_upkeep(settings)


def _run_stages(role: Role, settings: WorkerSettings, name: str) -> None:
    stages = ENGINELESS if role is Role.INGEST else stages_served(settings)
    if not stages:
        sentence = f"The engine {settings.engine!r} cannot {settings.stages}: choose another PECIA_ENGINE."
        raise refused(sentence, USAGE)
    from pecia_workers.app import app, queues_of, worker_argv  # noqa: PLC0415
    from pecia_workers.observability.metrics_page import worker_page  # noqa: PLC0415

    app.use(settings)
    with worker_page(settings, role, app.keeper, queues_of(stages)):
        app.worker_main(worker_argv(stages, settings, name=name))
    sys.exit(0)


def flower() -> None:
    """Serve Flower, where people watch the fleet, until SIGTERM or Ctrl-C.

    Needs PECIA_REDIS_URL and PECIA_FLOWER_PASSWORD. It listens on PECIA_FLOWER_ADDRESS (loopback) and PECIA_FLOWER_PORT
    (5555). `pecia up` serves it too.

    Example: `PECIA_FLOWER_PASSWORD=… pecia flower`
    """
    settings = settings_or_exit()
    wanted = {
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_FLOWER_PASSWORD": settings.flower_password.get_secret_value(),
        "PECIA_FLOWER_PORT": settings.flower_port,
    }
    require("Flower needs", wanted, "; `pecia up` serves it by itself.")
    from pecia_workers.observability.flower import run_flower  # noqa: PLC0415  heavy: help must not wait for it

    _begin(settings)
    try:
        run_flower(settings)
    except OSError as error:
        where = f"{settings.flower_address}, port {settings.flower_port}"
        raise refused(f"Flower cannot listen on {where}: {error.strerror}.", UNAVAILABLE) from None


def _begin(settings: WorkerSettings) -> None:
    from pecia_workers.observability.tracing import configure_logs  # noqa: PLC0415  heavy: help must not wait for it

    admitted_or_exit(settings)
    configure_logs(settings)
    forbid_core_files()


def admitted_or_exit(settings: WorkerSettings) -> None:
    """Exit 4 with a sentence for each store that refuses us; an absent store may come."""
    from redis import RedisError  # noqa: PLC0415  heavy, as all that opens stores: help must not wait for it

    from pecia_schemas.connecting import refusal_of_postgres, refusal_of_redis, verdict_on  # noqa: PLC0415
    from pecia_workers.ledger.database import open_for_questions  # noqa: PLC0415
    from pecia_workers.queue.lists import connect  # noqa: PLC0415

    urls_or_exit(settings)
    refusals = []
    if url := settings.redis_url.get_secret_value():
        try:
            with connect(url) as redis:
                redis.ping()
        except (RedisError, OSError) as error:
            refusals.append(refusal_of_redis(error, url))
    if url := settings.database_url.get_secret_value():
        try:
            open_for_questions(url).connect().close()
        except Exception as error:
            if verdict_on(error) is None:
                raise
            refusals.append(refusal_of_postgres(error, url))
    if sentences := [sentence for sentence in refusals if sentence]:
        raise refused("\n".join(sentences), UNAVAILABLE)
