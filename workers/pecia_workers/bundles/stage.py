"""The split stage: from the stored pages of a bundle to its documents. Those that people corrected are kept."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, cast
from uuid import UUID

from pecia_schemas.bundles import BundleDoubt, BundleDoubtReason, Cut, DocumentPart, Split, SplitPage
from pecia_schemas.results import Page
from pecia_schemas.tasks import ReadBundle
from pecia_workers.bundles.splitting import split
from pecia_workers.protocol.parts import ClaimedPart, Done

_PAGES_AT_ONCE: Final = 16

PagesOf = Callable[[UUID, int, int], Awaitable[Sequence[Page]]]
"""Returns a job's read pages in order: up to a number of pages after a page number."""
CorrectedOf = Callable[[ClaimedPart], Awaitable[Split | None]]
"""Returns the documents as people corrected them earlier, or None if they did not."""


class SplitBundle:
    """Splits bundles, each in a thread, with few pages in memory."""

    def __init__(self, pages_of: PagesOf, corrected_of: CorrectedOf) -> None:
        self._pages_of, self._corrected_of = pages_of, corrected_of

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the documents of the claimed bundle. Raises `DecryptionError`."""
        task, loop = cast("ReadBundle", part.task), asyncio.get_running_loop()
        is_over = False

        async def fetch(after: int) -> Sequence[Page]:
            return () if is_over else await self._pages_of(part.job_id, after, _PAGES_AT_ONCE)

        def pages() -> Iterator[Page]:
            after = 0
            while found := asyncio.run_coroutine_threadsafe(fetch(after), loop).result():
                yield from found
                after = found[-1].number

        try:
            fresh = await asyncio.to_thread(split, pages(), subject=task.subject)
        finally:
            is_over = True  # the thread of a cancelled part ends with the pages that it has
        kept = await self._corrected_of(part)
        return Done(with_new_pages(kept, fresh) if kept else fresh)


def with_new_pages(kept: Split, fresh: Split) -> Split:
    """Return the corrected documents, with the pages that only the new split has, where that split puts them.

    A document that gets such a page has a doubt there, and a conflict if the page names anyone but its patient.
    """
    new = {page.number for page in fresh.page_signs} - {page.number for page in kept.page_signs}
    added = _Added(kept, [page for page in fresh.page_signs if page.number in new], fresh)
    home = {page: part.number for part in kept.documents for page in part.pages}
    joining: dict[int, list[int]] = {}
    documents = []
    for part in fresh.documents:
        pages = [page for page in part.pages if page in new]
        if pages and not home.keys() & {*part.pages}:
            patient = added.numbers[part.patient] if part.patient else None
            documents.append(part.model_copy(update={"pages": tuple(pages), "patient": patient}))
            continue
        for page in pages:
            others = [other for other in part.pages if other in home]
            beside = max((other for other in others if other < page), default=others[0])
            joining.setdefault(home[beside], []).append(page)
    begins = {part.pages[0] for part in fresh.documents}
    for part in kept.documents:
        beside_new = [page for page in part.pages[1:] if page in begins and page - 1 in new]
        documents.append(added.to(part, joining.get(part.number, []), unsure=beside_new))
    documents.sort(key=lambda part: part.pages[0])
    return kept.model_copy(
        update={
            "documents": tuple(one.model_copy(update={"number": n}) for n, one in enumerate(documents, 1)),
            "separators": tuple(sorted({*kept.separators, *new.intersection(fresh.separators)})),
            "page_signs": tuple(
                sorted((*kept.page_signs, *added.signs.values()), key=lambda page: page.number)
            ),
            "patients": tuple(added.patients),
            "expected": added.expected,
        }
    )


class _Added:
    """Pages that are new to corrected documents, and the patients they name, by the corrected documents' numbers."""

    def __init__(self, kept: Split, pages: Collection[SplitPage], fresh: Split) -> None:
        self.patients = list(kept.patients)
        self.numbers = _same_numbers(kept, fresh)
        for number in sorted({patient for page in pages for patient in page.patients} - self.numbers.keys()):
            self.patients.append(fresh.patients[number - 1])
            self.numbers[number] = len(self.patients)
        self.signs = {
            page.number: page.model_copy(update={"patients": tuple(self.numbers[n] for n in page.patients)})
            for page in pages
        }
        expected = {self.numbers[number] for number in fresh.expected or () if number in self.numbers}
        self.expected = None if kept.expected is None else tuple(sorted({*kept.expected, *expected}))
        doubts = [doubt for part in fresh.documents for doubt in part.doubts]
        conflicts = (one.pages for one in doubts if one.reason is BundleDoubtReason.IDENTITY_CONFLICT)
        self._astray = {page for pages in conflicts for page in pages}

    def to(self, part: DocumentPart, pages: Collection[int], *, unsure: Iterable[int]) -> DocumentPart:
        """Return the document with these pages added. They are marked doubtful, as are the `unsure` pages."""
        conflict = {
            page for page in pages if page in self._astray or {*self.signs[page].patients} - {part.patient}
        }
        told = {doubt.reason: {*doubt.pages} for doubt in part.doubts}
        for reason, where in (
            (BundleDoubtReason.IDENTITY_CONFLICT, conflict),
            (BundleDoubtReason.CUT, {*pages, *unsure}),
        ):
            if where:
                told[reason] = told.get(reason, set()) | where
        numbers = tuple(sorted({*part.pages, *pages}))
        update: dict[str, Any] = {
            "pages": numbers,
            "doubts": tuple(
                BundleDoubt(reason=reason, pages=tuple(sorted(told[reason])))
                for reason in BundleDoubtReason
                if reason in told
            ),
        }
        if numbers[0] != part.pages[0]:
            update["cut"] = Cut(page=numbers[0], probability=self.signs[numbers[0]].begins)
        if conflict:
            update["patient"] = None
        return part.model_copy(update=update)


def _same_numbers(kept: Split, fresh: Split) -> dict[int, int]:
    """Map the new split's patients to numbers of the corrected documents, where both name the same patient.

    They are the same if they agree on each common page whose patient no person has set.
    """
    decided = {page for decision in kept.decisions for page in decision.pages}
    before = {page.number: page.patients for page in kept.page_signs if page.number not in decided}
    pairs = {
        (page.patients[0], *before[page.number])
        for page in fresh.page_signs
        if len(page.patients) == 1 and page.number in before
    }
    both = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]  # noqa: PLR2004
    ours, theirs = Counter(pair[0] for pair in pairs), Counter(known for _, known in both)
    return {number: known for number, known in both if ours[number] == theirs[known] == 1}
