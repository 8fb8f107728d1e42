"""What a fake fleet answers: what the test said, written out as the pages, segments and failures of one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from pecia.testing.records import Content
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.page_ranges import PageRanges
from pecia_schemas.results import Captions, Document, Page, Segment, Summary, Verdict
from pecia_schemas.states import Stage
from pecia_schemas.tasks import CaptionVideo, ReadDocument, Task

ENGINE = "fake"
_A4 = (1240, 1754)
_HD = (1280, 720)
_SEGMENT = timedelta(seconds=10)
_UNTOLD: dict[Any, str] = {ReadDocument: "fake text", CaptionVideo: "fake caption"}

Piece = str | Page | Segment | Failure | FailureCode
"""What becomes of one page or segment: its text, all of its result, or why there is none."""

Answer = str | Sequence[Piece] | Document | Captions | Failure | FailureCode
"""What becomes of a job: the text of its one page, its pages or segments, all of its result, or why there is none."""


class ScriptError(AssertionError):
    """What the test told the fleet to answer cannot be an answer to what was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What comes of the parts of one job when they run."""

    pieces: Mapping[int, Content | Failure] = field(default_factory=dict)
    """By ordinal."""
    summary: Summary | None = None
    failure: Failure | None = None
    """Why there is nothing at all."""

    def outcome(self, stage: Stage, ordinal: int) -> Content | Failure:
        """Return what comes of one part. Raises `ScriptError` if the script does not say."""
        content = self.summary if stage is Stage.SUMMARIZE else self.pieces.get(ordinal)
        if content is None:
            raise ScriptError(
                f"The answer has nothing for part {ordinal + 1}, which the job had when it was cut."
            )
        return content


@dataclass(slots=True, kw_only=True)
class Rule:
    """What one call of `FakeFleet.answers` or `fails` has said."""

    task: type[Task[Any]]
    answer: Answer | Callable[[Any], Answer]
    summary: str | None = None
    fields: Mapping[str, Any] | None = None
    takes: timedelta = timedelta()
    left: int | None = None
    """To how many more jobs it applies; None: to all."""


class Told:
    """All that the test has said; of what fits, the last applies."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        """Take in one more."""
        self._rules.append(rule)

    def script(self, task: Task[Any], size: tuple[int, int] | None) -> tuple[Script, timedelta]:
        """Return what comes of a task, and how long each page or segment takes; `size` is that of a picture.

        Raises `ScriptError` if the picture is to have several pages.
        """
        fitting = [rule for rule in self._rules if rule.task is type(task) and rule.left != 0]
        rule = fitting[-1] if fitting else Rule(task=type(task), answer=_UNTOLD[type(task)])
        if rule.left:
            rule.left -= 1
        script = _write(rule, task, size)
        if size and len(script.pieces) > 1:
            raise ScriptError("What was submitted is a picture, which has one page; the answer has several.")
        return script, rule.takes


def _write(rule: Rule, task: Task[Any], size: tuple[int, int] | None) -> Script:
    answer = rule.answer(task) if callable(rule.answer) else rule.answer
    if isinstance(answer, (Failure, FailureCode)):
        return Script(failure=_failure(answer))
    if isinstance(task, CaptionVideo):
        pieces = _pieces(answer, task)
        segments = {number: _segment(number, piece) for number, piece in pieces.items()}
        return Script(pieces=segments, summary=_summary(rule, answer, pieces))
    return _document(rule, answer, cast("ReadDocument", task), size or _A4)


def _document(rule: Rule, answer: Any, task: ReadDocument, size: tuple[int, int]) -> Script:
    """Return the pages that were asked for, or that there is no such page; a whole result is what it is."""
    asked = PageRanges.parse(task.pages) if task.pages and not isinstance(answer, Document) else None
    pieces = _pieces(answer, task)
    if asked and isinstance(answer, str):
        pieces = dict.fromkeys(asked.indices(asked.last or asked.ranges[-1][0]), answer)
    elif asked and asked.missing_from(len(pieces)) is not None:
        return Script(failure=Failure.of(FailureCode.NO_SUCH_PAGE))
    elif asked:
        pieces = {number: pieces[number] for number in asked.indices(len(pieces))}
    fields = rule.fields if task.fields is not None else None
    return Script(pieces={number: _page(number, piece, size, fields) for number, piece in pieces.items()})


def _failure(why: Failure | FailureCode) -> Failure:
    return Failure.of(why) if isinstance(why, FailureCode) else why


def _pieces(answer: Any, task: Task[Any]) -> dict[int, Piece]:
    """Return what becomes of each page or segment, by its place counted from 0."""
    if isinstance(answer, (Document, Captions)):
        if not isinstance(answer, task.result_type):
            raise ScriptError(
                f"{type(task).__name__} returns a {task.result_type.__name__}, no other result."
            )
        done: Sequence[Page | Segment] = answer.pages if isinstance(answer, Document) else answer.segments
        missing = {one.number - 1: one.failure for one in answer.failed}
        return dict(sorted({**{one.number - 1: one for one in done}, **missing}.items()))
    listed = [answer] if isinstance(answer, (str, Page, Segment)) else answer
    if not isinstance(listed, Sequence):
        raise ScriptError(f"A {type(answer).__name__} is no answer.")
    if not listed:
        raise ScriptError(
            "A document has a page at least, and a video a segment; `fails` says that there is none."
        )
    return dict(enumerate(listed))


def _page(
    number: int, piece: Piece, size: tuple[int, int], fields: Mapping[str, Any] | None
) -> Page | Failure:
    if isinstance(piece, Page):
        return piece.model_copy(update={"number": number + 1})
    if not isinstance(piece, str) or isinstance(piece, FailureCode):
        return _failed_piece(piece)
    return Page(
        number=number + 1,
        blocks=plain_blocks(piece),
        verdict=Verdict.OK if piece.strip() else Verdict.BLANK,
        blank=not piece.strip(),
        width=size[0],
        height=size[1],
        engine=ENGINE,
        fields=dict(fields) if fields is not None else None,
    )


def _segment(number: int, piece: Piece) -> Segment | Failure:
    if isinstance(piece, Segment):
        return piece.model_copy(update={"number": number + 1})
    if not isinstance(piece, str) or isinstance(piece, FailureCode):
        return _failed_piece(piece)
    return Segment(
        number=number + 1,
        start=number * _SEGMENT,
        end=(number + 1) * _SEGMENT,
        text=piece,
        verdict=Verdict.OK,
        frames=8,
        width=_HD[0],
        height=_HD[1],
        engine=ENGINE,
    )


def _failed_piece(piece: Any) -> Failure:
    if isinstance(piece, (Failure, FailureCode)):
        return _failure(piece)
    raise ScriptError(f"A {type(piece).__name__} is no page or segment of this task.")


def _summary(rule: Rule, answer: Any, pieces: Mapping[int, Piece]) -> Summary | None:
    """Return the summary of a video, which one of a single segment does not have."""
    if isinstance(answer, Captions):
        return answer.summary
    if len(pieces) == 1:
        return None
    captions = [
        piece for piece in pieces.values() if isinstance(piece, str) and not isinstance(piece, FailureCode)
    ]
    return Summary(text=rule.summary or " ".join(captions), verdict=Verdict.OK, engine=ENGINE)
