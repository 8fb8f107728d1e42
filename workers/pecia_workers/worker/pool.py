"""Celery's worker pool for parts: one asyncio loop in a thread, as many parts in flight as the engine can hold.

Two threads. The hub thread is Celery's: it claims, hands parts over and reports their ends to Celery. The loop thread
is the runtime's. Parts and ends cross between them in groups, with one wake-up a group.
"""

import asyncio
import concurrent.futures
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.signals import task_revoked
from celery.worker import state
from redis import RedisError

from pecia_workers.protocol.base import Budget, EngineUnavailableError
from pecia_workers.queue.transport import Capacity, kick
from pecia_workers.worker.runner import CANCELLED, Ending, Interruption, PartInFlight, PartRunner

_log = logging.getLogger(__name__)

_SHUTDOWN_EVERY_S = 0.2
_PUT_BACK_AGAIN_S = 0.2
_PUMP_S = 0.01
_GATHER_S = 0.02
"""How long ended parts are gathered before the hub is notified; parts claimed ahead keep the engine busy meanwhile."""
_PUT_BACK_S = 5.0


class EnginePool(BasePool):  # type: ignore[misc]
    """Keeps parts in flight; its free capacity limits claims from the queue."""

    signal_safe = False
    task_join_will_block = False
    app: Any

    _hub: Any = None
    _broken = False
    _stopped = False

    def on_start(self) -> None:
        """Start the runtime, wait until it is ready, then open the gate. Exits if the runtime does not start."""
        self._settings, self._keeper = self.app.settings, self.app.keeper
        self._jobs: dict[UUID, PartInFlight] = {}
        self._tokens = 0
        self._suspects = 0
        self._arrived: list[PartInFlight] = []
        self._begun: deque[tuple[PartInFlight, Mapping[str, Any]]] = deque()
        """Parts claimed in Postgres."""
        self._ended: deque[tuple[PartInFlight, Ending]] = deque()
        self._priced: deque[tuple[UUID, int]] = deque()
        """Actual cost of parts; claims used their estimated cost."""
        self._woken = False
        self._runtime = self.app.new_runtime()
        self._runner = PartRunner(
            runtime=self._runtime,
            submitted=self._wake_hub,
            begun=partial(self._note, self._begun),
            notify=partial(self._note, self._ended),
            fatal=self.fatal,
            priced=partial(self._note, self._priced),
        )
        budget, settings = self._start_runtime(), self._settings
        self._budget = Budget(
            slots=min(budget.slots, settings.max_in_flight or budget.slots),
            tokens=min(
                (limit for limit in (budget.tokens, settings.max_tokens_in_flight) if limit), default=None
            ),
        )
        self.limit = self._budget.slots
        self._keeper.worker = self._runtime.name
        self._keeper.reached_at = time.monotonic()  # Celery is about to connect
        self._keeper.gate = self
        task_revoked.connect(self._on_revoked)

    def _start_runtime(self) -> Budget:
        ready = self._runner.start()
        try:
            while not concurrent.futures.wait([ready], timeout=_SHUTDOWN_EVERY_S).done:
                state.maybe_shutdown()
            return ready.result()
        except Exception as error:
            _log.critical("the worker cannot start: %s: %s", type(error).__name__, error)
            is_unable = isinstance(error, EngineUnavailableError)
            raise WorkerShutdown(os.EX_CONFIG if is_unable else EX_FAILURE) from error
        finally:
            if not ready.done() or ready.exception():
                ready.cancel()
                self._runner.stop()

    def register_with_event_loop(self, loop: Any) -> None:
        """Keep the hub: kombu drops it when a connection breaks, and wake-ups would be lost."""
        self._hub = loop
        self._woken = True
        loop.call_soon(self._collect)

    def capacity(self) -> Capacity:
        """Return the capacity for claims: none beside a suspect, or once a signal asked the worker to stop."""
        budget, share = self._budget, self._runtime.room
        closing = self._state != self.RUN or _is_set(state.should_stop) or _is_set(state.should_terminate)
        closed = closing or self._suspects or not share
        slots = 0 if closed else max(1, math.floor(budget.slots * share)) - len(self._jobs)
        tokens = budget.tokens and max(0, max(1, math.floor(budget.tokens * share)) - self._tokens)
        return Capacity(slots=max(0, slots), tokens=tokens, idle=not self._jobs)

    def on_apply(  # pyright: ignore[reportIncompatibleMethodOverride]  the base class has no types
        self,
        target: Callable[..., Any],  # noqa: ARG002  the runtime runs the part, not Celery's tracer
        args: Sequence[Any] = (),
        kwargs: Any = None,  # noqa: ARG002
        *,
        callback: Callable[[Any], None],
        accept_callback: Any,
        timeout_callback: Callable[[bool, float], None],
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **_options: Any,
    ) -> PartInFlight:
        """Accept a part, of whose `PartRequest` the callbacks are methods; it begins when `dispatch` is called."""
        started = time.monotonic()
        headers, soft_s = args[2], soft_timeout or self.options.get("soft_timeout")
        limits = [limit for limit in (soft_s, timeout or self.options.get("timeout")) if limit]
        job = PartInFlight(
            part=UUID(headers["id"]),
            cost=headers["x-cost"],
            deaths=headers["x-deliveries"] - 1,
            begun=accept_callback.__self__.begun,
            callback=callback,
            timeout_callback=timeout_callback,
            limit_s=min(limits, default=None),
            soft=bool(limits) and min(limits) == soft_s,
            started=started,
        )
        job.former = self._jobs.get(job.part)
        self._jobs[job.part] = job
        self._tokens += job.cost
        self._suspects += job.deaths > 0
        self._arrived.append(job)
        accept_callback(os.getpid(), started)
        return job

    def dispatch(self) -> None:
        """Hand the arrived parts to the loop, with one wake-up."""
        arrived, self._arrived = self._arrived, []
        if arrived:
            self._runner.submit(arrived)

    def _wake_hub(self) -> None:
        """Wake the hub so that it sends a claim's events: callbacks added on the hub's own thread do not wake it."""
        if self._hub:
            self._hub.call_soon(self._run_ready)

    def _note(self, noted: deque[Any], *what: Any) -> None:
        """Notify the hub thread. Called on the loop thread, which must not touch Celery."""
        noted.append(what)
        if not self._woken and self._hub:
            self._woken = True
            asyncio.get_running_loop().call_later(_GATHER_S, lambda: self._hub.call_soon(self._collect))

    def _collect(self) -> None:
        """Report ended parts to Celery; then put back the requeued ones, and claim into the freed capacity."""
        self._woken = False
        while self._priced:
            part, tokens = self._priced.popleft()
            if job := self._jobs.get(part):
                self._tokens += tokens - job.cost
                job.cost = tokens
        self._finish_all()
        self._run_ready()
        with suppress(RedisError):  # Celery's own poll will find out, and reconnect
            kick()

    def _finish_all(self) -> None:
        while self._begun:
            job, about = self._begun.popleft()
            job.begun({**about, "cost": job.cost})
        while self._ended:
            job, ending = self._ended.popleft()
            try:
                self._finish(job, ending)
            except Exception as error:  # noqa: BLE001  the others must end too
                part, found = str(job.part), type(error).__name__
                _log.error("could not report the end of %s: %s", part, found, extra={"part": part})

    def _finish(self, job: PartInFlight, ending: Ending) -> None:
        self._tokens -= job.cost
        self._suspects -= job.deaths > 0
        if self._jobs.get(job.part) is not job:
            return  # the part has come again, and belongs to the new delivery
        del self._jobs[job.part]
        if ending.timed_out and job.limit_s:
            job.timeout_callback(job.soft, job.limit_s)
        if ending.result and not (ending.timed_out and not job.soft):
            job.callback(ending.result)

    def _run_ready(self) -> None:
        """Run callbacks that Celery scheduled for the hub's next turn: acknowledgements and events, in one group."""
        if self._hub:
            for item in self._hub._pop_ready():  # noqa: SLF001  nothing else runs them once the hub has stopped
                item()

    def _on_revoked(self, *, request: Any, signum: Any = None, **_signal: Any) -> None:
        if signum == CANCELLED:
            return  # Postgres knows: Celery has it from there
        part = UUID(request.id)
        if job := self._jobs.get(part):
            job.interrupt(Interruption.REVOKED)
        self._runner.revoke(part)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: the process id is this process's. Celery terminates the job itself next."""

    def fatal(self, error: Exception) -> None:
        """Requeue all parts and exit non-zero. Callable on any thread."""
        if self._broken:  # each part in flight reports the same loss
            return
        self._broken = True
        _log.critical("the runtime is lost: %s", type(error).__name__)
        state.should_stop = EX_FAILURE
        if self._hub:
            self._hub.call_soon(self._collect)

    def on_stop(self) -> None:
        """Finish parts in flight within the drain timeout, requeue the rest.

        A cold shutdown calls this from the signal handler first, and marks the pool as terminated: what the signal
        interrupted, or `on_terminate`, does the work.
        """
        if _is_set(state.should_terminate) and self._state != self.TERMINATE:
            return
        deadline = time.monotonic() + self._settings.drain_timeout.total_seconds()
        while self._jobs and not self._broken and not _is_set(state.should_terminate):
            if time.monotonic() > deadline:
                break
            self._finish_all()
            self._run_ready()
            with suppress(RedisError):
                self._keeper.put_back()
            time.sleep(_PUMP_S)
        self._close_down()

    def on_terminate(self) -> None:
        """Requeue all parts now."""
        self._close_down()

    def _close_down(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.dispatch()
        left = list(self._jobs.values())
        for job in left:
            job.interrupt(Interruption.STOPPED)
        self._runner.abandon(left)
        self._finish_all()
        for job in list(self._jobs.values()):
            self._finish(job, Ending.requeued(time.monotonic() - job.started))
        self._run_ready()
        deadline = time.monotonic() + _PUT_BACK_S
        while not self._keeper.stop() and time.monotonic() < deadline:
            time.sleep(_PUT_BACK_AGAIN_S)
        task_revoked.disconnect(self._on_revoked)
        self._keeper.gate = None
        self._runner.stop()

    def _get_info(self) -> dict[str, Any]:
        own: dict[str, Any] = super()._get_info()
        return own | {
            "max-tokens": self._budget.tokens,
            "in-flight": len(self._jobs),
            "tokens-in-flight": self._tokens,
            **self._runtime.figures,
        }


def _is_set(flag: Any) -> bool:
    """Whether Celery's shutdown flag is up; it holds an exit status, which may be 0."""
    return flag is not None and flag is not False
