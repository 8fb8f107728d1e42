"""`pecia demo`: documents from submit to result on a throw-away fleet, with every outcome checked.

The fleet and the documents come from `pecia[local]` by an entry point, so that the client itself stays light.
"""

import base64
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Literal, Protocol
from uuid import UUID

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pecia.cli.webhooks import Listener
from pecia.client import Client
from pecia.evaluation.truth import part_of_local
from pecia.job import Job
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import DocumentKind
from pecia_schemas.events import JobNotice
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Document
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import DocumentType, ReadBundle, ReadDocument

_TIMEOUT_S = 600
_MOST_MISTAKES = 8


class Exhibit(Protocol):
    """A document of the demo and its expected result: `local.samples.Exhibit` of the fleet's package."""

    title: str
    path: Path
    document_type: DocumentType
    lane: Lane
    text: str | None
    least: float
    documents: tuple[tuple[tuple[int, ...], DocumentKind, int], ...]
    misread: bool

    def accuracy(self, read: str) -> float:
        """Return how well a text agrees with the document's true text, from 0 to 1."""
        ...


@dataclass
class Showing:
    """One document of the demo, with its job and measurements."""

    exhibit: Exhibit
    job: Job[Document]
    accuracy: float | None = None
    called_back: bool = False

    @property
    def complaint(self) -> str | None:
        """What is wrong with the outcome, or None."""
        if not self.called_back:
            return "no callback"
        if self.exhibit.text is None:
            damaged = self.job.failure is not None and self.job.failure.code is FailureCode.DAMAGED
            return None if damaged else "should have failed as damaged"
        if self.job.state is not JobState.SUCCEEDED:
            return f"is {self.job.state}"
        if self.exhibit.misread:
            return None if self.needs_review else "is misread, and no verdict reports it"
        if self.accuracy is None or self.accuracy < self.exhibit.least:
            return f"less than {self.exhibit.least:.0%} of the characters are right"
        expected = self.exhibit.documents
        is_wrong = expected and self.documents != expected
        return f"is split into {self.documents}, not {expected}" if is_wrong else None

    @property
    def documents(self) -> tuple[tuple[tuple[int, ...], DocumentKind, int | None], ...]:
        """Pages, kind and patient of each document of a bundle."""
        bundle = self.job.result(timeout=0)
        assert isinstance(bundle, Bundle)  # noqa: S101  it was submitted as one
        return tuple((part.pages, part.kind, part.patient) for part in (one.part for one in bundle.documents))

    @property
    def needs_review(self) -> bool:
        """Whether a verdict of the fleet asks for a review."""
        return any(page.verdict.needs_review for page in self.job.result(timeout=0).pages)

    @property
    def mistakes(self) -> list[str]:
        """The words that were misread, line by line."""
        if self.exhibit.text is None or self.job.state is not JobState.SUCCEEDED:
            return []
        lines = self.exhibit.text.splitlines()
        known = [(word, number) for number, line in enumerate(lines, 1) for word in line.split()]
        words, read = [word for word, _ in known], self.job.result(timeout=0).text.split()
        mistakes = []
        for change, start, end, begins, ends in SequenceMatcher(None, words, read, False).get_opcodes():
            if change != "equal":
                line = known[min(start, len(known) - 1)][1]
                here, instead = " ".join(words[start:end]), " ".join(read[begins:ends])
                mistakes.append(f"line {line}: {here!r} is read as {instead!r}")
        return mistakes


def demo(
    *,
    engine: Annotated[
        Literal["cpu", "vllm"],
        typer.Option(help="vllm: printed slips, read by a small model that a clone of Pecia contains."),
    ] = "cpu",
) -> None:
    """Read a set of medical documents on a throw-away fleet and check every result. Exit 0 only if all is well.

    With `--engine vllm` real vLLM, where it is installed, reads printed slips with 4-bit weights and no GPU
    (`make demo-engine`). The model and the slips are tests/engine/reader of a clone, or the directory in PECIA_MODEL.
    The model misreads two of the slips; the fleet must mark these for review.

    Example: `pecia demo`
    """
    console = Console(highlight=False)
    secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
    console.print("A throw-away fleet: Postgres, Redis, four workers")
    throw_away = part_of_local("demo", "The demo brings its own servers")
    with (
        throw_away(engine, webhook_secret=secret, report=console.print) as stage,
        _receiver(secret) as (address, notices),
    ):
        with Client(stage.database_url, stage.redis_url, stage.payload_url) as client:
            console.print("Drawing documents and handing them over …")
            showings = [
                Showing(
                    exhibit,
                    client.submit(
                        (ReadBundle if exhibit.documents else ReadDocument)(
                            exhibit.path, document_type=exhibit.document_type, language="en"
                        ),
                        priority=exhibit.lane,
                        webhook=address,
                    ),
                )
                for exhibit in stage.draw()
            ]
            started = time.monotonic()
            _follow(showings, console)
            took = time.monotonic() - started
            complaints, overtaken = _judged(showings, notices)
            for showing in showings:
                if showing.exhibit.misread or showing.complaint:
                    mistakes = showing.mistakes[:_MOST_MISTAKES]
                    console.print(
                        *(f"{showing.exhibit.title}, {one}" for one in mistakes), sep="\n", markup=False
                    )
        console.print(_table(showings))
        pages = sum(
            showing.job.progress.done - bool(showing.exhibit.documents) for showing in showings
        )  # a split
        console.print(f"{pages} pages in {took:.1f} s: {pages / took:.2f} pages/s")
        for complaint in complaints:
            console.print(f"[red]Not as it should be:[/] {complaint}")
        if complaints:
            raise typer.Exit(1)
        read = sum(showing.job.state is JobState.SUCCEEDED for showing in showings)
        misread = sum(showing.exhibit.misread for showing in showings)
        outcomes = [
            f"{read} documents read",
            *map(_split, showings),
            f"{misread} of them misread and marked for review" if misread else "",
            f"{len(showings) - read} refused as damaged" if read < len(showings) else "",
            f"{len(showings)} signed callbacks verified",
        ]
        end = f"; the urgent one, sent last, was over before: {', '.join(overtaken)}." if overtaken else "."
        console.print(f"[green]All as it should be:[/] {', '.join(filter(None, outcomes))}{end}")


