"""Scripted answers of a fake fleet, expanded to the pages, segments and failures of a job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pecia_schemas.blocks import plain_blocks
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Cut, CutSign, DocumentKind, DocumentPart, Split
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import PageRanges
from pecia_schemas.results import Captions, Document, Page, Segment, Summary, Verdict
from pecia_schemas.tasks import CaptionVideo, ReadBundle, ReadDocument, ReadPages, Task

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
