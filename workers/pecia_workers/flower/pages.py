"""Our pages in the place of Flower's: lanes as they are, workers as they are now, revocation that says what it did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from flower.api.control import ControlHandler, TaskRevoke
from flower.api.tasks import GetQueueLengths
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from flower.views.monitor import Metrics
from flower.views.tasks import TaskView
from flower.views.workers import WorkerView
from tornado.web import HTTPError

from pecia_workers.flower.lanes import Lanes

if TYPE_CHECKING:
    from pecia_workers.app import FleetApp

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
