"""The jobs of a fake fleet, how they move, and their callbacks.

Real fleets do this in SQL; `tests/integration/test_client_contract*.py` hold both to one behaviour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from threading import RLock
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import obstore
from obstore.store import MemoryStore
from standardwebhooks import Webhook as Signer

from pecia.arguments import moment
from pecia.errors import DatabaseUnavailableError, PayloadStoreUnavailableError
from pecia.handles import progress
from pecia.records import Batch
from pecia.submission import NewJob, view_of
from pecia.testing.scripts import Content, Rule, Script, ScriptError, outcome_of, script_of
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import JobEvent, JobNotice, NoticeData, NoticePart, NoticeType, Webhook, new_secret
from pecia_schemas.failures import Failure
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore, key_of
from pecia_schemas.results import Summary
from pecia_schemas.states import JobState, Lane, PartState, Stage, new_id
from pecia_schemas.tasks import Task, task_from_json, task_type

T = TypeVar("T")

KEYS = Keyring()
_WORKER = "fake"
_sequence = count(1)


now = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a client has submitted."""

    id: UUID
    """Of its job."""
    task: Task[Any]
    """As it was submitted, with the document's bytes for its source."""
    content: bytes | None = field(repr=False)
    """The document; None if it lies at a URL."""
    priority: Lane
    idempotency_key: str | None
    webhook: Webhook | None
    metadata: Mapping[str, str]
    not_before: datetime | None
    expires: datetime | None
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """One request that a fleet would have posted."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    """What `pecia.webhooks.verify` takes, with the headers and the fleet's `webhook_secret`."""
    notice: JobNotice


@dataclass(slots=True, kw_only=True, eq=False)
class FakePart:
    """A page, a segment, a summary, or the cutting of the document."""

    stage: Stage
    ordinal: int = 0
    id: UUID = field(default_factory=new_id)
    state: PartState = PartState.QUEUED
    attempt: int = 0
    run_at: datetime = field(default_factory=now)
    content: Content | None = None
    failure: Failure | None = None

    @property
    def is_due(self) -> bool:
        """Whether it waits for nothing but a worker."""
        return self.state is PartState.QUEUED and self.run_at <= now()


