"""A job of a fake fleet, and how it moves: the rules of the real fleet's SQL, once more over objects.

`tests/integration/test_client_contract*.py` hold both to one behaviour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from standardwebhooks import Webhook as Signer

from pecia.handles import JobView, progress
from pecia.testing.scripts import Content, Script
from pecia_schemas.events import JobEvent, JobNotice, NoticeData, NoticePart, NoticeType, Webhook
from pecia_schemas.failures import Failure
from pecia_schemas.results import Summary
from pecia_schemas.states import JobState, Lane, PartState, Stage, new_id
from pecia_schemas.tasks import Task, task_type

_WORKER = "fake"
_sequence = count(1)


def now() -> datetime:
    """Return the time of the fleet, which is that of the machine."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a client has handed over."""

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
    """What it says."""


@dataclass(slots=True, kw_only=True, eq=False)
class FakePart:
    """A page, a segment, a summary, or the cutting of the document."""

    stage: Stage
    ordinal: int = 0
    id: UUID = field(default_factory=new_id)
    state: PartState = PartState.QUEUED
    attempt: int = 0
    run_at: datetime = field(default_factory=now)
    ends_at: datetime | None = None
    """When the attempt that runs is over by itself."""
    content: Content | None = None
    failure: Failure | None = None

    @property
    def is_due(self) -> bool:
        """Whether it waits for nothing but a worker."""
        return self.state is PartState.QUEUED and self.run_at <= now()


