"""Scores of read pages and captions against the truth, also by kind of page. Needs `pecia[eval]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from nltk.stem.porter import PorterStemmer
from nltk.translate.meteor_score import meteor_score
from pydantic import BaseModel, ConfigDict, computed_field
from rouge_score.rouge_scorer import RougeScorer

from pecia.client import Client
from pecia.evaluation import metrics
from pecia.evaluation.metrics import BundleScore, BundleSummary, Overlap, Share, Values, score_bundle
from pecia.evaluation.truth import Exhibit, TruePage
from pecia.job import JobGroup
from pecia_schemas.blocks import Table
from pecia_schemas.results import Captions, Page, Verdict
from pecia_schemas.tasks import CaptionVideo, Prefer, ReadBundle, ReadDocument

_WHOLE: Final = 0.99
"""Share of its words that a page must have to be `ok` rightly."""
_WORD: Final = re.compile(r"\w+")


class PageScore(BaseModel):
    """Scores of one page. Shares are counts, so that those of many pages can be added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    number: int
    kind: str
    verdict: str
    characters: Share = Share(0, 0)
    """Character errors, with order, out of all true characters; `words` likewise."""
    words: Share = Share(0, 0)
    found: Share = Share(0, 0)
    """True words that were read in any order, out of all true ones."""
    spoken: int = 0
    """Number of words that were read."""
    numbers: Share = Share(0, 0)
    values: Values | None = None
    """Words with a digit. None in a report of an earlier version, which did not count them."""
    errors_doubted: Share = Share(0, 0)
    """Wrong numbers in doubt, out of all wrong ones that were read."""
    right_doubted: Share = Share(0, 0)
    """Right numbers in doubt, out of all right ones that were read."""
    cells: Share = Share(0, 0)
    adjacency: Overlap = Overlap()
    """Pairs of neighbouring table cells; no pairs if the true tables are unknown."""
    in_place: Share = Share(0, 0)
    """True cells with text in the right row and column; `numeric_cells` are those with numbers."""
    numeric_cells: Share = Share(0, 0)
    destroyed: Share = Share(0, 0)
    """Undoubted tables with less than half of their cells in place, out of all."""
    marks: Share = Share(0, 0)
    order: float | None = None
    characters_in_file: Share = Share(0, 0)
    """Like `characters`, against a PDF's own text in the order of the file; `order_in_file` likewise."""
    order_in_file: float | None = None
    coverage: float | None = None
    seconds: float = 0.0
    """Seconds of decoding and in the engine."""

    @property
    def is_wrong_ok(self) -> bool:
        """Whether the page is `ok` although words are missing, or although the page is blank."""
        if self.verdict != Verdict.OK:
            return False
        return self.found.part < _WHOLE * self.found.whole if self.found.whole else self.spoken > 0

    @property
    def has_wrong_number(self) -> bool:
        """Whether a value is missing or invented."""
        return self.values is not None and (self.values.found < self.values.true or self.values.invented > 0)

    @property
    def is_right(self) -> bool:
        """Whether all words and numbers of the page are right."""
        return self.found.part == self.found.whole and not self.has_wrong_number

    @property
    def is_wrong_blank(self) -> bool:
        """Whether the page is `blank` although it has words."""
        return self.verdict == Verdict.BLANK and self.found.whole > 0


def score(page: Page, truth: TruePage, *, file: str, kind: str) -> PageScore:
    """Compare a page with its truth. If the truth is all capitals, case is ignored."""
    text = page.text.upper() if truth.text.isupper() else page.text
    read, true = metrics.words(text), metrics.words(truth.text)
    numeric = metrics.numeric(read), metrics.numeric(true)
    about = metrics.numeric(metrics.words("\n".join(doubt.text for doubt in page.doubts)))
    errors, right = metrics.doubted(*numeric, about)
    in_file: dict[str, Any] = {}
    if truth.in_file is not None:
        in_file["characters_in_file"] = metrics.character_errors(text, truth.in_file)
        in_file["order_in_file"] = metrics.order(text, truth.in_file)
    return PageScore(
        file=file,
        number=page.number,
        kind=kind,
        verdict=page.verdict,
        characters=metrics.character_errors(text, truth.text),
        words=metrics.word_errors(read, true),
        found=metrics.found(read, true),
        spoken=len(read),
        numbers=metrics.found(*numeric),
        values=metrics.compared(text, truth.text, is_whole=truth.in_file is None),
        errors_doubted=errors,
        right_doubted=right,
        **_tables(page, truth.tables),
        marks=Share(0, 0)
        if truth.marks is None
        else metrics.marks([mark for block in page.blocks for mark in block.marks], truth.marks),
        order=metrics.order(text, truth.text),
        **in_file,
        coverage=page.coverage,
        seconds=page.timings.decode + page.timings.engine,
    )


