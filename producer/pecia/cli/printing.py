"""Prints results on standard output, page by page; missing pages and pages to review go to standard error."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import typer

from pecia import bundles
from pecia.cli import endings
from pecia.cli.endings import Ending
from pecia.cli.output import counted, failure_json, fitting, for_terminal, json_line, name_of
from pecia.errors import JobError, JobTimeoutError
from pecia.job import AnyJob
from pecia.waiting import Deadline
from pecia_schemas.blocks import DoubtReason
from pecia_schemas.bundled import Bundle
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure, Summary
from pecia_schemas.states import JobState
from pecia_schemas.tasks import has_pages

_NAMED = 20
"""Number of pages to review that are named; the command in the last line shows the others."""
_UNREAD = {f"{DoubtReason.LANGUAGE_UNREAD}: Hangul": "ko"}
"""Reasons of doubts with the language to read again in. The suggested command reports what to install."""


def reason_of(page: Page | Segment) -> str:
    """Return the verdict of a page, or the reason and the script for a page in a script that the engine cannot read."""
    doubts = page.doubts if isinstance(page, Page) else ()
    unread = next((doubt for doubt in doubts if doubt.reason is DoubtReason.LANGUAGE_UNREAD), None)
    if unread is None:
        return page.verdict
    return f"{unread.reason}: {unread.other}" if unread.other else unread.reason


def missing(job: AnyJob) -> str | None:
    """Return why a job has no result, or only a part of it. None if its result is complete."""
    if job.failure is not None:
        return f"{job.failure.code}: {job.failure.message}"
    if job.erased_at is not None and job.state.has_result:
        return f"{job.state}, erased at {job.erased_at:%Y-%m-%d %H:%M:%S %Z}"
    if job.state.has_result:
        return None
    progress, pieces = job.progress, "pages" if has_pages(job.kind) else "parts"
    there = f"{progress.done} of {progress.total or '?'} {pieces} are read"
    next_ = f"`pecia retry {job.id}` reads the rest" if job.done else f"`pecia wait {job.id}` waits for it"
    return f"{job.state}, {there}; {next_}"


@dataclass(slots=True)
class Tally:
    """Counts of the documents whose results were delivered, and of their pages that need a review."""

    documents: int = 0
    pages: int = 0
    failed: int = 0
    """Pages, and complete documents, that could not be read."""
    unfinished: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: bool = False
    """Whether to name pages that need a review. True if the results themselves are not printed."""

    def add(self, job: AnyJob, pages: Iterable[Page | Segment]) -> None:
        """Count pages that were read."""
        for page in pages:
            self.pages += 1
            if page.verdict.needs_review:
                self.reasons[reason_of(page)] += 1
                if self.names and self.reasons.total() <= _NAMED:
                    typer.echo(f"{name_of(job)}, page {page.number}: {reason_of(page)}", err=True)

    def end(self, job: AnyJob) -> None:
        """Count a document whose delivery is complete."""
        self.documents += 1
        self.failed += max(job.progress.failed, job.state is JobState.FAILED)
        self.unfinished += not job.state.has_result and job.state is not JobState.FAILED

    def close(self, which: str) -> None:
        """Print the number of pages to review, by reason, and the next command for the jobs that `which` names."""
        seen = self.reasons.total()
        if self.documents == 1 and not (seen or self.failed or self.unfinished):
            return
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.most_common())
        said = [f"{seen:,} need{'s' if seen == 1 else ''} a review ({by_reason})"] if seen else []
        said += [f"{self.failed:,} failed"] if self.failed else []
        said += [f"{self.unfinished:,} not finished"] if self.unfinished else []
        is_batch = which.startswith("--")
        next_ = [f"pecia review {'' if is_batch else '--job '}{which}"] if seen else []
        if self.failed or self.unfinished:
            next_.append(f"pecia {'list' if is_batch else 'status'} {which}")
        next_ += [
            f"pecia read --language {code}" for reason, code in _UNREAD.items() if reason in self.reasons
        ]
        read = f"{counted(self.documents, 'document')}, {counted(self.pages, 'page')} read"
        line = f"{read}: {', '.join(said) or 'none needs a review'}."
        endings.complain(f"{line} Next: `{'`, `'.join(next_)}`." if next_ else line)


@dataclass(slots=True, kw_only=True)
class Printer:
    """Prints results as text, or as JSON with one object for each document, or with `by_page` for each page."""

    as_json: bool = False
    by_page: bool = False
    revision: int | None = None
    """0 for the result as the fleet read it, None for the latest revision."""
    tally: Tally = field(default_factory=Tally)
    step: Callable[[], None] = lambda: None
    """Function that is called before each output."""

    def print(self, job: AnyJob, name: str | None = None, timeout: float | None = 0) -> Ending:
        """Print a job's result, its pages as they are read until `timeout`, and return how the job ended."""
        deadline, printed, ending = Deadline(timeout), set[int](), Ending.DONE
        streams = not self.as_json or self.by_page
        try:
            if streams and has_pages(job.kind) and timeout != 0 and not job.refresh().done:
                for page in job.pages(timeout=timeout):
                    printed.add(page.number)
                    self._print_piece(job, name, page)
            else:
                job.wait(timeout if timeout is None else deadline.within(timeout))
        except JobTimeoutError:
            job.refresh()
            ending = Ending.TIMEOUT
        except JobError:
            pass  # it ended without a complete result, which is reported below
        result: Any = None
        if job.erased_at is None and job.progress.done + job.progress.failed > len(printed):
            result = job.result(timeout=0, revision=self.revision, partial=True)
        if streams:
            self._print_rest(job, name, result, printed)
        else:
            self.step()
            self.tally.add(job, pieces_of(result))
            json_line(result_json(job, name, result))
        self.tally.end(job)
        return max(ending, endings.of_results([job]))

    def _print_rest(self, job: AnyJob, name: str | None, result: Any, printed: set[int]) -> None:
        """Print the results that are not printed yet, the failures, and the missing parts."""
        for piece in pieces_of(result):
            if piece.number not in printed:
                self._print_piece(job, name, piece)
        if isinstance(result, Captions) and result.summary:
            self._print_piece(job, name, result.summary)
        if isinstance(result, Bundle) and result.split:
            if self.as_json:
                json_line(
                    _about(job, name) | {"documents": result.split.model_dump(mode="json")["documents"]}
                )
            else:
                typer.echo(for_terminal(fitting(*bundles.table_of(result), spare=("title", "doubts"))))
        for failed in result.failed if result else ():
            self._print_failed(job, name, failed)
        if not self.as_json and isinstance(result, Document) and (count := result.attachments):
            typer.echo(f"{name_of(job, name)}: {_unread(count)}", err=True)
        why = missing(job)
        if self.as_json and job.state is not JobState.SUCCEEDED:
            json_line(_about(job, name) | {"progress": job.progress, "failure": failure_json(job.failure)})
        elif not self.as_json and why:
            typer.echo(f"{name_of(job, name)}: {why}", err=True)

    def _print_piece(self, job: AnyJob, name: str | None, piece: Page | Segment | Summary) -> None:
        self.step()
        if not isinstance(piece, Summary):
            self.tally.add(job, [piece])
        if self.as_json:
            json_line(_about(job, name) | _piece_json(piece))
            return
        match piece:
            case Page():
                revised = f", revision {piece.revision.number}" if piece.revision else ""
                heading = f"page {piece.number} ({reason_of(piece)}{revised})"
            case Segment():
                heading = f"{_clock(piece.start)} - {_clock(piece.end)} ({piece.verdict})"
            case Summary():
                heading = f"summary ({piece.verdict})"
        typer.echo(f"--- {name_of(job, name)}, {heading}\n{for_terminal(piece.text)}\n")
        if isinstance(piece, Page) and piece.fields is not None:
            json_line(piece.fields)
            typer.echo()

    def _print_failed(self, job: AnyJob, name: str | None, piece: PageFailure | SegmentFailure) -> None:
        if self.as_json:
            json_line(_about(job, name) | {"number": piece.number, "failure": failure_json(piece.failure)})
            return
        if job.progress.total == 1:
            return  # the failure of a single page is that of its job, which is printed too
        what, failure = "page" if isinstance(piece, PageFailure) else "segment", piece.failure
        said = f"{name_of(job, name)}, {what} {piece.number}: {failure.code}: {failure.message}"
        typer.echo(said, err=True)


