"""The fleet's Celery application: `celery -A pecia_workers.app worker -Q read.urgent,read.normal,read.bulk`."""

from __future__ import annotations

import socket
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Celery
from celery.apps.worker import Worker
from celery.exceptions import ImproperlyConfigured
from celery.worker.control import Panel
from kombu.entity import Exchange, Queue

from pecia_schemas.messages import queue_name
from pecia_schemas.settings import WorkerSettings, read_settings
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue import transport
from pecia_workers.queue.lists import QUEUES, LaneRules, celery_settings, connect
from pecia_workers.queue.transport import Keeper, task_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pecia_workers.worker.runtime import Runtime

_LOOK = {
    *("ping", "clock", "stats", "registered", "active_queues"),
    *("active", "reserved", "scheduled", "revoked", "query_task"),
    *("enable_events", "heartbeat"),
}
"""Remote control commands that Flower and `celery inspect` use."""


def restrict(settings: WorkerSettings) -> None:
    """Disable every other command in this process, such as those that stop it, change its queues or dump its memory."""
    allowed = _LOOK | {"revoke"} if settings.remote_control == "revoke" else _LOOK
    for name in Panel.data.keys() - allowed:
        del Panel.data[name]
    Panel.data["conf"] = lambda _state, **_arguments: {}  # Flower asks whenever its page is opened


class FleetWorker(Worker):  # type: ignore[misc]
    """Celery's worker without gossip and mingle, with the remote control that the settings allow."""

    app: FleetApp  # pyright: ignore[reportIncompatibleVariableOverride]

    def on_before_init(self, quiet: bool = False, **kwargs: Any) -> None:
        """Restrict remote control before any command can arrive."""
        restrict(self.app.settings)
        super().on_before_init(quiet=quiet, **kwargs)

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """Return the options with gossip and mingle off."""
        return kwargs | {"without_gossip": True, "without_mingle": True}

    def start(self) -> None:
        """Run until stopped. Exits after a failure, whose status `worker_main` would drop."""
        super().start()
        if self.exitcode:
            sys.exit(self.exitcode)


class FleetApp(Celery):  # type: ignore[misc]
    """Celery, configured from the fleet's settings when first used."""

    new_runtime: Callable[[], Runtime]
    """Factory of the runtime that runs the parts; replace it before the worker starts."""

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        transport.install()
        super().__init__("pecia")
        self._given = settings
        self.new_runtime = self._default_runtime
        self.add_defaults(self._celery_settings)
        for stage in Stage:
            self.task(
                _only_in_the_pool, name=task_name(stage), Request="pecia_workers.worker.runner:PartRequest"
            )

    def use(self, settings: WorkerSettings) -> None:
        """Use these settings instead of the environment's. Must precede any other use of the application."""
        self._given = settings

    @cached_property
    def settings(self) -> WorkerSettings:
        """The fleet's settings."""
        return self._given or read_settings(WorkerSettings)

    @cached_property
    def keeper(self) -> Keeper:
        """The keeper of this process's parts."""
        return Keeper(connect(self._redis_url), rules=LaneRules.of(self.settings))

    @property
    def stages(self) -> frozenset[Stage]:
        """The stages of the queues that this worker consumes."""
        return frozenset(QUEUES[queue][0] for queue in self.amqp.queues.consume_from)

    @property
    def Worker(self) -> Any:  # noqa: N802  # pyright: ignore[reportIncompatibleVariableOverride]
        """The worker program."""
        return self.subclass_with_self(FleetWorker)

    @property
    def _redis_url(self) -> str:
        url = self.settings.redis_url.get_secret_value()
        if not url:
            raise ImproperlyConfigured("Set PECIA_REDIS_URL: the fleet's queues are in Redis.")
        return url

    def _default_runtime(self) -> Runtime:
        from pecia_workers.worker.runtime import Runtime  # noqa: PLC0415  heavy: only a worker needs it

        return Runtime(self.settings, self.stages, redis_serves=lambda: self.keeper.redis_serves)

    def _celery_settings(self) -> dict[str, Any]:
        settings = celery_settings(self._redis_url)
        settings["broker_transport_options"] |= {"keeper_key": self.keeper.key, "unacked_restore_interval": 1}
        return settings | _SETTINGS


def queues_of(stages: Collection[Stage]) -> list[str]:
    """Return the lists of these stages, in the order in which they are served."""
    return [queue for queue, (stage, _) in QUEUES.items() if stage in stages]


def worker_argv(stages: Collection[Stage], settings: WorkerSettings, *, name: str = "") -> list[str]:
    """Return the arguments for `app.worker_main`: a worker of these stages."""
    return [
        "worker",
        f"--queues={','.join(queues_of(stages))}",
        f"--hostname={name or '-'.join(sorted(stages))}@{socket.gethostname()}",
        f"--loglevel={settings.log_level.upper()}",
    ]


_EXCHANGE = Exchange("pecia", type="direct")  # type: ignore[no-untyped-call]
_SETTINGS: dict[str, Any] = {
    "accept_content": ["json"],
    "task_serializer": "json",
    # Nothing is declared in Redis: a list needs no binding.
    "task_queues": [Queue(name, _EXCHANGE, routing_key=name, no_declare=True) for name in QUEUES],  # type: ignore[no-untyped-call]
    "task_default_queue": queue_name(Stage.READ, Lane.NORMAL),
    "task_create_missing_queues": False,
    "task_acks_late": True,
    "task_acks_on_failure": True,
    "task_acks_on_timeout": False,
    "task_ignore_result": True,
    "task_send_sent_event": False,
    "worker_pool": "pecia_workers.worker.pool:EnginePool",
    "worker_concurrency": 1,
    "worker_prefetch_multiplier": 0,  # unlimited for Celery: the gate decides about claims
    "worker_send_task_events": True,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,
}


def _only_in_the_pool() -> NoReturn:
    raise ImproperlyConfigured(
        "Parts run in pecia_workers.worker.pool:EnginePool alone: start the worker without -P."
    )


app = FleetApp()
