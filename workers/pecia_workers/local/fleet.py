"""The supervisor behind `pecia up` and `pecia demo`: stores, workers and Flower on one machine, kept alive together."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from pecia_schemas import running
from pecia_schemas.events import new_secret
from pecia_schemas.payloads import in_bucket
from pecia_schemas.settings import LISTENER_PORT, WorkerSettings
from pecia_workers.engines.models import VISIBLE, gpus_per_worker, shares, visible_gpus
from pecia_workers.ledger.workers import is_registered
from pecia_workers.local.home import Flower, Home, answers, environment, kept_secret, url_of
from pecia_workers.local.process import (
    ChildProcess,
    EmbeddedError,
    Janitor,
    Service,
    ServiceState,
    Supervised,
    fork,
    spawn,
    tail,
    wait_until,
)
from pecia_workers.local.servers import EmbeddedPostgres, EmbeddedRedis, start_postgres, start_redis
from pecia_workers.processes.template import Template

_TICK_S = 0.1
_TRIES = 6
"""Restarts after which the fleet gives up a service that never became ready."""
_STORE_STOP_S = 30.0
_PAGE_STOP_S = 5.0
_BEYOND_DRAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """A child process of the fleet: name, command (program by absolute path) and readiness check."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool] | None = None
    """Readiness check; None: ready when it runs or, if it `registers`, when it has registered."""
    registers: bool = False
    """Whether it inserts its row into `workers` when it is ready."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to the fleet's settings."""
    forked: bool = False
    """Whether it is Python code that may be forked from the template with the fleet's imports."""


def workers_of(settings: WorkerSettings) -> tuple[WorkerCommand, ...]:
    """Return one process for every role of a fleet; language models get one for each GPU or group of GPUs."""
    visible = shares(visible_gpus(), gpus_per_worker(settings)) if settings.engine == "vllm" else []
    # vLLM, Ray and CUDA choose their threads, and read their variables, in a process that is theirs from the start.
    forked = settings.engine not in ("vllm", "ray")
    engines = [_worker("engine", forked=forked)]
    if len(visible) > 1:
        engines = [
            _worker("engine", name=f"engine-{number}", environment={VISIBLE: gpus}, forked=forked)
            for number, gpus in enumerate(visible)
        ]
    return (_worker("ingest"), *engines, _worker("webhooks"), _worker("upkeep"))


def _worker(
    role: str, *, name: str = "", environment: Mapping[str, str] | None = None, forked: bool = True
) -> WorkerCommand:
    name = name or role
    return WorkerCommand(
        name=name,
        command=(sys.executable, "-m", "pecia_workers", "worker", role, "--name", name),
        registers=True,
        environment=environment or {},
        forked=forked,
    )


MODULES = (
    "pecia_workers.__main__",
    "pecia_workers.observability.flower",
    "pecia_workers.observability.metrics_page",
    "pecia_workers.worker.pool",
    "pecia_workers.worker.runtime",
    "pecia_workers.upkeep.loop",
    "pecia_workers.outgoing.webhooks",
)
"""Modules that the fleet's processes need, imported once by the template."""

MIGRATE = (sys.executable, "-m", "pecia_migrations")
"""Command of the migrations, in a process of its own so that Alembic does not stay in memory."""


