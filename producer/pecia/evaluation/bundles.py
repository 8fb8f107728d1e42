"""Compares the split of a bundle with the truth: beginnings, kinds and patients of its documents."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from pecia.evaluation.metrics import Share
from pecia.evaluation.truth import TrueDocument
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Identity, Subject


class BundleScore(BaseModel):
    """Scores of one bundle. Shares are counts, so that those of many bundles can be added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    found: Share
    """True beginnings that were found, out of all but the first."""
    right: Share
    """Reported beginnings that are true, out of all reported but the first."""
    whole: bool
    """Whether all documents are the true ones, page by page."""
    kinds: Share
    """Documents of the right kind, out of those of known kind. Missing ones count as wrong, also in `identities`."""
    identities: Share
    """Documents whose identity has all that is known of their patient."""
    untold: Share
    """Documents with pages of two patients and no conflict, out of all reported ones."""
    false_conflicts: Share
    """Documents of one patient with a conflict, out of all reported ones."""


class BundleSummary(BaseModel):
    """Summary of many bundles. None where no bundle has a value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: int
    recall: float | None
    precision: float | None
    whole: float
    kinds: float | None
    identities: float | None
    untold: float | None
    false_conflicts: float | None

    @classmethod
    def of(cls, scores: Sequence[BundleScore]) -> "BundleSummary":
        """Return the summary of at least one bundle."""

        def rate(name: str) -> float | None:
            return Share.total(getattr(one, name) for one in scores).rate

        return cls(
            bundles=len(scores),
            recall=rate("found"),
            precision=rate("right"),
            whole=sum(one.whole for one in scores) / len(scores),
            kinds=rate("kinds"),
            identities=rate("identities"),
            untold=rate("untold"),
            false_conflicts=rate("false_conflicts"),
        )


def score_bundle(bundle: Bundle | None, truth: Sequence[TrueDocument], *, file: str) -> BundleScore:
    """Compare the documents of a bundle with the true ones; None if the bundle was not read."""
    told = bundle.split.documents if bundle and bundle.split else ()
    by_start = {document.pages[0]: document for document in told}
    true_by_start = {document.numbers[0]: document for document in truth}
    first = min(true_by_start)
    right = [start for start in by_start if start in true_by_start]
    patients = {page: document.patient for document in truth for page in document.numbers if document.patient}
    mixed = [part for part in told if len({patients[page] for page in part.pages if page in patients}) > 1]
    pairs = [(document, by_start.get(start)) for start, document in true_by_start.items()]
    kinds = [part and part.kind is document.kind for document, part in pairs if document.kind]
    named = [
        part is not None and _names(part.identity, document.identity)
        for document, part in pairs
        if document.identity
    ]
    return BundleScore(
        file=file,
        found=Share(len(set(right) - {first}), len(true_by_start) - 1),
        right=Share(len(set(right) - {first}), len(set(by_start) - {first})),
        whole=[list(part.pages) for part in told] == [document.numbers for document in truth],
        kinds=Share(sum(map(bool, kinds)), len(kinds)),
        identities=Share(sum(named), len(named)),
        untold=Share(sum(not part.has_conflict for part in mixed), len(told)),
        false_conflicts=Share(sum(part.has_conflict and part not in mixed for part in told), len(told)),
    )


def _names(identity: Identity, patient: Subject) -> bool:
    """Return whether an identity has all known data of the patient: names in any order, numbers without spaces."""
    return (
        _words(identity.name) == _words(patient.name)
        and identity.birth_date == patient.birth_date
        and _numbers(patient.record_numbers) <= _numbers(identity.record_numbers)
        and _numbers(patient.insurance_numbers) <= _numbers(identity.insurance_numbers)
    )


def _words(name: str | None) -> list[str]:
    return sorted("".join(sign if sign.isalpha() else " " for sign in (name or "").casefold()).split())


def _numbers(written: Iterable[str]) -> set[str]:
    return {"".join(filter(str.isalnum, number.upper())) for number in written}
