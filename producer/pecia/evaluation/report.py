"""Files through a fleet, and what came back beside the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, computed_field

from pecia.client import Client
from pecia.evaluation import captions, scores
from pecia.evaluation.captions import CaptionScore
from pecia.evaluation.scores import PageScore, Summary
from pecia.evaluation.truth import Exhibit
from pecia.job import AnyJob, JobGroup
from pecia_schemas.results import Document
from pecia_schemas.tasks import CaptionVideo, Prefer, ReadDocument


class Report(BaseModel):
    """What one run found."""

    model_config = ConfigDict(frozen=True)

    pages: tuple[PageScore, ...] = ()
    captions: tuple[CaptionScore, ...] = ()
    jobs: dict[str, UUID] = {}
    """By file, so that the same can be scored again once it was reviewed."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows none below another decorator
    @property
    def kinds(self) -> dict[str, Summary]:
        """A summary for each kind of page, by name, and of `all` of them at the end."""
        names = sorted({page.kind for page in self.pages})
        groups = {name: [page for page in self.pages if page.kind == name] for name in names}
        if self.pages:
            groups["all"] = list(self.pages)
        return {name: Summary.of(pages) for name, pages in groups.items()}


def hand_over(client: Client, exhibits: Sequence[Exhibit]) -> JobGroup[Any]:
    """Submit every file. Nothing read before is used."""
    return client.submit_many(_task(one) for one in exhibits)


def report(exhibits: Sequence[Exhibit], jobs: JobGroup[Any]) -> Report:
    """Compare what jobs that are over made with the truth."""
    pages: list[PageScore] = []
    described: list[CaptionScore] = []
    for exhibit, job in zip(exhibits, jobs, strict=True):
        if exhibit.media.is_video:
            result = job.result(timeout=0) if job.state.has_result else None
            described.append(captions.score(result, exhibit.truth.captions, file=exhibit.name))
        else:
            pages.extend(_pages(exhibit, job))
    read = {exhibit.name: job.id for exhibit, job in zip(exhibits, jobs, strict=True)}
    return Report(pages=tuple(pages), captions=tuple(described), jobs=read)


def _task(exhibit: Exhibit) -> ReadDocument | CaptionVideo:
    language = exhibit.truth.language
    if exhibit.media.is_video:
        return CaptionVideo(exhibit.path, language=language or "en", cache=False)
    prefer = Prefer.PIXELS if exhibit.is_own_truth else Prefer.AUTO
    return ReadDocument(exhibit.path, language=language, prefer=prefer, cache=False)


def _pages(exhibit: Exhibit, job: AnyJob) -> Iterator[PageScore]:
    """Yield a score for every page of the truth; what was not read is missing whole."""
    document = job.result(timeout=0) if job.state.has_result else Document(pages=())
    read = {page.number: page for page in document.pages}
    why = {page.number: page.failure.code for page in document.failed}
    for number, true in enumerate(exhibit.truth.pages, 1):
        of = {"file": exhibit.name, "kind": exhibit.kind}
        if number in read:
            yield scores.score(read[number], true, **of)
        else:
            failed = why.get(number) or (job.failure.code if job.failure else job.state)
            yield scores.unread(true, number=number, why=failed, **of)