@dataclass(slots=True, kw_only=True, eq=False)
class FakeJob:
    """A job with its parts, in the order in which they run."""

    view: JobView
    """As a client sees it."""
    submitted: Submitted
    digest: str
    """Of its task."""
    size: tuple[int, int] | None
    """Width and height in pixels, if it is a picture that was measured when it was submitted."""
    expires_at: datetime | None
    parts: list[FakePart]
    notify: Callable[[NoticeType, FakeJob, FakePart | None], None]
    states: Counter[PartState] = field(default_factory=Counter)
    """In which pages, segments and summaries are, of those that have moved."""
    events: list[JobEvent] = field(default_factory=list)
    script: Script | None = None
    """What comes of its parts in this run; None: it was not needed yet."""

    @property
    def pieces(self) -> list[FakePart]:
        """Its pages or segments and its summary: all parts but the ingest."""
        return [part for part in self.parts if part.stage is not Stage.INGEST]

    @property
    def _total(self) -> int | None:
        """Return how many pieces it has; None until the document is cut, which is the first of its parts then."""
        if self.parts[0].stage is not Stage.INGEST:
            return len(self.parts)
        return len(self.parts) - 1 if self.parts[0].state.is_terminal else None

    def age(self, by: timedelta) -> None:
        """Make every moment of it so much earlier."""
        self.view = replace(self.view, **_moments(self.view, by))
        for record in (self, *self.parts):
            for name, moment in _moments(record, by).items():
                setattr(record, name, moment)
        self.events = [event.model_copy(update={"at": event.at - by}) for event in self.events]

    def tell(self, actor: str, reason: str | None = None, part: FakePart | None = None, **seen: Any) -> None:
        """Change what is seen of it, and write down the state that it, or a part, is in now."""
        ended = (self.states[state] for state in (PartState.DONE, PartState.FAILED, PartState.CANCELLED))
        self.view = replace(self.view, progress=progress(self._total, *ended), **seen)
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

    def begin(self, part: FakePart, ends_at: datetime | None) -> None:
        """Begin an attempt at a part."""
        part.attempt, part.failure, part.ends_at = part.attempt + 1, None, ends_at
        if self.view.state is JobState.QUEUED:
            self.tell(_WORKER, state=JobState.RUNNING, started_at=self.view.started_at or now())
        self._move(part, PartState.RUNNING)

    def end(self, part: FakePart, script: Script) -> None:
        """End a part as the script says, and the job with its last."""
        is_cut = part.stage is Stage.INGEST and script.failure is None
        outcome = None if is_cut else script.outcome(part.ordinal)
        if isinstance(outcome, Failure):
            part.failure = outcome.model_copy(update={"attempt": part.attempt})
            self._move(part, PartState.FAILED, reason=outcome.code)
        else:
            part.content = outcome
            self.parts += self._cut(script) if is_cut else ()
            self._move(part, PartState.DONE)
            if not is_cut:
                self.notify(NoticeType.PART_DONE, self, part)
        self._release_summary()
        if self.view.progress.finished == self.view.progress.total:
            self._finish()

    def close(self, state: JobState, actor: str, reason: str | None = None, **seen: Any) -> None:
        """End it with the parts that are open, and send its callback."""
        for part in self.parts:
            if not part.state.is_terminal:
                self._move(part, PartState.CANCELLED, actor, reason)
        self.script = None
        self.tell(actor, reason, state=state, finished_at=now(), **seen)
        self.notify(NoticeType.of(state), self, None)

    def reopen(self, chosen: Collection[UUID] | None, actor: str) -> bool:
        """Queue what failed or was cancelled again, or what was chosen of it; False if there is nothing."""
        ended = (PartState.FAILED, PartState.CANCELLED)
        again = {part for part in self.parts if part.state in ended and (chosen is None or part.id in chosen)}
        segments = any(part.stage is Stage.CAPTION for part in again)
        for part in self.parts:
            anew = segments and part.stage is Stage.SUMMARIZE  # the former left them out
            if part in again or anew:
                part.failure = part.content = None
                part.run_at = now()
                self._move(part, PartState.HELD if anew else PartState.QUEUED, actor, "retry")
        if again:
            if self.expires_at is not None and self.expires_at <= now():
                self.expires_at = None
            self.tell(actor, "retry", state=JobState.QUEUED, failure=None, finished_at=None)
        return bool(again)

    def _cut(self, script: Script) -> list[FakePart]:
        """Return the pages or segments of a document, and the summary, held until the segments are over."""
        stage = task_type(self.view.kind).stage
        parts = [FakePart(stage=stage, ordinal=ordinal) for ordinal in script.parts]
        if isinstance(script.parts[parts[-1].ordinal], Summary):
            parts[-1].stage, parts[-1].state = Stage.SUMMARIZE, PartState.HELD
        return parts

    def _release_summary(self) -> None:
        """Let a summary run once all segments are over, or end it if none has a caption."""
        summary, made = self.parts[-1], self.view.progress
        if summary.state is not PartState.HELD or made.finished + 1 != made.total:
            return
        if made.done:
            summary.run_at = now()
            self._move(summary, PartState.QUEUED)
        else:
            self._move(summary, PartState.CANCELLED, reason="nothing_to_summarize")

    def _finish(self) -> None:
        states = {part.state for part in self.pieces or self.parts}
        failures = [part.failure for part in self.parts if part.failure]
        if PartState.DONE in states:
            self.close(JobState.SUCCEEDED if len(states) == 1 else JobState.PARTIAL, _WORKER)
        elif failures:
            self.close(JobState.FAILED, _WORKER, failure=failures[0])
        else:
            self.close(JobState.CANCELLED, _WORKER)

    def _move(
        self, part: FakePart, state: PartState, actor: str = _WORKER, reason: str | None = None
    ) -> None:
        if part.stage is not Stage.INGEST:
            self.states.subtract([part.state])
            self.states.update([state])
        part.state = state
        self.tell(actor, reason, part)


def _moments(record: Any, by: timedelta) -> dict[str, Any]:
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: value - by for name, value in values.items() if isinstance(value, datetime)}


def callback(kind: NoticeType, job: FakeJob, part: FakePart | None, secret: str) -> Callback | None:
    """Return what the job's webhook is told; None if it does not want to know (`pecia_schemas/moves.py`)."""
    hook, view = job.submitted.webhook, job.view
    if hook is None or kind not in hook.events:
        return None
    said = NoticeData(
        job_id=view.id,
        sequence=job.events[-1].sequence,
        kind=view.kind,
        state=view.state,
        lane=view.lane,
        progress=view.progress,
        failure=view.failure and view.failure.code,
        needs_review=sum(bool(one.content and one.content.verdict.needs_review) for one in job.parts),
        metadata=dict(view.metadata),
        part=part and NoticePart(id=part.id, stage=part.stage, number=part.ordinal + 1, attempt=part.attempt),
        created_at=view.submitted_at,
        finished_at=view.finished_at,
    )
    notice = JobNotice(type=kind, timestamp=view.finished_at or now(), data=said)
    name, at, text = str(uuid4()), now(), notice.model_dump_json()
    headers = {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(secret).sign(name, at, text),
    }
    return Callback(url=str(hook.url), headers=headers, body=text.encode(), notice=notice)