class LocalFleet:
    """A fleet in one home directory. None of its processes outlives this one, however that ends.

    One thread starts, watches and stops all processes; stores with a URL in `settings` are used, not started.
    Without `workers` it has all roles. `announce` writes a file by which this user's clients find the fleet; `report`
    is called with each step of the start, and with each service that becomes ready or dies.
    """

    def __init__(
        self,
        home: Path,
        *,
        settings: WorkerSettings,
        workers: Sequence[WorkerCommand] | None = None,
        migrate: Sequence[str] = MIGRATE,
        announce: bool = True,
        gateway: bool = False,
        report: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self.home = Home(path=home.expanduser().absolute())
        self.settings = settings
        """Settings, with the stores' addresses once started."""
        self.flower: Flower | None = None
        """Address, user and password of Flower, once started; None without a port in the settings."""
        self.gateway: str | None = None
        """Address of the gateway, once started; None without one."""
        self._has_gateway = gateway
        self._commands = tuple(workers_of(settings) if workers is None else workers)
        self._migrate = WorkerCommand(
            name="migrate", command=tuple(migrate), forked=tuple(migrate) == MIGRATE
        )
        self._announce = announce
        self._report = report
        self._reported: dict[str, ServiceState] = {}
        self._template: Template | None = None
        self._external: list[Service] = []
        self._stores: list[Supervised[EmbeddedPostgres | EmbeddedRedis]] = []
        self._workers: list[Supervised[ChildProcess]] = []
        self._pages: list[Supervised[ChildProcess]] = []
        self._begun = threading.Event()
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        # The children are tied to the thread that starts them, so one thread does it all.
        self._keeper = threading.Thread(target=self._keep, name="pecia-fleet", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all processes; returns when the stores are ready and the workers start. Raises `EmbeddedError`."""
        self._keeper.start()
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        self._raise_failure()

    def wait_ready(self, timeout: float = 120, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until every service is ready, or `unless` returns True.

        Raises `EmbeddedError` with the names of services that are not ready: after `timeout` seconds, or as soon as one
        has died repeatedly or cannot work with its settings.
        """

        def settled() -> bool:
            late = self._late()
            hopeless = self._failure is not None or any(
                one.is_unable or one.restarts >= _TRIES for one in late
            )
            return not late or hopeless or unless()

        began = time.monotonic()
        wait_until(settled, timeout)
        self._raise_failure()
        if (late := self._late()) and not unless():
            complaint = ", ".join(f"{service.name} ({service.state}: {service.where})" for service in late)
            waited = time.monotonic() - began
            message = f"Not ready after {waited:.0f} s: {complaint}. Their logs say why."
            ends = [tail(Path(service.where)).rpartition("\n")[2] for service in late if service.is_unable]
            raise EmbeddedError("\n".join([message, *ends]))

    def stop(self) -> None:
        """Stop the workers, which may finish their parts, then Flower, then the stores. Safe to call again."""
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def services(self) -> list[Service]:
        """Return the state of every service, in the order of their start."""
        stores = [*(unit.service for unit in tuple(self._stores)), *self._external]
        return [*stores, *(unit.service for unit in (*self._workers, *self._pages))]

    def _late(self) -> list[Service]:
        """Return the services that are not ready, or not yet reported as ready."""
        settled = (ServiceState.READY, ServiceState.EXTERNAL)
        return [
            service
            for service in self.services()
            if service.state not in settled or self._reported.get(service.name) is not service.state
        ]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _keep(self) -> None:
        try:
            with ExitStack() as stack:
                self._begin(stack)
                self._begun.set()
                while not self._ending.wait(_TICK_S):
                    for store in self._stores:
                        store.tend()
                    for unit in (*self._workers, *self._pages):
                        unit.tend()
                    for service in self.services():
                        if service.state not in (self._reported.get(service.name), ServiceState.STARTING):
                            self._report(f"{service.name}: {service.state}")
                            self._reported[service.name] = service.state
        except BaseException as failure:  # noqa: BLE001  raised again in the thread that asked
            self._failure = failure
        finally:
            self._begun.set()

    def _begin(self, stack: ExitStack) -> None:
        """Start in the order of dependencies; `stack` stops in reverse order."""
        note_stopping = stack.enter_context(self.home.hold())
        if any(command.forked for command in self._commands):
            self._template = Template(*MODULES)  # it imports while the stores start
            stack.callback(self._template.stop)
        self._start_stores(stack)
        variables = environment(self.settings)
        self._report("Bringing the database up to date …")
        log = self.home.log("migrate")
        if self._launch(self._migrate, log, variables).popen.wait():
            raise EmbeddedError(
                f"The database could not be brought up to date. The end of {log}:\n{tail(log)}"
            )
        janitor = Janitor()
        stack.callback(janitor.dismiss)
        drained = self.settings.drain_timeout.total_seconds() + _BEYOND_DRAIN_S
        stack.callback(lambda: _stop(self._pages, _PAGE_STOP_S))
        stack.callback(lambda: _stop(self._workers, drained))
        self._workers = [
            self._worker(command, variables | self._metrics_page(number), janitor)
            for number, command in enumerate(self._commands)
        ]
        self._pages = [self._worker(command, variables, janitor) for command in self._page_commands()]
        for unit in (*self._workers, *self._pages):
            self._report(f"Starting {unit.name} …")
            unit.start()
        stack.callback(note_stopping)
        if self._announce:
            stack.callback(running.withdraw, str(self.home.path), os.getpid())
            running.announce(
                running.RunningFleet(
                    pid=os.getpid(),
                    home=str(self.home.path),
                    database_url=self.settings.database_url.get_secret_value(),
                    redis_url=self.settings.redis_url.get_secret_value(),
                    payload_url=self.settings.payload_url,
                    webhook_secret=self.settings.webhook_secret.get_secret_value(),
                    webhook_listener=self.settings.webhook_listener,
                )
            )

    def _start_stores(self, stack: ExitStack) -> None:
        """Start the servers without a URL, and complete the settings; a server that dies is restarted in place."""
        given = self.settings
        payloads = given.payload_url or str(self.home.payloads)
        postgres, redis = given.database_url.get_secret_value(), given.redis_url.get_secret_value()
        self.settings = given.with_stores(
            database_url=postgres or self._start_store(stack, "postgres", start_postgres),
            redis_url=redis or self._start_store(stack, "redis", start_redis),
            payload_url=payloads if "://" in payloads else str(Path(payloads).expanduser().absolute()),
        )
        for name, url in (("postgres", postgres), ("redis", redis)):
            if url:
                parts = urlsplit(url)  # shown without what may be secret in it
                port = f":{parts.port}" if parts.port else ""
                where = f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
                self._external.append(Service(name=name, pid=None, state=ServiceState.EXTERNAL, where=where))
        update: dict[str, Any] = {}
        if not postgres:  # other webhook workers may share a given one's outbox, and must sign alike
            if not given.webhook_secret.get_secret_value():
                update["webhook_secret"] = SecretStr(kept_secret(self.home.webhook_secret, new_secret))
            if "webhook_listener" not in given.model_fields_set:
                update["webhook_listener"] = LISTENER_PORT
        self.settings = self.settings.model_copy(update=update)

    def _start_store(
        self, stack: ExitStack, name: str, start: Callable[..., EmbeddedPostgres | EmbeddedRedis]
    ) -> str:
        sockets = stack.enter_context(self.home.socket_directory(name))
        launch = partial(start, self.home.path / name, socket_dir=sockets, log=self.home.log(name))
        unit = Supervised(name=name, where="", launch=launch, ready=lambda: True)
        stack.callback(unit.stop, _STORE_STOP_S)
        self._report(f"Starting {name} …")
        unit.where = unit.start().url
        self._stores.append(unit)
        return unit.where

    def _worker(
        self, command: WorkerCommand, variables: Mapping[str, str], janitor: Janitor
    ) -> Supervised[ChildProcess]:
        log = self.home.log(command.name)
        pid = 0

        def launch() -> ChildProcess:
            nonlocal pid
            child = self._launch(command, log, variables)
            janitor.watch(child.pid)
            pid = child.pid
            return child

        def registered() -> bool:
            return is_registered(self.settings.database_url.get_secret_value(), pid)

        ready = command.ready or (registered if command.registers else None)
        return Supervised(name=command.name, where=str(log), launch=launch, ready=ready, ended=janitor.forget)

    def _launch(self, command: WorkerCommand, log: Path, variables: Mapping[str, str]) -> ChildProcess:
        """Start a process, by the template if that lives; its death ends its processes, which are restarted."""
        environment = {**variables, **command.environment}
        if command.forked and self._template and self._template.alive:
            return fork(self._template, command.command, log=log, environment=environment)
        return spawn(command.command, log=log, environment=environment)

    def _metrics_page(self, number: int) -> dict[str, str]:
        """Return the environment that gives a worker its own metrics port, the same after a restart."""
        port = self.settings.metrics_port
        return {"PECIA_METRICS_PORT": str(min(port + number, 65_535))} if port else {}

    def _page_commands(self) -> list[WorkerCommand]:
        """Return the commands of Flower, the gateway and the watched folder; sets their addresses."""
        commands = []
        if self.settings.flower_port:
            self.flower = flower = Flower(self.settings, self.home.path)
            commands.append(
                WorkerCommand(
                    name="flower",
                    command=flower.command,
                    ready=partial(answers, flower.address, flower.port),
                    environment=flower.environment,
                    forked=True,
                )
            )
        if self._has_gateway:
            address, port = self.settings.gateway_address, self.settings.gateway_port
            self.gateway = url_of(address, port)
            command = (sys.executable, "-m", "pecia", "gateway")
            commands.append(
                WorkerCommand(name="gateway", command=command, ready=partial(answers, address, port))
            )
        if self.settings.watch_folder:
            watched = self.settings.watch_folder
            if in_bucket(watched) is None:
                folder = Path(watched).expanduser().absolute()
                folder.mkdir(parents=True, exist_ok=True)
                watched = str(folder)
            watch = (sys.executable, "-m", "pecia", "watch-folder", watched, "--quiet")
            commands.append(WorkerCommand(name="watch-folder", command=watch))
        return commands


def _stop(units: Sequence[Supervised[ChildProcess]], timeout: float) -> None:
    for unit in units:
        unit.ask_to_stop()
    for unit in units:
        unit.stop(timeout)
