"""Jobs of a fake fleet: their scripted answers, state changes and notices.

Real fleets do this in SQL; `tests/integration/test_client_contract*.py` check that both behave alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from standardwebhooks import Webhook as Signer

from pecia.handles import JobView, progress
from pecia.request import moment
from pecia.submission import NewJob, view_of
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Cut, CutSign, DocumentKind, DocumentPart, Split
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import JobEvent, JobNotice, NoticeData, NoticePart, NoticeType, Webhook
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import PageRanges, PayloadRef
from pecia_schemas.results import Captions, Document, Page, Segment, Summary, Verdict
from pecia_schemas.states import AWAITED, JobState, Lane, PartState, Stage, new_id
from pecia_schemas.tasks import (
    CaptionVideo,
    ReadBundle,
    ReadDocument,
    ReadPages,
    Task,
    task_from_json,
    task_type,
)

_ENGINE = "fake"
_SEGMENT = timedelta(seconds=10)
_DEFAULT_ANSWERS: dict[Any, str] = {
    ReadDocument: "fake text",
    ReadBundle: "fake text",
    CaptionVideo: "fake caption",
}

Content = Page | Segment | Summary | Split

Piece = str | Page | Segment | Failure | FailureCode
"""Outcome of a page or segment: its text, its complete result, or its failure."""

Answer = str | Sequence[Piece] | Document | Captions | Failure | FailureCode
"""Outcome of a job: the text of its one page, its pages or segments, its complete result, or its failure."""


Script = Failure | Mapping[int, Content | Failure]
"""Outcome of a job by part: pages or segments, then a summary or split, by ordinal; or the failure of the job."""


class ScriptError(AssertionError):
    """The scripted answer does not fit the submitted task."""


@dataclass(slots=True, kw_only=True)
class Rule:
    """The arguments of one call of `FakeFleet.answers` or `fails`."""

    task: type[Task[Any]]
    answer: Answer | Callable[[Any], Answer]
    summary: str | None = None
    fields: Mapping[str, Any] | None = None
    left: int | None = None
    """Number of further jobs to which the rule applies; None for all."""


def script_of(rules: Sequence[Rule], task: Task[Any]) -> Script:
    """Return the script of a task. Of the rules that match, the last applies.

    If the task requests pages, they are selected from the answer's pages; a `Document` is returned unchanged. Raises
    `ScriptError` if the answer is invalid.
    """
    fitting = [rule for rule in rules if rule.task is type(task) and rule.left != 0]
    rule = fitting[-1] if fitting else Rule(task=type(task), answer=_DEFAULT_ANSWERS[type(task)])
    if rule.left:
        rule.left -= 1
    answer = rule.answer(task) if callable(rule.answer) else rule.answer
    if isinstance(answer, (Failure, FailureCode)):
        return _failure(answer)
    pieces = _pieces(answer, task)
    last: Content | None = answer.summary if isinstance(answer, Captions) else None
    fields = None
    if isinstance(task, ReadPages):
        fields = None if task.fields is None else rule.fields
        ranges = PageRanges.parse(task.pages) if task.pages and not isinstance(answer, Document) else None
        if ranges and isinstance(answer, str):
            pieces = dict.fromkeys(ranges.indices(ranges.last or ranges.ranges[-1][0]), answer)
        elif ranges and ranges.missing_from(len(pieces)) is not None:
            return Failure.of(FailureCode.NO_SUCH_PAGE)
        elif ranges:
            pieces = {number: pieces[number] for number in ranges.indices(len(pieces))}
    parts = {number: _part(number, piece, task, fields) for number, piece in pieces.items()}
    if isinstance(task, CaptionVideo) and not isinstance(answer, Captions) and len(parts) > 1:
        text = rule.summary or " ".join(one.text for one in parts.values() if isinstance(one, Segment))
        last = Summary(text=text, verdict=Verdict.OK, engine=_ENGINE)
    if isinstance(task, ReadBundle) and parts:
        last = (answer.split if isinstance(answer, Bundle) else None) or _one_document(parts)
    return parts | ({max(parts) + 1: last} if last else {})


def _one_document(pages: Mapping[int, Content | Failure]) -> Split:
    """Return all pages of a bundle as one document."""
    first, *_ = numbers = tuple(number + 1 for number in pages)
    cut = Cut(page=first, probability=1, signs=(CutSign.FIRST,))
    kind = DocumentKind.OTHER
    return Split(documents=(DocumentPart(number=1, pages=numbers, cut=cut, kind=kind, kind_probability=1),))


def outcome_of(script: Script, ordinal: int) -> Content | Failure:
    """Return the outcome of one part. Raises `ScriptError` if the script lacks it."""
    if isinstance(script, Failure):
        return script
    if ordinal not in script:
        raise ScriptError(f"The answer lacks part {ordinal + 1}, which the job had when it was cut.")
    return script[ordinal]


def _failure(why: Failure | FailureCode) -> Failure:
    return Failure.of(why) if isinstance(why, FailureCode) else why


def _pieces(answer: Any, task: Task[Any]) -> dict[int, Piece]:
    """Return the outcome of each page or segment, by its index from 0."""
    if isinstance(answer, task.result_type) and isinstance(answer, (Document, Captions)):
        done: Sequence[Page | Segment] = answer.pages if isinstance(answer, Document) else answer.segments
        missing = {one.number - 1: one.failure for one in answer.failed}
        return dict(sorted({**{one.number - 1: one for one in done}, **missing}.items()))
    listed = [answer] if isinstance(answer, (str, Page, Segment)) else answer
    if not isinstance(listed, Sequence) or not listed:
        answered = "Nothing" if answer is None or listed == [] else f"A {type(answer).__name__}"
        raise ScriptError(
            f"{answered} is not an answer to a {type(task).__name__}: use `fails` for failures."
        )
    return dict(enumerate(listed))


def _part(number: int, piece: Any, task: Task[Any], fields: Mapping[str, Any] | None) -> Content | Failure:
    made: type[Page | Segment] = Page if isinstance(task, ReadPages) else Segment
    if isinstance(piece, made):
        return piece.model_copy(update={"number": number + 1})
    if isinstance(piece, (Failure, FailureCode)):
        return _failure(piece)
    if not isinstance(piece, str):
        raise ScriptError(f"A {type(piece).__name__} is not a page or segment of this task.")
    shared: dict[str, Any] = {"number": number + 1, "engine": _ENGINE}
    if made is Segment:
        shared |= {"start": number * _SEGMENT, "end": (number + 1) * _SEGMENT}
        return Segment(**shared, width=1280, height=720, frames=8, text=piece, verdict=Verdict.OK)
    verdict = Verdict.OK if piece.strip() else Verdict.BLANK
    shared |= {"width": 1240, "height": 1754, "verdict": verdict, "blank": verdict is Verdict.BLANK}
    return Page(**shared, blocks=plain_blocks(piece), fields=None if fields is None else dict(fields))


KEYS = Keyring()
_WORKER = "fake"
_sequence = count(1)

now = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A submitted task with its options."""

    id: UUID
    """Id of the job."""
    task: Task[Any]
    """The submitted task, with the document's bytes as its source."""
    content: bytes | None = field(repr=False)
    """The document, or None for a URL."""
    priority: Lane
    idempotency_key: str | None
    webhook: Webhook | None
    metadata: Mapping[str, str]
    not_before: datetime | None
    expires: datetime | None
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """One request that a real fleet would post."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    """Body for `pecia.webhooks.verify`, with the headers and the fleet's `webhook_secret`."""
    notice: JobNotice