def _tables(page: Page, true: Sequence[Table] | None) -> dict[str, Any]:
    """Return the scores of a page's tables, or nothing if the true tables are unknown."""
    if true is None:
        return {}
    shares = metrics.in_place(page.tables, true)
    return {
        "cells": metrics.cells(page.tables, true),
        "adjacency": metrics.adjacency(page.tables, true),
        "in_place": Share.total(filled for filled, _ in shares),
        "numeric_cells": Share.total(numeric for _, numeric in shares),
        "destroyed": metrics.destroyed([filled for filled, _ in shares], page.doubts),
    }


def unread(truth: TruePage, *, file: str, number: int, kind: str, why: str) -> PageScore:
    """Return the score of a page that failed: everything on it is missing."""
    empty = Page(number=number, width=1, height=1, verdict=Verdict.BLANK, engine="")
    seen = truth.model_copy(update={"in_file": None})
    return score(empty, seen, file=file, kind=kind).model_copy(update={"verdict": why})


class Summary(BaseModel):
    """Summary of many pages, a row of `pecia eval`. None where no page has a value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pages: int
    cer: float | None
    """Character errors, with order, divided by the true characters; over 1 if errors outnumber these."""
    wer: float | None
    f1: float | None
    """F1 of words in any order."""
    numbers: float | None
    """Numbers, dates and times that were read, in any order."""
    values: float | None = None
    """Words with a digit, including codes, that were read, in any order."""
    ok_with_wrong_number: float | None = None
    """Pages with a wrong number, out of those that are `ok`."""
    right_but_flagged: float | None = None
    """Pages that are not `ok`, out of those with all words and numbers right."""
    errors_doubted: float | None
    """Share of wrong numbers in doubt."""
    right_doubted: float | None
    """Share of right numbers in doubt."""
    coverage: float | None
    cells: float | None
    """Share of cells with the right place and text."""
    adjacency: float | None
    """F1 of pairs of neighbouring cells, averaged over files."""
    in_place: float | None
    """Share of true cells with text in the right row and column."""
    numeric_cells: float | None
    """Like `in_place`, for cells with numbers."""
    destroyed: float | None
    """Share of undoubted tables with less than half of their cells in place."""
    order: float | None
    """Kendall's tau over lines."""
    cer_in_file: float | None
    """Like `cer` and `order`, of PDFs against their own text in the order of the file."""
    order_in_file: float | None
    marks: float | None
    wrong_ok: float
    """Share of pages that are `ok` with less than 99 % of their words, or with words on a blank page."""
    wrong_blank: float
    seconds: float
    """Seconds a page."""

    @classmethod
    def of(cls, scores: Sequence[PageScore]) -> Summary:
        """Return the summary of at least one page."""

        def rate(name: str) -> float | None:
            return Share.total(getattr(one, name) for one in scores).rate

        found = Share.total(one.found for one in scores)
        judged = [(one, one.values) for one in scores if one.values]
        ok = [one.has_wrong_number for one, _ in judged if one.verdict == Verdict.OK]
        right = [one.verdict not in (Verdict.OK, Verdict.BLANK) for one, _ in judged if one.is_right]
        spoken = sum(one.spoken for one in scores)
        return cls(
            pages=len(scores),
            cer=rate("characters"),
            wer=rate("words"),
            f1=Share(2 * found.part, found.whole + spoken).rate,
            numbers=rate("numbers"),
            values=Share.total((values.found, values.true) for _, values in judged).rate,
            ok_with_wrong_number=Share(sum(ok), len(ok)).rate,
            right_but_flagged=Share(sum(right), len(right)).rate,
            errors_doubted=rate("errors_doubted"),
            right_doubted=rate("right_doubted"),
            coverage=_mean(one.coverage for one in scores),
            cells=rate("cells"),
            adjacency=_mean(_by_file(scores)),
            in_place=rate("in_place"),
            numeric_cells=rate("numeric_cells"),
            destroyed=rate("destroyed"),
            order=_mean(one.order for one in scores),
            cer_in_file=rate("characters_in_file"),
            order_in_file=_mean(one.order_in_file for one in scores),
            marks=rate("marks"),
            wrong_ok=sum(one.is_wrong_ok for one in scores) / len(scores),
            wrong_blank=sum(one.is_wrong_blank for one in scores) / len(scores),
            seconds=sum(one.seconds for one in scores) / len(scores),
        )