class FakeJob:
    """A job with its parts, in the order in which they run."""

    def __init__(self, memory: Memory, new: NewJob) -> None:
        row, requested = new.row, new.options
        task = task_from_json(row["kind"], row["task"])
        if isinstance(task.source, PayloadRef):
            task = replace(task, source=bytes(obstore.get(memory.documents, key_of(task.source)).bytes()))
        self.submitted = Submitted(
            id=new.id,
            task=task,
            content=task.source if isinstance(task.source, bytes) else None,
            priority=requested.lane,
            idempotency_key=None if new.key == str(new.id) else new.key,
            webhook=requested.webhook,
            metadata=row["metadata"],
            not_before=moment(requested.not_before, "not_before"),
            expires=moment(requested.expires, "expires"),
            client=requested.client,
        )
        self.view = view_of(new, MappingProxyType(row["metadata"]), now(), KEYS)
        """As a client sees it."""
        run_at = self.submitted.not_before or now()
        self.parts = [FakePart(id=row["part"], stage=row["stage"], run_at=run_at)]
        self.open = list(self.parts)
        """Those that are not over."""
        self.events: list[JobEvent] = []
        self.digest, self.expires_at = new.digests[0], self.submitted.expires
        self.script: Script | None = None
        """What comes of its parts in this run; None: it was not needed yet."""
        self._memory = memory
        self._states: Counter[PartState] = Counter()
        """How many of its pieces have come to a state and not left it."""
        memory.jobs[new.id] = memory.unfinished[new.id] = memory.by_key[new.key] = self
        self.record(f"client:{self.submitted.client}")

    @property
    def pieces(self) -> list[FakePart]:
        """Its pages or segments and its summary: all parts but the ingest."""
        return self.parts[self.parts[0].stage is Stage.INGEST :]

    def age(self, by: timedelta) -> None:
        """Make every moment of it so much earlier."""
        moments = {name: getattr(self.view, name) for name in ("submitted_at", "started_at", "finished_at")}
        self.view = replace(self.view, **{name: at and at - by for name, at in moments.items()})
        self.expires_at = self.expires_at and self.expires_at - by
        for part in self.parts:
            part.run_at -= by
        self.events = [event.model_copy(update={"at": event.at - by}) for event in self.events]

    def record(
        self, actor: str, reason: str | None = None, part: FakePart | None = None, **seen: Any
    ) -> None:
        """Change what is seen of it, and write down the state that it, or a part, is in now."""
        is_ingested = self.parts[0].stage is Stage.INGEST
        is_cut = not is_ingested or self.parts[0].state.is_terminal
        total = len(self.parts) - is_ingested if is_cut else None
        ended = (self._states[state] for state in (PartState.DONE, PartState.FAILED, PartState.CANCELLED))
        self.view = replace(self.view, progress=progress(total, *ended), **seen)
        event = JobEvent(
            sequence=next(_sequence),
            job_id=self.view.id,
            part_id=part and part.id,
            state=str(part.state if part else self.view.state),
            at=now(),
            actor=actor,
            attempt=part and part.attempt,
            reason=reason,
        )
        self.events.append(event)

    def begin(self, part: FakePart) -> None:
        """Begin an attempt at a part."""
        part.attempt, part.failure = part.attempt + 1, None
        if self.view.state is JobState.QUEUED:
            self.record(_WORKER, state=JobState.RUNNING, started_at=self.view.started_at or now())
        self._move(part, PartState.RUNNING)

    def end(self, part: FakePart, script: Script) -> None:
        """End a part as the script says, and the job with its last."""
        planned = {} if isinstance(script, Failure) else script
        if part.stage is Stage.READ and part is self.parts[0] and len(planned) > 1:
            raise ScriptError(f"A picture has one page, and the answer has {len(planned)}.")
        if part.stage is Stage.INGEST and planned:
            stage = task_type(self.view.kind).stage
            pieces = [FakePart(stage=stage, ordinal=ordinal) for ordinal in planned]
            self.parts, self.open = self.parts + pieces, self.open + pieces
            if any(isinstance(outcome, Summary) for outcome in planned.values()):
                self.parts[-1].stage, self.parts[-1].state = Stage.SUMMARIZE, PartState.HELD
            self._move(part, PartState.DONE)
        elif isinstance(outcome := outcome_of(script, part.ordinal), Failure):
            part.failure = outcome.model_copy(update={"attempt": part.attempt})
            self._move(part, PartState.FAILED, reason=outcome.code)
        else:
            part.content = outcome
            self._move(part, PartState.DONE)
            self._notify(NoticeType.PART_DONE, part)
        last, made = self.parts[-1], self.view.progress
        if last.state is PartState.HELD and made.finished + 1 == made.total:  # all segments are over
            if made.done:
                self._move(last, PartState.QUEUED)
            else:
                self._move(last, PartState.CANCELLED, reason="nothing_to_summarize")
        if self.view.progress.finished == self.view.progress.total:
            states = {part.state for part in self.pieces}
            failure = next((part.failure for part in self.parts if part.failure), None)
            if PartState.DONE in states:
                self.close(JobState.SUCCEEDED if len(states) == 1 else JobState.PARTIAL, _WORKER)
            else:
                self.close(JobState.FAILED if failure else JobState.CANCELLED, _WORKER, failure=failure)

    def close(self, state: JobState, actor: str, reason: str | None = None, **seen: Any) -> None:
        """End it with the parts that are open, and send its callback."""
        for part in list(self.open):
            self._move(part, PartState.CANCELLED, actor, reason)
        self.script = None
        self._memory.unfinished.pop(self.view.id, None)
        self.record(actor, reason, state=state, finished_at=now(), **seen)
        self._notify(NoticeType.of(state), None)

    def reopen(self, actor: str) -> None:
        """Queue what failed or was cancelled again, and a summary with the segments that it left out."""
        again = [part for part in self.parts if part.state in (PartState.FAILED, PartState.CANCELLED)]
        if any(part.stage is Stage.CAPTION for part in again):
            again += [part for part in self.parts[-1:] if part.stage is Stage.SUMMARIZE and part not in again]
        self.open = again
        for part in again:
            part.failure = part.content = None
            part.run_at = now()
            is_held = part.stage is Stage.SUMMARIZE and len(again) > 1
            self._move(part, PartState.HELD if is_held else PartState.QUEUED, actor, "retry")
        if self.expires_at is not None and self.expires_at <= now():
            self.expires_at = None
        self._memory.unfinished[self.view.id] = self
        self.record(actor, "retry", state=JobState.QUEUED, failure=None, finished_at=None)

    def _move(
        self, part: FakePart, state: PartState, actor: str = _WORKER, reason: str | None = None
    ) -> None:
        if part.stage is not Stage.INGEST:
            self._states[part.state] -= 1
            self._states[state] += 1
        if state.is_terminal and part in self.open:
            self.open.remove(part)
        part.state = state
        self.record(actor, reason, part)

    def _notify(self, kind: NoticeType, part: FakePart | None) -> None:
        """Send a callback to the job's webhook, if it wants that (`pecia_schemas/moves.py`)."""
        hook, view = self.submitted.webhook, self.view
        if hook is None or kind not in hook.events:
            return
        said = NoticeData(
            job_id=view.id,
            sequence=self.events[-1].sequence,
            kind=view.kind,
            state=view.state,
            lane=view.lane,
            progress=view.progress,
            failure=view.failure and view.failure.code,
            needs_review=sum(bool(one.content and one.content.verdict.needs_review) for one in self.parts),
            metadata=dict(view.metadata),
            part=part
            and NoticePart(id=part.id, stage=part.stage, number=part.ordinal + 1, attempt=part.attempt),
            created_at=view.submitted_at,
            finished_at=view.finished_at,
        )
        notice = JobNotice(type=kind, timestamp=view.finished_at or now(), data=said)
        name, at, text = str(uuid4()), now(), notice.model_dump_json()
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Signer(self._memory.secret).sign(name, at, text),
        }
        self._memory.callbacks.append(
            Callback(url=str(hook.url), headers=headers, body=text.encode(), notice=notice)
        )