def _split(showing: Showing) -> str:
    """Describe how a bundle was split, or return an empty string for any other document."""
    documents = showing.exhibit.documents
    patients = len({patient for _, _, patient in documents})
    return f"one of them split into {len(documents)} of {patients} patients" if documents else ""


def _follow(showings: Sequence[Showing], console: Console) -> None:
    """Show every document's state until all are over."""
    deadline = time.monotonic() + _TIMEOUT_S
    with Live(_table(showings), console=console, transient=True, auto_refresh=False) as live:
        while not all(showing.job.done for showing in showings) and time.monotonic() < deadline:
            time.sleep(0.1)
            for showing in showings:
                if not showing.job.done:
                    showing.job.refresh()
            live.update(_table(showings), refresh=True)


def _judged(showings: Sequence[Showing], notices: dict[UUID, JobNotice]) -> tuple[list[str], tuple[str, ...]]:
    """Compare texts and await callbacks. Return the faults, and the bulk documents that ended after the urgent one."""
    for showing in showings:
        if showing.job.state is JobState.SUCCEEDED:
            showing.accuracy = showing.exhibit.accuracy(showing.job.result(timeout=0).text)
    deadline = time.monotonic() + 30
    while len(notices) < len(showings) and time.monotonic() < deadline:
        time.sleep(0.1)
    for showing in showings:
        notice = notices.get(showing.job.id)
        showing.called_back = notice is not None and notice.data.state is showing.job.state
    complaints = [
        f"{showing.exhibit.title}: {showing.complaint}" for showing in showings if showing.complaint
    ]
    urgent = [showing.job.finished_at for showing in showings if showing.exhibit.lane is Lane.URGENT]
    overtaken = tuple(
        showing.exhibit.title
        for showing in showings
        if showing.exhibit.lane is Lane.BULK
        and (late := showing.job.finished_at)
        and any(ended and ended < late for ended in urgent)
    )
    if urgent and not overtaken:
        complaints.append("the urgent document did not overtake any bulk one")
    return complaints, overtaken


def _table(showings: Sequence[Showing]) -> Table:
    narrow = (0, 1, 0, 0)  # so that 80 columns are enough
    table = Table(box=None, header_style="bold", pad_edge=False, padding=narrow)
    for heading in ("document", "lane", "pages", "state", "accuracy", "callback", "seconds"):
        table.add_column(heading, justify="right" if heading in ("pages", "accuracy", "seconds") else "left")
    for showing in showings:
        job, progress = showing.job, showing.job.progress
        table.add_row(
            showing.exhibit.title,
            str(job.lane),
            f"{progress.done}/{progress.total if progress.total is not None else '?'}",
            f"{job.state} ({job.failure.code})" if job.failure else str(job.state),
            "" if showing.accuracy is None else f"{showing.accuracy:.1%}",
            "verified" if showing.called_back else "",
            f"{(job.finished_at - job.submitted_at).total_seconds():.1f}" if job.finished_at else "",
        )
    return table


@contextmanager
def _receiver(secret: str) -> Iterator[tuple[str, dict[UUID, JobNotice]]]:
    """Run a webhook receiver on loopback. Yield its address and the notices whose signature was right."""
    notices: dict[UUID, JobNotice] = {}

    def heard(_delivery: str, notice: JobNotice | None) -> None:
        if notice:
            notices[notice.data.job_id] = notice

    with Listener("127.0.0.1", 0, secret, heard) as listener:
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        try:
            yield listener.url, notices
        finally:
            listener.shutdown()
            thread.join()
