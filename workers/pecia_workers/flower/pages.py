"""Our pages in the place of Flower's: lanes as they are, workers as they are now, revocation that says what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from celery import states
from flower.api.control import ControlHandler, TaskRevoke
from flower.api.tasks import GetQueueLengths
from flower.events import EventsState
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from flower.views.monitor import Metrics
from flower.views.tasks import TaskView
from flower.views.workers import WorkerView
from tornado.web import HTTPError

from pecia_schemas import Lane, Stage
from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.messages import quarantine_name, queue_name
from pecia_workers.ledger.database import open_for_questions
from pecia_workers.ledger.standing import left_in_postgres
from pecia_workers.queue.lists import connect, count_taken, count_waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery.events.state import Task

    from pecia_schemas.settings.base import ConnectionSettings
    from pecia_workers.app import FleetApp


class Lanes:
    """Looks into Redis and Postgres: Flower's own look knows no parts that wait behind a turn, and none in flight."""

    def __init__(self, settings: ConnectionSettings, consumers: Mapping[str, int]) -> None:
        self._redis_url = settings.redis_url.get_secret_value()
        self._database_url = settings.database_url.get_secret_value()
        self._consumers = consumers

    async def queues(self, _names: Iterable[str]) -> list[dict[str, Any]]:
        """Return a row for each lane, whether or not it is served, and for each quarantine that holds something.

        By Flower's names: `messages` are all parts, `messages_ready` those that wait, `messages_unacknowledged` those
        in flight. What waits in Postgres for room in Redis is missing while Postgres is away. Raises
        `redis.RedisError`.
        """
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[dict[str, Any]]:
        with connect(self._redis_url) as redis:
            waiting, taken = count_waiting(redis), count_taken(redis)
        with outage_suppressed(), open_for_questions(self._database_url).connect() as connection:
            for left in left_in_postgres(connection):
                waiting[queue_name(left.stage, left.lane)] += left.parts
        rows = [(name, quarantine, waiting[name], taken[name]) for name, quarantine in _names()]
        return [
            {
                "name": name,
                "messages": ready + held,
                "messages_ready": ready,
                "messages_unacknowledged": held,
                "consumers": None if quarantine else self._consumers.get(name, 0),
            }
            for name, quarantine, ready, held in rows
            if ready or held or not quarantine
        ]


def _names() -> Iterator[tuple[str, bool]]:
    """Yield every list, stage by stage in the order of service, and whether it is a quarantine."""
    for stage in Stage:
        for lane in Lane:
            yield queue_name(stage, lane), False
        yield quarantine_name(stage), True


_ENDS = ("task-succeeded", "task-failed", "task-revoked")


class PartsState(EventsState):
    """Knows that a part may be given back, or run again after it has ended, and how long one took that failed."""

    def event(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        task = self.tasks.data.get(event.get("uuid"))
        if task:
            if _runs_again(task, event):
                _reopen(task)
            if event["type"] == "task-rejected" and not task.ready:
                task.state = states.REJECTED  # given back: by Celery's order that could not follow a start
            if event["type"] in ("task-failed", "task-retried") and task.started:
                event = {"runtime": max(0.0, event["timestamp"] - task.started)} | event
        super().event(event)


def _runs_again(task: Task, event: dict[str, Any]) -> bool:
    """Return whether the part ends anew, after it had ended.

    Not as soon as it begins: until then its message may be a repetition, which is not run and has no end.
    """
    if not task.ready or event["type"] not in _ENDS:
        return False
    ended = max(moment or 0.0 for moment in (task.succeeded, task.failed, task.revoked))
    return bool(task.started and task.started > ended)


def _reopen(task: Task) -> None:
    """Let its next events count: by Celery's order none of them could follow an end."""
    task.state = states.RECEIVED
    for field in ("succeeded", "failed", "retried", "revoked", "runtime", "result", "exception", "traceback"):
        setattr(task, field, None)


_LOOK_ONLY = (
    "Parts are not revoked here: PECIA_REMOTE_CONTROL=revoke, set for Flower and the workers, would allow it."
    " `pecia cancel JOB` ends a whole job without it."
)
_WORKERS_REFUSE = (
    "Nothing was revoked: no worker lets itself be told. Set PECIA_REMOTE_CONTROL=revoke for the workers too."
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
        """Ask the workers first what they serve, for some may have come since: awaited by Tornado."""
        super().prepare()
        return self.application.update_workers()

    def get_broker(self) -> Any:
        """Return what Flower asks for the queues."""
        return Lanes(self.fleet.settings, self._consumers())

    def _consumers(self) -> Counter[str]:
        """Return how many workers that are alive serve each list."""
        alive = {worker.hostname for worker in self.application.events.state.alive_workers()}
        return Counter(
            queue["name"]
            for name, found in self.application.workers.items()
            if name in alive
            for queue in found.get("active_queues", [])
        )


class BrokerPage(_OfLanes, BrokerView):
    """Every lane of every stage: what waits, what is in flight, who serves it."""


class QueueLengths(_OfLanes, GetQueueLengths):
    """The same for programs."""


class WorkerPage(_OfTheFleet, WorkerView):
    """A worker as it is now: its pool, what it has in flight."""

    def prepare(self) -> None:
        """Forget what was seen before: Flower would show that."""
        super().prepare()
        self.application.workers.pop(self.path_args[0], None)


class TaskPage(_OfTheFleet, TaskView):
    """A part, with a button to revoke it where that is allowed."""

    def render(self, template_name: str, **values: Any) -> None:
        """Render with the button, which the pages of workers do not get."""
        if "read_only" in values:
            values["read_only"] = not self.can_revoke
        super().render(template_name, **values)


class Revoke(_OfTheFleet, ControlHandler):
    """Ends a part, or says why not."""

    async def post(self, part: str) -> None:
        """Tell all workers, and then what they answered."""
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
"""By the page of Flower's in whose place each stands."""