def signed(url: str, notice: JobNotice, secret: str) -> Callback:
    """Return a notice as a fleet with this secret would post it."""
    name, at, text = str(uuid4()), now(), notice.model_dump_json()
    headers = {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(secret).sign(name, at, text),
    }
    return Callback(url=url, headers=headers, body=text.encode(), notice=notice)


@dataclass(slots=True, kw_only=True, eq=False)
class FakePart:
    """A page, a segment, a summary, a split, or the ingest part that cuts the document."""

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
        """Whether the part only waits for a worker."""
        return self.state is PartState.QUEUED and self.run_at <= now()


class FakeJob:
    """A job with its parts, in the order in which they run."""

    def __init__(
        self, new: NewJob, document: Callable[[PayloadRef], bytes], send: Callable[[str, JobNotice], None]
    ) -> None:
        row, options = new.row, new.options
        task = task_from_json(row["kind"], row["task"])
        if isinstance(task.source, PayloadRef):
            task = replace(task, source=document(task.source))
        self.submitted = Submitted(
            id=new.id,
            task=task,
            content=task.source if isinstance(task.source, bytes) else None,
            priority=options.priority,
            idempotency_key=None if new.key == str(new.id) else new.key,
            webhook=options.webhook,
            metadata=row["metadata"],
            not_before=moment(options.not_before, "not_before"),
            expires=moment(options.expires, "expires"),
            client=options.client,
        )
        self._view = view_of(new, now())
        run_at = self.submitted.not_before or now()
        self.parts = [FakePart(id=row["part"], stage=row["stage"], run_at=run_at)]
        self.open = list(self.parts)
        """Parts that have not ended, kept separately so that a step costs the same in a long document."""
        self.events: list[JobEvent] = []
        self.digest, self.expires_at = row["digest"], self.submitted.expires
        self.script: Script | None = None
        """The script of this run; None until it is needed."""
        self._send = send
        self.record(f"client:{options.client}")

    @property
    def view(self) -> JobView:
        """The job as a client sees it."""
        counts = Counter(part.state for part in self.pieces)
        total = len(self.pieces) if self.pieces or self.parts[0].state.is_terminal else None
        ended = (counts[state] for state in (PartState.DONE, PartState.FAILED, PartState.CANCELLED))
        return replace(self._view, progress=progress(total, *ended))

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, so that only a retry can change it."""
        return self._view.state.is_terminal

    @property
    def pieces(self) -> list[FakePart]:
        """The job's pages or segments and its summary: all parts but the ingest."""
        return self.parts[self.parts[0].stage is Stage.INGEST :]

    def age(self, by: timedelta) -> None:
        """Move all times of the job back by this duration."""
        moments = {name: getattr(self._view, name) for name in ("submitted_at", "started_at", "finished_at")}
        self._view = replace(self._view, **{name: at and at - by for name, at in moments.items()})
        self.expires_at = self.expires_at and self.expires_at - by
        for part in self.parts:
            part.run_at -= by
        self.events = [event.model_copy(update={"at": event.at - by}) for event in self.events]

    def record(
        self, actor: str, reason: str | None = None, part: FakePart | None = None, **seen: Any
    ) -> None:
        """Change the job's visible state, and record an event with the state of the job or of a part."""
        self._view = replace(self._view, **seen)
        event = JobEvent(
            sequence=next(_sequence),
            job_id=self._view.id,
            part_id=part and part.id,
            state=str(part.state if part else self._view.state),
            at=now(),
            actor=actor,
            attempt=part and part.attempt,
            reason=reason,
        )
        self.events.append(event)

    def begin(self, part: FakePart) -> None:
        """Begin an attempt at a part."""
        part.attempt, part.failure = part.attempt + 1, None
        if self._view.state is JobState.QUEUED:
            self.record(_WORKER, state=JobState.RUNNING, started_at=self._view.started_at or now())
        self._move(part, PartState.RUNNING)

    def end(self, part: FakePart, script: Script) -> None:
        """End a part by the script, and with its last part the job."""
        planned = {} if isinstance(script, Failure) else script
        if part.stage is Stage.READ and part is self.parts[0] and len(planned) > 1:
            raise ScriptError(f"A picture has one page, and the answer has {len(planned)}.")
        if part.stage is Stage.INGEST and planned:
            stage = task_type(self._view.kind).stage
            pieces = [FakePart(stage=stage, ordinal=ordinal) for ordinal in planned]
            self.parts, self.open = self.parts + pieces, self.open + pieces
            if isinstance(planned[pieces[-1].ordinal], Summary | Split):
                pieces[-1].stage = next(held for held, awaited in AWAITED.items() if awaited is stage)
                pieces[-1].state = PartState.HELD
            self._move(part, PartState.DONE)
        elif isinstance(outcome := outcome_of(script, part.ordinal), Failure):
            part.failure = outcome.model_copy(update={"attempt": part.attempt})
            self._move(part, PartState.FAILED, reason=outcome.code)
        else:
            part.content = outcome
            self._move(part, PartState.DONE)
            self._notify(NoticeType.PART_DONE, part)
        last = self.parts[-1]
        if last.state is PartState.HELD and self.open == [last]:  # all segments are over
            if any(one.content for one in self.parts):
                self._move(last, PartState.QUEUED)
            else:
                self._move(last, PartState.CANCELLED, reason=f"nothing_to_{last.stage}")
        if not self.open:
            states = {part.state for part in self.pieces}
            failure = next((part.failure for part in self.parts if part.failure), None)
            if PartState.DONE in states:
                self.close(JobState.SUCCEEDED if len(states) == 1 else JobState.PARTIAL, _WORKER)
            else:
                self.close(JobState.FAILED if failure else JobState.CANCELLED, _WORKER, failure=failure)

    def close(self, state: JobState, actor: str, reason: str | None = None, **seen: Any) -> None:
        """End the job with its open parts, and send its callback."""
        for part in list(self.open):
            self._move(part, PartState.CANCELLED, actor, reason)
        self.script = None
        self.record(actor, reason, state=state, finished_at=now(), **seen)
        self._notify(NoticeType.of(state), None)

    def reopen(self, actor: str) -> None:
        """Queue failed and cancelled parts again, and a summary or split that lacked one of them."""
        again = [part for part in self.parts if part.state in (PartState.FAILED, PartState.CANCELLED)]
        last = self.parts[-1]
        if last not in again and any(part.stage is AWAITED.get(last.stage) for part in again):
            again.append(last)
        self.open = again
        for part in again:
            part.failure = part.content = None
            part.run_at = now()
            is_held = part.stage in AWAITED and len(again) > 1
            self._move(part, PartState.HELD if is_held else PartState.QUEUED, actor, "retry")
        if self.expires_at is not None and self.expires_at <= now():
            self.expires_at = None
        self.record(actor, "retry", state=JobState.QUEUED, failure=None, finished_at=None)

    def _move(
        self, part: FakePart, state: PartState, actor: str = _WORKER, reason: str | None = None
    ) -> None:
        if state.is_terminal:
            self.open.remove(part)
        part.state = state
        self.record(actor, reason, part)

    def _notify(self, kind: NoticeType, part: FakePart | None) -> None:
        """Notify the job's webhook, if it subscribes to this event (`pecia_schemas/moves.py`)."""
        if (hook := self.submitted.webhook) is None or kind not in hook.events:
            return
        view = self.view
        said = NoticeData(
            job_id=view.id,
            sequence=self.events[-1].sequence,
            **{name: getattr(view, name) for name in ("kind", "state", "lane", "progress", "finished_at")},
            failure=view.failure and view.failure.code,
            needs_review=sum(_needs_review(one.content) for one in self.parts),
            metadata=dict(view.metadata),
            part=part
            and NoticePart(id=part.id, stage=part.stage, number=part.ordinal + 1, attempt=part.attempt),
            created_at=view.submitted_at,
        )
        self._send(str(hook.url), JobNotice(type=kind, timestamp=view.finished_at or now(), data=said))


def _needs_review(content: Content | None) -> bool:
    if content is None:
        return False
    return content.needs_review if isinstance(content, Split) else content.verdict.needs_review