def _by_file(scores: Sequence[PageScore]) -> Iterator[float | None]:
    """Yield, for each file, the F1 of its pairs of neighbouring cells."""
    for name in {score.file: None for score in scores}:
        pages = [score.adjacency for score in scores if score.file == name]
        yield Overlap(*map(sum, zip(*pages, strict=True))).f1


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class CaptionScore(BaseModel):
    """Scores of the captions of one video."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    rouge_l: float
    """Longest common subsequence of words (ROUGE-L, F1), against the most similar reference."""
    meteor: float
    """Matching words and stems, and their order (METEOR). Synonyms do not count: no wheel contains WordNet."""


# Arguments of the scorers: a tokenizer, and a WordNet without synonyms.
_WORDS: Final[Any] = SimpleNamespace(tokenize=lambda text: _WORD.findall(text.lower()))
_NO_SYNONYMS: Final[Any] = SimpleNamespace(synsets=lambda _word: [])


def described(captions: Captions | None, references: Sequence[str], *, file: str) -> CaptionScore:
    """Compare the summary, or the only segment's text, with the references; None if captioning failed."""
    text = ""
    if captions:
        pieces = [captions.summary] if captions.summary else captions.segments
        text = "\n".join(piece.text for piece in pieces)
    rouge = RougeScorer(["rougeL"], tokenizer=_WORDS).score_multi(references, text)
    meteor = meteor_score(
        [_WORDS.tokenize(reference) for reference in references],
        _WORDS.tokenize(text),
        stemmer=PorterStemmer(),
        wordnet=_NO_SYNONYMS,
    )
    return CaptionScore(file=file, rouge_l=rouge["rougeL"].fmeasure, meteor=meteor)


class Report(BaseModel):
    """Scores of one run."""

    model_config = ConfigDict(frozen=True)

    pages: tuple[PageScore, ...] = ()
    captions: tuple[CaptionScore, ...] = ()
    bundles: tuple[BundleScore, ...] = ()
    jobs: dict[str, UUID] = {}
    """Jobs by file, so that their results can be scored again after a review."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows none below another decorator
    @property
    def kinds(self) -> dict[str, Summary]:
        """A summary for each kind of page, by name, and one named `all` at the end."""
        names = sorted({page.kind for page in self.pages})
        groups = {name: [page for page in self.pages if page.kind == name] for name in names}
        if self.pages:
            groups["all"] = list(self.pages)
        return {name: Summary.of(pages) for name, pages in groups.items()}

    @computed_field  # type: ignore[prop-decorator]  # as above
    @property
    def bundled(self) -> BundleSummary | None:
        """A summary of all bundles, or None without bundles."""
        return BundleSummary.of(self.bundles) if self.bundles else None


def hand_over(client: Client, exhibits: Sequence[Exhibit], prefer: Prefer | None = None) -> JobGroup[Any]:
    """Submit every file, without reuse of earlier results. `prefer` overrides the source of the text of PDFs."""
    tasks: list[ReadDocument | ReadBundle | CaptionVideo] = []
    for one in exhibits:
        language = one.truth.language
        if one.media.is_video:
            tasks.append(CaptionVideo(one.path, language=language or "en", cache=False))
        else:
            usual = Prefer.PIXELS if one.is_own_truth else Prefer.AUTO
            kind = ReadBundle if one.truth.documents else ReadDocument
            tasks.append(kind(one.path, language=language, prefer=prefer or usual, cache=False))
    return client.submit_many(tasks)


def report(exhibits: Sequence[Exhibit], jobs: JobGroup[Any]) -> Report:
    """Compare the results of ended jobs with the truth. A page that was not read counts as missing."""
    pages: list[PageScore] = []
    captions: list[CaptionScore] = []
    bundles: list[BundleScore] = []
    for exhibit, job in zip(exhibits, jobs, strict=True):
        result = job.result(timeout=0) if job.state.has_result else None
        if exhibit.media.is_video:
            captions.append(described(result, exhibit.truth.captions, file=exhibit.name))
            continue
        if exhibit.truth.documents:
            bundles.append(score_bundle(result, exhibit.truth.documents, file=exhibit.name))
        read = {page.number: page for page in result.pages} if result else {}
        why = {page.number: page.failure.code for page in result.failed} if result else {}
        of = {"file": exhibit.name, "kind": exhibit.kind}
        for number, true in enumerate(exhibit.truth.pages, 1):
            if number in read:
                pages.append(score(read[number], true, **of))
            else:
                failed = why.get(number) or (job.failure.code if job.failure else job.state)
                pages.append(unread(true, number=number, why=failed, **of))
    by_file = {exhibit.name: job.id for exhibit, job in zip(exhibits, jobs, strict=True)}
    return Report(pages=tuple(pages), captions=tuple(captions), bundles=tuple(bundles), jobs=by_file)
