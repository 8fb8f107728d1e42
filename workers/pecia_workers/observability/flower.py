"""Flower in this process: behind a password, with bounded memory, and revocation as its only action.

Our pages replace some of Flower's: exact lanes, current workers, and revocation that reports its outcome. Flower's own
`FLOWER_*` variables and configuration file are not read.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import structlog
from celery import states
from flower.api.control import ControlHandler, TaskRevoke
from flower.api.tasks import GetQueueLengths
from flower.app import Flower
from flower.command import extract_settings
from flower.events import EventsState
from flower.options import options
from flower.urls import settings as page_settings
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from flower.views.monitor import Metrics
from flower.views.tasks import TaskView
from flower.views.workers import WorkerView
from tornado.web import HTTPError, RedirectHandler

from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.messages import quarantine_name, queue_name
from pecia_schemas.states import Lane, Stage
from pecia_workers.app import FleetApp, app
from pecia_workers.ledger.database import open_for_questions
from pecia_workers.ledger.standing import count_running, left_in_postgres
from pecia_workers.queue.lists import connect, count_waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pecia_schemas.settings import ConnectionSettings, WorkerSettings

log = structlog.get_logger(__name__)

_OFFLINE_S = 60
"""Seconds without events after which a worker is removed from the page."""


class Lanes:
    """Counts lanes in Redis and Postgres: Flower's own counts lack parts behind a turn and parts in flight."""

    def __init__(self, settings: ConnectionSettings, consumers: Mapping[str, int]) -> None:
        self._redis_url = settings.redis_url.get_secret_value()
        self._database_url = settings.database_url.get_secret_value()
        self._consumers = consumers

    async def queues(self, _names: Iterable[str]) -> list[dict[str, Any]]:
        """Return a row for each lane, whether or not it is served, and for each quarantine that is not empty.

        With Flower's names: `messages` are all parts, `messages_ready` the waiting ones, `messages_unacknowledged`
        those in flight. The last, and parts that wait in Postgres, are missing while Postgres is unavailable. Raises
        `redis.RedisError`.
        """
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[dict[str, Any]]:
        with connect(self._redis_url) as redis:
            waiting, running = count_waiting(redis), Counter[str]()
        with outage_suppressed(), open_for_questions(self._database_url).connect() as connection:
            for left in left_in_postgres(connection):
                waiting[queue_name(left.stage, left.lane)] += left.parts
            running = count_running(connection)
        rows = []
        for stage in Stage:
            for name in (*(queue_name(stage, lane) for lane in Lane), quarantine := quarantine_name(stage)):
                ready, held = waiting[name], running[name]
                if ready or held or name != quarantine:
                    rows.append(
                        {
                            "name": name,
                            "messages": ready + held,
                            "messages_ready": ready,
                            "messages_unacknowledged": held,
                            "consumers": None if name == quarantine else self._consumers.get(name, 0),
                        }
                    )
        return rows


_ENDS = ("task-succeeded", "task-failed", "task-revoked")
_OF_THE_END = ("succeeded", "failed", "retried", "revoked", "runtime", "result", "exception", "traceback")


class PartsState(EventsState):
    """Flower's state, which also handles requeued and repeated parts, and the runtime of failed ones."""

    def event(self, event: dict[str, Any]) -> None:
        """Process one event."""
        task = self.tasks.data.get(event.get("uuid"))
        if task:
            ended = max(moment or 0.0 for moment in (task.succeeded, task.failed, task.revoked))
            # Not as soon as it begins again: until then its message may be a repetition, which is not run.
            if event["type"] in _ENDS and task.ready and task.started and task.started > ended:
                task.state = states.RECEIVED  # by Celery's order no event could follow an end
                for field in _OF_THE_END:
                    setattr(task, field, None)
            if event["type"] == "task-rejected" and not task.ready:
                task.state = states.REJECTED  # requeued: by Celery's order that could not follow a start
            if event["type"] in ("task-failed", "task-retried") and task.started:
                event = {"runtime": max(0.0, event["timestamp"] - task.started)} | event
        super().event(event)


_LOOK_ONLY = (
    "Parts are not revoked here: PECIA_REMOTE_CONTROL=revoke, set for Flower and the workers, would allow it."
    " `pecia cancel JOB` ends a job without it."
)
_WORKERS_REFUSE = (
    "Nothing was revoked: no worker allows it. Set PECIA_REMOTE_CONTROL=revoke for the workers too."
)
_NO_WORKER = "Nothing was revoked: no worker answered."


class _OfTheFleet(BaseHandler):
    application: Any

    def prepare(self) -> None:
        """Refuse a request without the password."""
        super().prepare()
        if not self.current_user:
            raise HTTPError(401)

    @property
    def fleet(self) -> FleetApp:
        return self.application.capp  # type: ignore[no-any-return]

    @property
    def can_revoke(self) -> bool:
        return self.fleet.settings.remote_control == "revoke"