class Memory:
    """What Postgres and the payload store hold in a real fleet, which servers are away, and the workers."""

    def __init__(self, *, held: bool) -> None:
        self.held = held  # whether parts begin and end only when the test says so
        self.jobs: dict[UUID, FakeJob] = {}  # in the order in which they were submitted
        self.unfinished: dict[UUID, FakeJob] = {}
        self.by_key: dict[str, FakeJob] = {}
        self.batches: list[Batch] = []
        self.rules: list[Rule] = []
        self.callbacks: list[Callback] = []
        self.secret = new_secret()
        self.away: Counter[str] = Counter()  # how many outages of each service there are at this moment
        self.lock = RLock()
        self.documents = MemoryStore()
        self._in_answer = False

    def transaction(self, work: Callable[..., T], /, *args: Any, **options: Any) -> T:
        """Return what the work returns; what is due is done before and after it."""
        with self.lock:
            if self.away["postgres"]:
                raise DatabaseUnavailableError("Postgres does not answer: the test took it away.")
            self.settle()
            done = work(*args, **options)
            self.settle()
            return done

    @property
    def payloads(self) -> PayloadStore:
        """The documents. Raises `PayloadStoreUnavailableError` in an outage."""
        if self.away["payloads"]:
            raise PayloadStoreUnavailableError("The payload store does not answer: the test took it away.")
        return PayloadStore(self.documents, None, KEYS)

    def settle(self) -> None:
        """End jobs whose time is over, and run the parts that are due, unless they are held or no worker is there."""
        with self.lock:
            if self._in_answer or self.away["postgres"]:
                return
            stands_still = self.held or self.away["workers"] or self.away["redis"]
            for job in self._open():
                if job.expires_at is not None and job.expires_at <= now():
                    job.close(JobState.EXPIRED, "upkeep", "expired")
                while not stands_still and self.step(job.view.id):
                    pass

    def step(self, job_id: UUID | None = None) -> bool:
        """End the first part that runs, else run the first that is due; False if there is neither."""
        with self.lock:
            if found := self._first(PartState.RUNNING, job_id) or self.begin(job_id):
                job, part = found
                if job.script is None:
                    self._in_answer = (
                        True  # the test's own answer may use a client, and nothing moves meanwhile
                    )
                    try:
                        job.script = script_of(self.rules, job.submitted.task)
                    finally:
                        self._in_answer = False
                job.end(part, job.script)
            return found is not None

    def begin(self, job_id: UUID | None) -> tuple[FakeJob, FakePart] | None:
        """Begin the first part that is due and return it; None if there is none."""
        with self.lock:
            if found := self._first(PartState.QUEUED, job_id):
                job, part = found
                job.begin(part)
            return found

    def _open(self) -> list[FakeJob]:
        """Return the jobs that are not over in the order in which they run."""
        return sorted(self.unfinished.values(), key=lambda job: job.view.lane.rank)

    def _first(self, state: PartState, job_id: UUID | None) -> tuple[FakeJob, FakePart] | None:
        """Return the first part in this state whose time has come, of this job or of any."""
        jobs = self._open() if job_id is None else [self.jobs[job_id]] if job_id in self.unfinished else []
        parts = ((job, part) for job in jobs for part in job.open)
        return next((found for found in parts if found[1].state is state and found[1].run_at <= now()), None)