def print_each(
    jobs: Sequence[AnyJob], printer: Printer, names: Sequence[str] = (), timeout: float | None = 0
) -> Ending:
    """Print the jobs' results in order, each once it is available, and return the worst ending."""
    worst, deadline = Ending.DONE, Deadline(timeout)
    for number, job in enumerate(jobs):
        remaining = None if timeout is None else deadline.within(timeout)
        ending = printer.print(job, names[number] if names else None, remaining)
        worst = max(worst, ending)
    return worst


def _unread(count: int) -> str:
    files = "1 attached file was" if count == 1 else f"{count} attached files were"
    return f"{files} not read: submit them as documents of their own."


def pieces_of(result: Any) -> Sequence[Page | Segment]:
    """Return the pages or segments of a result, empty for None."""
    if isinstance(result, Document):
        return result.pages
    return result.segments if isinstance(result, Captions) else ()


def _about(job: AnyJob, name: str | None) -> dict[str, Any]:
    return {"job": job.id, "file": name or job.label, "state": job.state}


def result_json(job: AnyJob, name: str | None, result: Any) -> dict[str, Any]:
    """Return a job and its result as a JSON object. Erased and missing results are left out."""
    content: dict[str, Any] = {"pages" if has_pages(job.kind) else "segments": []}
    if isinstance(result, Captions):
        content = {"segments": [*map(_piece_json, result.segments)]}
        content["summary"] = result.summary and _piece_json(result.summary)
    elif isinstance(result, Document):
        content = {"revision": result.revision} if result.revision else {}
        content |= {"attachments": result.attachments} if result.attachments else {}
        content["pages"] = [*map(_piece_json, result.pages)]
        if isinstance(result, Bundle) and result.split:
            content |= result.split.model_dump(mode="json", include={"documents", "separators", "decisions"})
    if result and result.failed:
        content["failed"] = [
            {"number": piece.number, "failure": failure_json(piece.failure)} for piece in result.failed
        ]
    return {
        **_about(job, name),
        **content,
        "progress": job.progress,
        "failure": failure_json(job.failure),
        "erased_at": job.erased_at,
    }


def _piece_json(piece: Page | Segment | Summary) -> dict[str, Any]:
    """Return a page, segment or summary as an object, with its source if no engine read it."""
    known = ("number", "start", "end", "text", "verdict")
    record = {name: getattr(piece, name) for name in known if hasattr(piece, name)}
    if source := piece.cached_from:
        record["cached_from"] = source.model_dump(mode="json", include={"part", "read_at"})
    for name in ("revision", "fields"):
        if (value := getattr(piece, name, None)) is not None:
            record[name] = value
    if isinstance(piece, Page) and piece.attachments:
        record["attachments"] = piece.attachments
    if isinstance(piece, Page) and (reason := reason_of(piece)) != piece.verdict:
        record["reason"] = reason
    return record


def _clock(moment: timedelta) -> str:
    minutes, seconds = divmod(round(moment.total_seconds()), 60)
    return f"{minutes}:{seconds:02}"