class _OfLanes(_OfTheFleet):
    def prepare(self) -> Any:
        """Ask the workers for their queues first, as new ones may have started; awaited by Tornado."""
        super().prepare()
        return self.application.update_workers()

    def get_broker(self) -> Any:
        """Return the `Lanes`, from which Flower gets its queues."""
        alive = {worker.hostname for worker in self.application.events.state.alive_workers()}
        consumers = Counter(
            queue["name"]
            for name, found in self.application.workers.items()
            if name in alive
            for queue in found.get("active_queues", [])
        )
        return Lanes(self.fleet.settings, consumers)


class BrokerPage(_OfLanes, BrokerView):
    """Every lane of every stage: parts waiting, parts in flight, the workers that serve it."""


class QueueLengths(_OfLanes, GetQueueLengths):
    """The lengths of lanes as JSON."""


class WorkerPage(_OfTheFleet, WorkerView):
    """The current state of a worker: its pool, its parts in flight."""

    def prepare(self) -> None:
        """Drop earlier data of the worker, which Flower would show."""
        super().prepare()
        self.application.workers.pop(self.path_args[0], None)


class TaskPage(_OfTheFleet, TaskView):
    """A part, with a button to revoke it where that is allowed."""

    def render(self, template_name: str, **values: Any) -> None:
        """Render the page with the button, which workers' pages do not have."""
        if "read_only" in values:
            values["read_only"] = not self.can_revoke
        super().render(template_name, **values)


class Revoke(_OfTheFleet, ControlHandler):
    """Revokes a part, or reports why not."""

    async def post(self, part: str) -> None:
        """Send the revocation to all workers, and report their answers."""
        if not self.can_revoke:
            raise HTTPError(403, _LOOK_ONLY)
        replies = await self.run_blocking(
            "task.revoke",
            part,
            self.fleet.control.revoke,
            part,
            terminate=self.get_argument("terminate", default=False, type=bool),
            reply=True,
            timeout=self.application.inspector.timeout,
        )
        answers = [answer for reply in replies or () for answer in reply.values()]
        if not answers:
            raise HTTPError(503, _NO_WORKER)
        if not any("ok" in answer for answer in answers):
            raise HTTPError(403, _WORKERS_REFUSE)
        self.write({"message": f"Revoked '{part}'"})


class PrivateMetrics(_OfTheFleet, Metrics):
    """Flower's own metrics, behind the password like everything else: they name the workers."""


OURS: dict[type[BaseHandler], type[BaseHandler]] = {
    BrokerView: BrokerPage,
    GetQueueLengths: QueueLengths,
    WorkerView: WorkerPage,
    TaskView: TaskPage,
    TaskRevoke: Revoke,
    Metrics: PrivateMetrics,
}
"""Our pages by the Flower page that each replaces."""


class FleetPage(Flower):
    """Flower, with some of its pages replaced by ours."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(capp=app, options=options, **settings)
        self.events.state = PartsState(
            max_tasks_in_memory=options.max_tasks, max_workers_in_memory=options.max_workers
        )
        if options.url_prefix:  # where Flower knows only what ends in a slash
            bare = f"/{options.url_prefix}"
            self.add_handlers(".*", [(bare, RedirectHandler, {"url": f"{bare}/", "permanent": False})])

    def get_handler_delegate(self, request: Any, target_class: Any, *args: Any, **kwargs: Any) -> Any:
        """Route a request to our page, if one replaces Flower's."""
        page: Any = OURS.get(target_class, target_class)
        return super().get_handler_delegate(request, page, *args, **kwargs)


def run_flower(settings: WorkerSettings) -> None:
    """Serve Flower until SIGTERM or Ctrl-C. Raises `OSError` if the address or port is not available."""
    app.use(settings)
    options.address = settings.flower_address
    options.port = settings.flower_port
    options.basic_auth = [f"{settings.flower_user}:{settings.flower_password.get_secret_value()}"]
    options.url_prefix = settings.flower_url_prefix.strip("/")
    options.max_tasks = settings.flower_max_tasks
    options.purge_offline_workers = _OFFLINE_S
    options.read_only = True
    options.tasks_columns = "name,uuid,state,kwargs,received,runtime,worker,result"
    extract_settings()
    logging.getLogger("tornado.access").disabled = True
    page = FleetPage(**page_settings)
    port = page.start_http_server()
    log.info("flower", address=settings.flower_address, port=port)
    loop: Any = page.io_loop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.asyncio_loop.add_signal_handler(number, page.stop)
    page.start()
